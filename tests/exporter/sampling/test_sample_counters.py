"""Sample counters of runs: kept over restarts, laid out anew for a new GPU, dropped after their run."""

import os
from pathlib import Path

import pytest
from stepscope.exporter.sampling.limits import Limits, ReachedLimits
from stepscope.exporter.sampling.sample import GpuSample, GpuUse, RunSample, Sample
from stepscope.exporter.sampling.sample_counters import SampleCounters
from stepscope.exporter.sampling.state_file import UNSAVED_SAMPLES, StateFile

NOW = 1795181220.0  # 2026-11-20 13:27:00 UTC


class Node:
    """An exporter's counters; its life can be ended without a word, and another one begun."""

    def __init__(self, directory: Path | None, run: str | None = None, limit: int = 100) -> None:
        self.directory = directory
        self.reached = ReachedLimits(Limits(runs=limit))
        self.run = run
        self.now = NOW
        self.runs: set[str] = set()
        self.saves = True
        self.begin()

    def begin(self) -> None:
        self.counters = SampleCounters(
            self.directory, lambda: self.runs, self.run, retention=300, now=self.now, reached=self.reached
        )

    def restart(self) -> None:
        self.counters.close()  # writes nothing
        self.begin()

    def tick(self, *gpus: float, pids: tuple[int, ...] = (), seconds: float = 0.5) -> None:
        self.now += seconds
        samples = {
            str(index): GpuSample(utilization_ratio=value, memory_used_bytes=1.0, memory_total_bytes=4.0)
            for index, value in enumerate(gpus)
        }
        sample = Sample(
            self.now,
            cpu_utilization_ratio=[0.95],
            cpu_io_wait_ratio=[0.0],
            gpus=samples,
            gpu_processes={"0": dict.fromkeys(pids, 1.0)},
            runs={run: RunSample(gpus=dict.fromkeys(samples, GpuUse("node"))) for run in self.runs},
        )
        self.counters.count(sample)
        if self.saves:
            self.counters.save(sample)

    def published(self, name: str) -> dict[tuple[str, ...], object]:
        self.counters.publish()
        (family,) = (family for family in self.counters.families if family.name == f"stepscope_{name}")
        return {**family.samples, **{key: sum(each.counts) for key, each in family.histograms.items()}}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "state").mkdir()
    return Node(tmp_path / "state")


def test_each_active_run_counts_every_sample(node: Node) -> None:
    node.tick()
    node.runs = {"a"}
    node.tick()
    node.runs = {"a", "b"}
    node.tick()
    assert node.published("samples_total") == {("a",): 2, ("b",): 1}


def test_a_command_whose_run_gets_another_label_counts_for_that_one() -> None:
    node = Node(None, run="train-1")
    node.tick()
    node.counters.observe("train-2")
    node.runs = {"train-2"}
    node.tick()
    assert node.published("samples_total") == {("train-2",): 1}


def test_a_restart_loses_nothing_and_a_run_goes_on(node: Node) -> None:
    node.runs = {"resnet"}
    for _ in range(3):
        node.tick(0.05, 1.0)
    before = {
        name: node.published(name)
        for name in ("samples_total", "gpu_starved_samples_total", "gpu_utilization_samples")
    }
    node.restart()
    assert {name: node.published(name) for name in before} == before
    node.tick(0.05, 1.0)
    assert node.published("samples_total") == {("resnet",): 4}
    assert node.published("gpu_starved_samples_total")["resnet", "cpu", "0.9", "0.1"] == 4


def test_a_gpu_that_appears_later_gets_its_histograms_and_the_others_keep_theirs(node: Node) -> None:
    node.runs = {"resnet"}
    node.tick(0.5)
    for gpus in (2, 3, 16):
        node.tick(*[0.5] * gpus)
        node.restart()
    assert node.published("gpu_utilization_samples")["resnet", "0"] == 4
    assert node.published("gpu_utilization_samples")["resnet", "1"] == 3
    assert node.published("gpu_memory_samples")["resnet", "15"] == 1
    assert node.published("samples_total") == {("resnet",): 4}


