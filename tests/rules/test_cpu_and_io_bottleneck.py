"""CPUBottleneck and IOBottleneck: thresholds, patience, missing readings, Debugger's published run."""

from typing import Any

import numpy as np
import pytest
from stepscope.evaluation.engine import evaluate
from stepscope.runs.model import NodeSamples

from tests.support.few_rules import judged
from tests.support.source import MemorySource, node_samples

BOTH = pytest.mark.parametrize("rule", ["CPUBottleneck", "IOBottleneck"])
CORE_LIMIT = {"CPUBottleneck": 0.9, "IOBottleneck": 0.5}
NAN = float("nan")


def sampled(rule: str, cores: Any, gpus: Any, **more: Any) -> NodeSamples:
    """`cores` are of the reading that the rule looks at."""
    if rule == "CPUBottleneck":
        return node_samples(cores, gpus, **more)
    return node_samples(np.zeros_like(cores), gpus, io_wait=cores, **more)


@BOTH
def test_one_pinned_core_of_192_and_one_idle_gpu_of_8_is_a_bottleneck(rule: str) -> None:
    cores, gpus = np.zeros((1001, 192)), np.ones((1001, 8))
    cores[:, 77], gpus[:, 5] = 1.0, 0.0
    found = judged(rule, sampled(rule, cores, gpus))
    assert (found.status, found.violations, found.datapoints) == ("found", 1001, 1001)
    assert all(counts == {"GPUs": 1, "CPUs": 1} for counts in found.details["bottlenecks"].values())


@BOTH
@pytest.mark.parametrize(
    ("core", "gpu", "concerned"),
    [
        (+0.01, -0.01, True),
        (0.0, -0.01, False),  # a core exactly at its threshold
        (-0.01, -0.01, False),
        (+0.01, 0.0, False),  # a GPU exactly at its threshold
        (+0.01, +0.01, False),
    ],
)
def test_a_sample_counts_only_strictly_beyond_both_thresholds(
    rule: str, core: float, gpu: float, concerned: bool
) -> None:
    rows = 20
    cores = np.full((rows, 2), CORE_LIMIT[rule] + core)
    found = judged(rule, sampled(rule, cores, np.full((rows, 1), 0.1 + gpu)), patience=0)
    assert found.violations == (rows if concerned else 0)


@BOTH
def test_a_core_and_a_gpu_must_be_beyond_their_thresholds_in_the_same_sample(rule: str) -> None:
    cores, gpus = np.zeros((100, 1)), np.ones((100, 1))
    cores[::2], gpus[1::2] = 1.0, 0.0
    assert judged(rule, sampled(rule, cores, gpus), patience=0).violations == 0


@BOTH
@pytest.mark.parametrize(("concerned", "status"), [(49, "healthy"), (50, "healthy"), (51, "found")])
def test_it_fires_above_the_threshold_and_not_at_it(rule: str, concerned: int, status: str) -> None:
    gpus = np.ones((100, 1))
    gpus[:concerned] = 0.0
    # All samples lie in one scan: what the first of them are like does not matter.
    found = judged(rule, sampled(rule, np.ones((100, 1)), gpus), patience=99)
    assert found.status == status


@BOTH
@pytest.mark.parametrize(
    ("count", "status"), [(999, "not enough data"), (1000, "not enough data"), (1001, "found")]
)
def test_patience_delays_the_first_decision(rule: str, count: int, status: str) -> None:
    gpus = np.ones((count, 1))
    gpus[: int(0.55 * count)] = 0.0  # not so clear that few samples suffice
    found = judged(rule, sampled(rule, np.ones((count, 1)), gpus))
    assert found.status == status
    assert found.violations == int(0.55 * count)  # it skips nothing
    assert found.triggered == (status == "found")
    if status == "not enough data":
        assert f"{count}" in found.finding
        assert "1000" in found.finding


@BOTH
def test_samples_before_the_first_decision_count_as_all_others_do(rule: str) -> None:
    gpus = np.ones((1200, 1))
    gpus[:700] = 0.0
    found = judged(rule, sampled(rule, np.ones((1200, 1)), gpus))
    # Scans end each 120 samples; those with more than 1000 are the ninth (1080: 64.8 %) and the tenth.
    assert (found.triggered, found.violations) == (2, 700)


