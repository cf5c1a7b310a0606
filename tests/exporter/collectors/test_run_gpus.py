"""Which GPU belongs to which run: each kind of evidence, their order, and when there is none."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from stepscope.exporter.collectors.gpu import GpuCollector
from stepscope.exporter.collectors.run_gpus import KEPT_SECONDS, RunGpusCollector, visible_gpus
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.sampling.sample import GpuSample, GpuUse, RankProcess, RunSample, Sample

from tests.support.fake_nvml import FakeNvml
from tests.support.processes import ran
from tests.support.training_process import TrainingProcess

UUIDS = {gpu: f"GPU-{gpu}{gpu}aa-00" for gpu in "0123"} | {"3:1": "MIG-31aa-00"}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Node:
    """Four GPUs, one of them with a MIG device, and the collector on a fixture of /proc."""

    def __init__(self, procfs: Path) -> None:
        self.procfs = procfs
        self.clock = Clock()
        self.collector = RunGpusCollector(procfs, self.clock)
        self.on_gpus: dict[str, list[int]] = {}
        self.answering = list(UUIDS)
        self.lost: list[str] = []

    def strangers(self, *pids: int) -> None:
        for pid in pids:
            (self.procfs / str(pid)).mkdir()

    def gpus(self, **runs: list[RankProcess]) -> dict[str, dict[str, GpuUse]]:
        sample = Sample(
            time=0.0,
            gpus={
                **{gpu: GpuSample(uuid=UUIDS[gpu]) for gpu in self.answering},
                **{gpu: GpuSample(lost=1.0, uuid=UUIDS[gpu]) for gpu in self.lost},
            },
            gpu_processes={gpu: dict.fromkeys(self.on_gpus.get(gpu, ()), 1.0) for gpu in self.answering},
            runs={
                name: RunSample(processes, frozenset().union(*(each.pids for each in processes)))
                for name, processes in runs.items()
            },
        )
        self.collector.collect(sample)
        return {name: run.gpus for name, run in sample.runs.items()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def process(
    rank: int = 0,
    pid: int | None = None,
    children: tuple[int, ...] = (),
    devices: tuple[str, ...] = (),
    visible: str = "",
    local_rank: int | None = None,
    contained: bool = False,
) -> RankProcess:
    pids = frozenset(children if pid is None else (pid, *children))
    return RankProcess(pid, rank, local_rank, 1, 0, devices, visible, contained, pids)


def evidence(gpus: Mapping[str, GpuUse]) -> dict[str, str]:
    return {gpu: use.by for gpu, use in gpus.items()}


def test_each_of_two_runs_has_the_gpus_of_its_own_processes(node: Node) -> None:
    node.on_gpus = {"0": [11], "1": [13], "2": [20]}
    assert node.gpus(a=[process(0, 11), process(1, 12, (13,))], b=[process(0, 20)]) == {
        "a": {"0": GpuUse("processes", (0,)), "1": GpuUse("processes", (1,))},
        "b": {"2": GpuUse("processes", (0,))},
    }


def test_a_gpu_that_two_runs_share_belongs_to_both(node: Node) -> None:
    node.on_gpus = {"0": [11, 20]}
    found = node.gpus(a=[process(0, 11)], b=[process(0, 20)])
    assert {name: list(gpus) for name, gpus in found.items()} == {"a": ["0"], "b": ["0"]}


def test_processes_come_before_reported_devices_and_these_before_the_environment(node: Node) -> None:
    node.on_gpus = {"0": [11]}
    everything = process(0, 11, devices=(UUIDS["1"],), visible="2")
    assert node.gpus(a=[everything], b=[])["a"] == {"0": GpuUse("processes", (0,))}
    fresh = Node(node.procfs)
    assert fresh.gpus(a=[everything], b=[])["a"] == {"1": GpuUse("devices", (0,))}
    assert fresh.gpus(a=[process(0, 11, visible="2")], b=[])["a"] == {"2": GpuUse("environment", (0,))}


def test_each_rank_has_its_own_best_evidence(node: Node) -> None:
    node.on_gpus = {"0": [11]}
    ranks = [process(0, 11), process(1, devices=(UUIDS["3:1"],)), process(2, visible="0,1,2", local_rank=2)]
    assert node.gpus(a=ranks, b=[])["a"] == {
        "0": GpuUse("processes", (0,)),
        "3:1": GpuUse("devices", (1,)),
        "2": GpuUse("environment", (2,)),
    }


def test_a_run_without_evidence_beside_another_has_no_gpu(node: Node) -> None:
    node.on_gpus = {"0": [11]}
    assert node.gpus(a=[process(0, 11)], b=[process(0, 20)])["b"] == {}


def test_a_single_run_without_contrary_evidence_keeps_the_whole_node(node: Node) -> None:
    assert node.gpus(a=[process(0, 11)]) == {"a": dict.fromkeys(UUIDS, GpuUse("node"))}


def test_a_process_of_somebody_else_on_a_gpu_is_contrary_evidence(node: Node) -> None:
    node.on_gpus = {"3": [77]}
    assert set(node.gpus(a=[process(0, 11)])["a"]) == set(UUIDS)  # out of sight: it may be the run's own
    node.strangers(77)
    assert node.gpus(a=[process(0, 11)])["a"] == {}


def test_a_process_that_proc_hides_is_somebody_else_s_unless_a_rank_is_hidden_too(node: Node) -> None:
    node.strangers(11)
    (node.procfs / "self").symlink_to("11")  # of the user of the run; there is no process 1
    node.on_gpus = {"3": [77]}
    assert node.gpus(a=[process(0, 11)])["a"] == {}
    assert set(node.gpus(a=[process(0, 11), process(1)])["a"]) == set(UUIDS)


def test_two_jobs_whose_gpus_are_numbered_from_0_have_no_evidence(node: Node) -> None:
    claims = {name: [process(0, pid, visible="0")] for name, pid in (("a", 11), ("b", 20))}
    assert node.gpus(**claims) == {"a": {}, "b": {}}
    by_uuid = process(0, 20, visible=UUIDS["1"])
    assert evidence(node.gpus(a=claims["a"], b=[by_uuid])["b"]) == {"1": "environment"}


def test_the_environment_does_not_claim_a_gpu_that_others_use(node: Node) -> None:
    node.strangers(77)
    node.on_gpus = {"0": [77], "1": [20]}
    assert node.gpus(a=[process(0, 11, visible="0,1")], b=[process(0, 20)])["a"] == {}


def test_a_gpu_stays_with_its_run_for_a_minute_without_a_process(node: Node) -> None:
    node.on_gpus = {"0": [11]}
    node.gpus(a=[process(0, 11)])
    node.on_gpus = {}
    node.clock.now += KEPT_SECONDS - 1
    assert evidence(node.gpus(a=[process(0, 12)])["a"]) == {"0": "processes"}
    node.clock.now += 1
    assert set(evidence(node.gpus(a=[process(0, 12)])["a"]).values()) == {"node"}


def test_a_gpu_that_somebody_else_took_over_leaves_its_run_at_once(node: Node) -> None:
    node.strangers(77)
    node.on_gpus = {"0": [11]}
    node.gpus(a=[process(0, 11)])
    node.on_gpus = {"0": [77]}
    assert node.gpus(a=[process(0, 11)])["a"] == {}


def test_a_gpu_that_does_not_answer_stays_with_its_run(node: Node) -> None:
    node.on_gpus = {"0": [11], "1": [20]}
    runs = {"a": [process(0, 11)], "b": [process(0, 20)]}
    before = node.gpus(**runs)
    node.answering, node.on_gpus = ["1"], {"1": [20]}
    node.clock.now += 2 * KEPT_SECONDS
    assert node.gpus(**runs) == before
    node.lost = ["0"]
    assert node.gpus(**runs) == before
    node.answering = []
    assert node.gpus(**runs) == before


def test_a_run_whose_only_gpu_is_lost_does_not_get_those_of_the_node(node: Node) -> None:
    node.on_gpus = {"0": [11]}
    before = node.gpus(a=[process(0, 11)])
    node.answering, node.lost, node.on_gpus = ["1", "2"], ["0"], {}
    for _ in range(3):
        node.clock.now += 2 * KEPT_SECONDS
        assert node.gpus(a=[process(0, 11)]) == before


@pytest.mark.parametrize(
    ("visible", "local_rank", "expected"),
    [
        ("", None, []),
        ("-1", None, []),
        ("2", None, ["2"]),
        ("2,0", None, ["2", "0"]),
        ("2,0", 1, ["0"]),
        ("2", 3, ["2"]),  # the launcher limits each rank to its own
        ("2,0", 3, []),
        ("0, 1", 1, ["1"]),
        ("1,9,0", None, ["1"]),  # as in CUDA: what follows an unknown GPU is not visible
        ("1,²,0", None, ["1"]),
        ("GPU-1", None, ["1"]),
        ("GPU-22AA-00", None, ["2"]),
        ("MIG-31aa-00", None, ["3:1"]),
        ("GPU-", None, []),  # several begin so
    ],
)
def test_the_gpus_that_cuda_visible_devices_leaves(
    visible: str, local_rank: int | None, expected: list[str]
) -> None:
    labels = {uuid[4:].lower(): gpu for gpu, uuid in UUIDS.items()}
    assert visible_gpus(process(visible=visible, local_rank=local_rank), labels, UUIDS) == expected


def test_an_index_in_a_container_names_no_gpu_of_the_node() -> None:
    labels = {uuid[4:].lower(): gpu for gpu, uuid in UUIDS.items()}
    assert visible_gpus(process(visible="0", contained=True), labels, UUIDS) == []
    assert visible_gpus(process(visible=UUIDS["2"], contained=True), labels, UUIDS) == ["2"]


def test_real_processes_on_gpus_of_the_fake_nvml(tmp_path: Path) -> None:
    """A child of the training process is on GPU 1, and a process of nobody's run on GPU 2."""
    nvml = FakeNvml(tmp_path / "nvml", gpus=3)
    gpus, training, uses = (
        GpuCollector(nvml.library, longest_patience=300),
        TrainingCollector(tmp_path / "ledgers"),
        RunGpusCollector(),
    )
    with TrainingProcess(tmp_path / "ledgers") as trainer:
        trainer.do("stepscope.start()")
        trainer.do(
            "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'],"
            " stdin=subprocess.PIPE)"
        )
        children = ran(["ps", "-o", "pid=", "--ppid", str(trainer.process.pid)], check=True)
        nvml.run_processes(0, trainer.process.pid)
        nvml.run_processes(1, int(children.stdout))
        nvml.run_processes(2, os.getpid())
        sample = Sample(time=time.time(), interval=600)
        for collector in (gpus, training, uses):
            collector.collect(sample)
        trainer.do("child.communicate()")
    gpus.close()
    (run,) = sample.runs.values()
    assert run.gpus == {"0": GpuUse("processes", (0,)), "1": GpuUse("processes", (0,))}