def test_zeros_of_the_starved_grid_are_published_only_for_the_lowest_bound(node: Node) -> None:
    node.runs = {"resnet"}
    node.tick(0.35)
    published = node.published("gpu_starved_samples_total")
    assert {labels[3] for labels, count in published.items() if not count} == {"0.1"}
    assert {labels[3] for labels, count in published.items() if count} == {
        f"0.{tenth}" for tenth in range(4, 10)
    }


def test_a_run_without_gpus_has_no_starved_grid(node: Node) -> None:
    node.runs = {"resnet"}
    node.tick()
    assert node.published("gpu_starved_samples_total") == {}
    assert node.published("gpu_low_samples_total") == {}
    assert node.published("cpu_utilization_samples") == {("resnet",): 1}


def test_a_gpu_without_a_utilisation_has_no_starved_grid(node: Node) -> None:
    """As of a MIG device: that it never starves is not known."""
    node.runs = {"resnet"}
    node.tick(float("nan"))
    assert node.published("gpu_starved_samples_total") == {}
    assert node.published("gpu_memory_samples") == {("resnet", "0"): 1}


def test_counts_are_dropped_with_their_file_some_time_after_the_last_sample(
    node: Node, tmp_path: Path
) -> None:
    node.runs = {"resnet"}
    node.tick()
    node.runs = set()
    node.tick(seconds=299)
    assert node.published("samples_total") == {("resnet",): 1}
    node.tick(seconds=2)
    assert node.published("samples_total") == {}
    assert list(tmp_path.glob("state/*.samples")) == []


def test_counts_of_a_run_that_ended_long_before_the_start_are_dropped(node: Node, tmp_path: Path) -> None:
    node.runs = {"resnet"}
    node.tick()
    node.now += 301
    node.restart()
    assert node.published("samples_total") == {}
    assert list(tmp_path.glob("state/*.samples")) == []


def test_an_unnamed_run_keeps_its_name_and_its_counts_over_a_restart(node: Node) -> None:
    node.tick(0.5, pids=(7,))
    node.tick(0.5, pids=(7, 8))
    node.restart()
    node.tick(0.5, pids=(8,))
    assert node.published("samples_total") == {("unnamed-20261120T132700",): 3}


@pytest.mark.parametrize("name", ["a/../b", "..", "ü" * 200, 'q"\\\n', "bad\udcff", "-"])
def test_any_name_of_a_run_is_kept(node: Node, name: str, tmp_path: Path) -> None:
    node.runs = {name, f"{name} "}
    node.tick()
    node.restart()
    assert node.published("samples_total") == {(name,): 1, (f"{name} ",): 1}
    assert len(list((tmp_path / "state").glob("*.samples"))) == 2


def test_a_scrape_never_shows_more_than_a_restart_would_continue_with_also_after_one(node: Node) -> None:
    node.runs = {"resnet"}
    node.tick(0.5)
    node.saves = False  # killed between counting and saving, or while the disk is slow
    for _ in range(UNSAVED_SAMPLES):
        node.tick(0.5)
        assert node.published("samples_total") == {("resnet",): 1}
        assert node.published("gpu_utilization_samples") == {("resnet", "0"): 1}
    node.restart()
    assert node.published("samples_total") == {("resnet",): 1}
    node.tick(0.5)  # of this one, too, nothing is saved
    assert node.published("samples_total") == {("resnet",): 1}
    node.restart()
    node.saves = True
    node.tick(0.5)
    assert node.published("samples_total") == {("resnet",): 2}


def test_while_a_disk_hangs_the_counters_rise_and_they_never_fall(node: Node) -> None:
    node.runs = {"resnet"}
    node.tick()
    node.saves = False
    for _ in range(UNSAVED_SAMPLES + 1):
        node.tick()
    assert node.published("samples_total") == {("resnet",): UNSAVED_SAMPLES + 2}
    (run,) = node.counters._runs.values()
    late = run.unsaved()
    assert late is not None
    node.tick()
    assert node.published("samples_total") == {("resnet",): UNSAVED_SAMPLES + 3}
    run.save(late)  # what was handed to the disk before comes back now
    assert node.published("samples_total") == {("resnet",): UNSAVED_SAMPLES + 3}


