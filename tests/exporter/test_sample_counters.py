"""Sample counters of runs: kept over restarts, laid out anew for a new GPU, dropped after their run."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainwatch.sampling.sample import GpuSample, Sample
from trainwatch.sampling.sample_counters import SampleCounters

NOW = 1795181220.0  # 2026-11-20 13:27:00 UTC


class Node:
    """An exporter's counters; its life can be ended without a word, and another one begun."""

    def __init__(self, directory: Path | None, run: str | None = None) -> None:
        self.directory = directory
        self.run = run
        self.now = NOW
        self.runs: set[str] = set()
        self.begin()

    def begin(self) -> None:
        self.counters = SampleCounters(
            self.directory, lambda: self.runs, self.run, retention=300, now=self.now
        )

    def restart(self) -> None:
        self.counters.close()  # writes nothing: it only lets go of the directory, as the kernel would
        self.begin()

    def tick(self, *gpus: float, pids: tuple[int, ...] = (), seconds: float = 0.5) -> None:
        self.now += seconds
        samples = {
            str(index): GpuSample(utilization=value, memory_used_bytes=1.0, memory_total_bytes=4.0)
            for index, value in enumerate(gpus)
        }
        processes = dict.fromkeys(pids, "0")
        self.counters.count(
            Sample(self.now, cpu_utilization=[0.95], cpu_io_wait=[0.0], gpus=samples, gpu_processes=processes)
        )

    def published(self, name: str) -> dict[tuple[str, ...], object]:
        self.counters.publish()
        (family,) = (family for family in self.counters.families if family.name == f"trainwatch_{name}")
        return {**family.samples, **{key: sum(each.counts) for key, each in family.histograms.items()}}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "state")


def test_each_active_run_counts_every_sample(node: Node) -> None:
    node.tick()
    node.runs = {"a"}
    node.tick()
    node.runs = {"a", "b"}
    node.tick()
    assert node.published("samples_total") == {("a",): 2, ("b",): 1}


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


def test_a_run_without_gpus_has_no_starved_grid(node: Node) -> None:
    node.runs = {"resnet"}
    node.tick()
    assert node.published("gpu_starved_samples_total") == {}
    assert node.published("gpu_low_samples_total") == {}
    assert node.published("cpu_utilization_samples") == {("resnet",): 1}


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


def test_a_directory_that_cannot_be_made_is_said_and_counting_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    node = Node(tmp_path / "file" / "state", run="resnet")
    node.tick()
    node.tick()
    assert node.published("samples_total") == {("resnet",): 2}
    assert len(caplog.messages) == 1
    assert "will not survive a restart" in caplog.messages[0]


def test_a_file_that_cannot_be_written_is_said_once_and_counting_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path / "state", run="resnet")
    for entry in (tmp_path / "state").iterdir():
        entry.unlink()
    (tmp_path / "state").rmdir()
    for _ in range(3):
        node.tick()
    assert node.published("samples_total") == {("resnet",): 3}
    assert len(caplog.messages) == 1
    assert "cannot be kept" in caplog.messages[0]