@BOTH
def test_a_gpu_at_100_percent_beside_one_at_0_percent_is_a_bottleneck(rule: str) -> None:
    found = judged(rule, sampled(rule, np.ones((10, 1)), np.tile([1.0, 0.0], (10, 1))), patience=0)
    assert found.violations == 10


@BOTH
def test_a_missing_reading_is_neither_high_nor_low(rule: str) -> None:
    cores = np.array([[NAN, 1.0], [NAN, NAN], [1.0, NAN], [1.0, 1.0]])
    gpus = np.array([[0.0, NAN], [0.0, 0.0], [NAN, NAN], [1.0, NAN]])
    found = judged(rule, sampled(rule, cores, gpus), patience=0)
    assert (found.violations, found.datapoints) == (1, 4)


@BOTH
@pytest.mark.parametrize("gpus", [np.empty((2000, 0)), np.full((2000, 2), NAN)])
def test_without_a_gpu_it_is_not_judged_and_says_so(rule: str, gpus: np.ndarray) -> None:
    found = judged(rule, sampled(rule, np.ones((2000, 1)), gpus))
    assert (found.status, found.triggered) == ("not enough data", 0)
    assert "No GPU" in found.finding


@BOTH
def test_without_cores_it_is_not_judged_and_says_so(rule: str) -> None:
    found = judged(rule, sampled(rule, np.full((2000, 2), NAN), np.zeros((2000, 1))))
    assert found.status == "not enough data"
    assert "of the cores could not be read" in found.finding


@BOTH
def test_an_empty_run_is_not_judged(rule: str) -> None:
    found = judged(rule)
    assert (found.status, found.finding) == ("not enough data", "No sample was taken.")


def test_debuggers_published_run_fires_at_70_52_percent() -> None:
    """3,019 samples of which 2,129 were bottlenecks: 70.52 %, printed as 70.5 %."""
    cores, gpus = np.full((3019, 8), 0.14), np.full((3019, 1), 0.6)
    concerned = np.random.default_rng(2129).permutation(3019)[:2129]
    cores[concerned, 3], gpus[concerned] = 0.97, 0.04
    found = judged("CPUBottleneck", node_samples(cores, gpus))
    assert (found.status, found.violations, found.datapoints) == ("found", 2129, 3019)
    assert round(100 * found.violations / found.datapoints, 2) == 70.52
    assert "70.5 %" in found.finding
    assert found.seconds_lost == 2129 * 0.5


def test_a_mean_cpu_p95_of_24_percent_with_one_core_pinned_is_still_a_bottleneck() -> None:
    cores = np.tile([1.0, 0.13, 0.13, 0.13, 0.13, 0.13, 0.13, 0.14], (1500, 1))
    samples = node_samples(cores, np.zeros((1500, 1)))
    analysis = evaluate(MemorySource(samples))
    usage = next(row for row in analysis.usage if row.resource == "CPU")
    assert usage.p95 == pytest.approx(24, abs=0.01)
    assert analysis.rules[0].rule == "CPUBottleneck"
    assert analysis.rules[0].status == "found"


@BOTH
def test_nodes_are_never_mixed_into_one_sample(rule: str) -> None:
    """The core of one node is pinned while the GPU of the other idles: no bottleneck of either."""
    pinned = sampled(rule, np.ones((50, 1)), np.ones((50, 1)), node="node-a")
    idle = sampled(rule, np.zeros((50, 1)), np.zeros((50, 1)), node="node-b")
    found = judged(rule, pinned, idle, patience=0)
    assert (found.status, found.violations, found.datapoints) == ("healthy", 0, 100)


@BOTH
def test_the_share_is_of_the_samples_of_one_node(rule: str) -> None:
    starved = sampled(rule, np.ones((60, 1)), np.zeros((60, 1)), node="starved")
    healthy = sampled(rule, np.ones((600, 1)), np.ones((600, 1)), node="healthy")
    found = judged(rule, healthy, starved, patience=0)
    assert found.status == "found"
    assert found.details["nodes"]["starved"]["triggered"] == 1
    assert found.details["nodes"]["healthy"]["triggered"] == 0
    assert found.finding.startswith("On starved,")


@BOTH
def test_the_list_of_samples_is_bounded_and_the_count_is_not(rule: str) -> None:
    found = judged(rule, sampled(rule, np.ones((12_000, 1)), np.zeros((12_000, 1))))
    assert found.violations == 12_000
    assert len(found.details["bottlenecks"]) == 10_000