def test_a_file_that_cannot_be_written_is_removed_and_a_restart_counts_from_0(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    node.runs = {"resnet"}
    node.tick()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        node.tick()
        node.tick()
    assert node.published("samples_total") == {("resnet",): 3}  # counted in memory
    node.saves = False
    node.restart()
    assert node.published("samples_total") == {("resnet",): 3}  # the third tick made a new file


def test_a_disk_that_stays_full_leaves_no_file_with_too_few_samples(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.runs = {"resnet"}
    node.tick()

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        patch.setattr(os, "open", full)
        for _ in range(3):
            node.tick()
    assert node.published("samples_total") == {("resnet",): 4}
    assert len([message for message in caplog.messages if "cannot be kept" in message]) == 1
    node.restart()
    assert node.published("samples_total") == {}  # an honest restart from 0
    assert list(tmp_path.glob("state/*.samples")) == []


def test_a_file_that_somebody_deletes_is_made_anew(node: Node, tmp_path: Path) -> None:
    node.runs = {"resnet"}
    for _ in range(3):
        node.tick()
        next(tmp_path.glob("state/*.samples")).unlink()
    node.tick()
    node.restart()
    assert node.published("samples_total") == {("resnet",): 4}


def test_counts_from_before_the_node_was_booted_are_dropped(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.runs = {"resnet"}
    node.tick()
    monkeypatch.setattr("stepscope.exporter.sampling.counted_run.boot_id", lambda: "another")
    node.restart()
    assert node.published("samples_total") == {}
    assert list(tmp_path.glob("state/*.samples")) == []
    node.tick()
    assert node.published("samples_total") == {("resnet",): 1}


def test_a_clock_that_was_ahead_does_not_keep_an_ended_run_for_long(node: Node) -> None:
    node.runs = {"resnet"}
    node.tick(seconds=365 * 86400)
    node.now -= 365 * 86400
    node.restart()
    node.runs = set()
    node.tick(seconds=299)
    assert node.published("samples_total") == {("resnet",): 1}
    node.tick(seconds=2)
    assert node.published("samples_total") == {}


@pytest.mark.parametrize(
    "state",
    [
        None,
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"run": "a", "last_sample": NaN, "pids": [], "gpus": []}',
        b'{"run": "a", "last_sample": 1, "pids": [1e999], "gpus": []}',
        b'{"run": "a", "last_sample": 1, "pids": 7, "gpus": []}',
        b'{"run": "a", "last_sample": 1, "pids": [], "gpus": ["0"]}',
        b"\xff",
    ],
)
def test_a_state_that_nobody_wrote_like_this_is_set_aside_and_that_is_said(
    node: Node, tmp_path: Path, state: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state" / "a.samples"
    if state is None:
        path.write_bytes(b"GIF89a")
    else:
        file = StateFile(path)
        file.write(state + b"\n" + b"\0" * 8)
        file.close()
    node.restart()
    assert node.published("samples_total") == {}
    (message,) = caplog.messages
    assert path.name in message
    assert state is not None or "not a state file" in message
    assert [path.name for path in tmp_path.glob("state/*")] == ["a.unusable"]


def test_above_the_limit_live_runs_go_first_and_none_that_is_counted_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    node = Node(tmp_path / "state", limit=2)
    node.runs = {"b", "c"}
    node.tick()
    node.runs = {"a", "b", "c"}
    node.tick()
    assert node.published("samples_total") == {("b",): 2, ("c",): 2}
    assert node.reached.families[1].samples == {("runs", "a", ""): 1}
    node.runs = {"a", "c"}  # b has ended, and makes room
    node.tick()
    assert node.published("samples_total") == {("a",): 1, ("c",): 3}
    assert len(list(tmp_path.glob("state/*.samples"))) == 2
    node.runs = {"a", "b", "c"}
    node.tick()
    assert node.published("samples_total") == {("a",): 2, ("c",): 4}


def test_the_run_of_the_flag_is_counted_whatever_the_limit() -> None:
    node = Node(None, run="told", limit=1)
    node.runs = {"a", "b"}
    for _ in range(2):
        node.tick()
    assert node.published("samples_total") == {("told",): 2}
