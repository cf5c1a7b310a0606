"""Who holds a GPU, and for how long without work."""

import os
from collections.abc import Mapping
from math import nan
from pathlib import Path

from stepscope.common.users import user_name
from stepscope.exporter.collectors.gpu_holders import LONGEST_GAP, GpuHoldersCollector
from stepscope.exporter.sampling.sample import GpuSample, RunSample, Sample

ME = user_name(os.getuid())


class Node:
    def __init__(self, procfs: Path) -> None:
        self.now = 0.0
        self.collector = GpuHoldersCollector(procfs, lambda: self.now)
        for pid in (7, 8):
            (procfs / str(pid)).mkdir()

    def tick(
        self, load: float, processes: Mapping[int, float], seconds: float = 0.5, run: RunSample | None = None
    ) -> dict[tuple[str, ...], float]:
        self.now += seconds
        sample = Sample(time=0.0, gpus={"0": GpuSample(load)}, gpu_processes={"0": dict(processes)})
        sample.runs = {"resnet-1": run} if run else {}
        self.collector.collect(sample)
        return dict(self.collector.families[0].samples)


def test_time_without_work_adds_up_until_the_next_work(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.tick(0.5, {7: 1e9}) == {("0", "", ME, "7"): 0.0}
    for _ in range(3):
        node.tick(0.0, {7: 1e9})
    assert node.tick(0.0, {7: 1e9}) == {("0", "", ME, "7"): 2.0}
    assert node.tick(0.01, {7: 1e9}) == {("0", "", ME, "7"): 0.0}


def test_the_holder_is_the_process_with_the_most_memory_and_belongs_to_its_run(tmp_path: Path) -> None:
    node = Node(tmp_path)
    run = RunSample(pids=frozenset({8}))
    assert node.tick(0.0, {7: 1e9, 8: 2e9}, run=run) == {("0", "resnet-1", ME, "8"): 0.0}
    assert node.tick(0.0, {7: 9e9, 8: 2e9}, run=run) == {("0", "resnet-1", ME, "8"): 0.5}


def test_another_holder_begins_at_zero_and_nobody_has_no_series(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tick(0.0, {7: 1e9})
    node.tick(0.0, {7: 1e9})
    assert node.tick(0.0, {8: 1e9}) == {("0", "", ME, "8"): 0.0}
    assert node.tick(0.0, {}) == {}
    assert node.tick(0.0, {8: nan}) == {("0", "", ME, "8"): 0.0}


def test_a_gpu_that_a_limit_leaves_out_is_no_error(tmp_path: Path) -> None:
    collector = Node(tmp_path).collector
    collector.collect(Sample(0.0, gpus={"0": GpuSample(0.5)}, gpu_processes={"0": {7: 1e9}, "1": {8: 1e9}}))
    assert list(collector.families[0].samples) == [("0", "", ME, "7")]
    assert collector.apart.lost == 0


def test_a_process_out_of_sight_is_named_by_its_pid_alone(tmp_path: Path) -> None:
    assert Node(tmp_path).tick(0.0, {4711: nan}) == {("0", "", "", "4711"): 0.0}


def test_time_that_nobody_saw_does_not_count(tmp_path: Path) -> None:
    """A suspended machine, and a GPU whose utilisation could not be read."""
    node = Node(tmp_path)
    node.tick(0.0, {7: 1e9})
    assert node.tick(0.0, {7: 1e9}, seconds=3600.0) == {("0", "", ME, "7"): LONGEST_GAP}
    assert node.tick(nan, {7: 1e9}) == {}
    assert node.tick(0.0, {7: 1e9}) == {("0", "", ME, "7"): LONGEST_GAP + 0.5}
