"""The parts that the training examples share: data set, loader, model, slow disk."""

import hashlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from examples.images.arguments import parse_arguments
from examples.images.augment import augment
from examples.images.data import CLASSES, draw, labelled_files, prepare_dataset
from examples.images.loader import Batch, Loader
from examples.images.model import Adam, Network, loss_and_hits
from examples.images.slow import WAYS, SlowDisk, conditions


@pytest.fixture(autouse=True)
def _no_process_is_left_behind() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def digests(dataset: Path) -> dict[str, str]:
    return {
        str(path.relative_to(dataset)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in dataset.rglob("*.npy")
    }


def numbered(number: int) -> Batch:
    return np.full((2, 3, 3), number % 256, np.uint8), np.array([number, os.getpid()])


class TestDataSet:
    def test_two_drawings_are_the_same_to_the_byte(self, tmp_path: Path) -> None:
        first = digests(prepare_dataset(tmp_path / "first", train=30, evaluation=10))
        assert len(first) == 40
        assert len(set(first.values())) == 40  # and no image is drawn twice
        assert first == digests(prepare_dataset(tmp_path / "second", train=30, evaluation=10))

    def test_a_data_set_that_is_there_is_not_drawn_again(self, tmp_path: Path) -> None:
        dataset = prepare_dataset(tmp_path, train=10, evaluation=5)
        files = {path: path.stat().st_mtime_ns for path in dataset.rglob("*.npy")}
        assert prepare_dataset(tmp_path, train=10, evaluation=5) == dataset
        assert files == {path: path.stat().st_mtime_ns for path in dataset.rglob("*.npy")}

    @pytest.mark.parametrize("batch", ["-1", "0", "7681"])
    def test_a_batch_of_which_an_epoch_has_none_is_refused(
        self, batch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("sys.argv", ["train_pytorch.py", "--batch", batch])
        with pytest.raises(SystemExit):
            parse_arguments("Trains.")
        assert f"--batch {batch}: give a number from 1 to 7680" in capsys.readouterr().err

    def test_an_interrupted_drawing_is_not_taken_for_a_data_set(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn = []

        def interrupted(name: str, seed: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
            drawn.append(name)
            if len(drawn) == 7:
                raise KeyboardInterrupt
            return draw(name, seed)

        with monkeypatch.context() as patched:
            patched.setattr("examples.images.data.draw", interrupted)
            with pytest.raises(KeyboardInterrupt):
                prepare_dataset(tmp_path, train=10, evaluation=5)
        dataset = prepare_dataset(tmp_path, train=10, evaluation=5)
        assert len(labelled_files(dataset, "train")) == 10
        assert [folder.name for folder in tmp_path.iterdir()] == [dataset.name]

    def test_labels_name_the_folder_that_an_image_is_in(self, tmp_path: Path) -> None:
        files = labelled_files(prepare_dataset(tmp_path, train=25, evaluation=5), "train")
        assert [CLASSES[label] for _, label in files] == [path.parent.name for path, _ in files]
        assert {label for _, label in files} == set(range(len(CLASSES)))


class TestAugmentation:
    def test_one_seed_gives_one_image_and_another_seed_another(self) -> None:
        image = draw("ring", (0, 0))
        once, again, other = (augment(image, np.random.default_rng(seed)) for seed in (1, 1, 2))
        assert np.array_equal(once, again)
        assert not np.array_equal(once, other)

    def test_a_heavy_transform_still_shows_the_shape(self) -> None:
        ring, square = draw("ring", (0, 0)), draw("square", (0, 1))
        heavy = augment(ring, np.random.default_rng(1), passes=60)
        light = augment(ring, np.random.default_rng(1))
        alike = np.corrcoef(heavy.ravel(), light.ravel())[0, 1]
        assert alike > np.corrcoef(heavy.ravel(), square.ravel())[0, 1] + 0.2


# Batches for the pipes to hold: workers that have sent them all have ended.
TOO_MANY = 1_000_000


class TestLoader:
    @pytest.mark.parametrize("workers", [0, 1, 3, 20])
    def test_batches_come_in_order_however_many_workers_there_are(self, workers: int) -> None:
        labels = [labels.tolist() for _, labels in Loader(numbered, batches=11, workers=workers)]
        assert [number for number, _ in labels] == list(range(11))
        assert len({process for _, process in labels}) == max(1, min(workers, 11))
        assert (os.getpid() in {process for _, process in labels}) == (workers == 0)

    def test_each_iteration_starts_anew(self) -> None:
        loader = Loader(numbered, batches=3, workers=2)
        for _ in range(2):
            assert [int(labels[0]) for _, labels in loader] == [0, 1, 2]

    def test_a_killed_worker_ends_the_pass_and_is_named(self) -> None:
        batches = iter(Loader(numbered, batches=TOO_MANY, workers=2))
        number, worker = next(batches)[1].tolist()
        assert number == 0
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=f"loader worker {worker} died with exit status -9"):
            list(batches)

    def test_leaving_a_pass_early_stops_its_workers(self) -> None:
        batches = iter(Loader(numbered, batches=TOO_MANY, workers=2))
        next(batches)
        assert len(multiprocessing.active_children()) == 2
        del batches  # the fixture sees that they are gone


class TestNetwork:
    def test_gradients_agree_with_differences_of_the_loss(self) -> None:
        network, random = Network(channels=(2, 3)), np.random.default_rng(3)
        images = random.integers(0, 256, (4, 32, 32)).astype(np.uint8)
        labels = np.array([0, 1, 2, 3])
        network.backward(network.forward(images), labels)
        gradients = [gradient.copy() for gradient in network.gradients()]
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            place = np.unravel_index(abs(gradient).argmax(), gradient.shape)  # rounding matters least there
            losses = []
            for step in (1e-2, -1e-2):
                usual = parameter[place]
                parameter[place] += step
                losses.append(loss_and_hits(network.forward(images), labels)[0])
                parameter[place] = usual
            assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(float(gradient[place]), rel=0.05)

    def test_the_loss_falls_and_unseen_images_are_classified(self) -> None:
        images = np.stack([draw(CLASSES[index % 5], (0, index)) for index in range(320)])
        labels = np.arange(320) % 5
        network = Network(channels=(8, 8))
        optimizer, losses = Adam(network.parameters(), rate=1e-2), []
        for step in range(40):
            chosen = slice(step % 4 * 64, step % 4 * 64 + 64)
            probabilities = network.forward(images[chosen])
            losses.append(loss_and_hits(probabilities, labels[chosen])[0])
            network.backward(probabilities, labels[chosen])
            optimizer.update(network.gradients())
        assert np.mean(losses[-4:]) < 0.5 * losses[0]
        assert loss_and_hits(network.forward(images[256:]), labels[256:])[1] > 32  # by chance it is 13 of 64

    def test_a_checkpoint_holds_every_parameter(self, tmp_path: Path) -> None:
        network = Network(channels=(2, 3))
        network.save(tmp_path / "checkpoint.npz")
        with np.load(tmp_path / "checkpoint.npz") as saved:
            for name, parameter in zip(saved.files, network.parameters(), strict=True):
                assert np.array_equal(saved[name], parameter)
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.npz"]


class TestSlowWays:
    def test_all_processes_share_the_slow_disk(self) -> None:
        disk = SlowDisk(reads_per_second=1000)
        disk.wait_for_read()
        begin = disk.next_free
        reader = multiprocessing.get_context("fork").Process(target=read_some, args=(disk, 20))
        reader.start()
        read_some(disk, 20)
        reader.join()
        assert reader.exitcode == 0
        assert disk.next_free - begin >= 0.04 - 1e-9

    def test_each_way_changes_one_thing(self) -> None:
        usual = conditions("none", workers=4)
        changes = {
            way: {
                name for name in vars(usual) if getattr(conditions(way, workers=4), name) != vars(usual)[name]
            }
            for way in WAYS
        }
        assert changes == {
            "none": set(),
            "augmentation": {"passes"},
            "workers": {"workers"},
            "storage": {"disk"},
            "stall": {"checkpoint_every", "checkpoint_delay"},
        }


def read_some(disk: SlowDisk, times: int) -> None:
    for _ in range(times):
        disk.wait_for_read()
