"""LowGPUUtilization: percentiles of the last window of each GPU; and what holds for BatchSize, too."""

from typing import Any

import numpy as np
import pytest
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.runs.model import GpuFacts, NodeFacts

from tests.support.few_rules import judged
from tests.support.source import MemorySource, node_samples, run_facts

NAN = float("nan")


def result(gpu: Any, rule: str = "LowGPUUtilization", **parameters: float) -> RuleResult:
    held = {"gpu_compute_processes": np.ones(np.shape(gpu))}
    samples = node_samples(np.zeros((len(gpu), 1)), gpu, gpu_memory=np.full(np.shape(gpu), 0.3), of_gpus=held)
    facts = run_facts(nodes=[NodeFacts("node-a", gpus=tuple(GpuFacts(name) for name in "0123"))])
    return judged(rule, samples, facts=facts, **parameters)


BOTH = pytest.mark.parametrize("rule", ["LowGPUUtilization", "BatchSize"])


@BOTH
@pytest.mark.parametrize(
    ("readings", "status"), [(999, "not enough data"), (1000, "not enough data"), (1001, "found")]
)
def test_patience_delays_the_first_decision(rule: str, readings: int, status: str) -> None:
    found = result(np.zeros((readings, 1)), rule)
    assert (found.status, found.triggered) == (status, status == "found")
    if status == "not enough data":
        assert str(readings) in found.finding


@BOTH
def test_only_the_last_window_counts(rule: str) -> None:
    gpu = np.full((1200, 1), 0.2)
    gpu[:700] = 1.0  # the windows of the two scans that decide begin with readings 580 and 700
    found = result(gpu, rule)
    assert (found.triggered, found.violations) == (1, 1)
    if rule == "LowGPUUtilization":
        gpu[:700], gpu[700:] = 0.0, 1.0
        assert result(gpu).details["node-a"]["GPU 0"]["fluctuating"] == 1


@BOTH
def test_each_gpu_and_scan_counts_and_a_busy_gpu_beside_them_changes_nothing(rule: str) -> None:
    found = result(np.tile([0.2, 1.0, 0.3], (1200, 1)), rule)
    assert found.triggered == found.violations == 4  # two GPUs, two scans
    assert found.datapoints == 1200
    more = {"cpu", "GPU 0_memory", "GPU 2_memory"} if rule == "BatchSize" else set()
    assert set(found.details["node-a"]) == {"GPU 0", "GPU 2"} | more
    assert "GPU 0 of node-a" in found.finding
    assert ("GPU 2 of node-a" in found.finding) == (rule == "LowGPUUtilization")


@BOTH
def test_a_gpu_that_is_gone_is_not_judged_on_stale_readings(rule: str) -> None:
    gpu = np.zeros((2400, 1))
    gpu[1200:] = NAN
    assert result(gpu, rule).triggered == 2  # the ninth and the tenth minute; ten more bring nothing new


@pytest.mark.parametrize(
    ("rule", "datapoints", "finding"),
    [
        ("LowGPUUtilization", 0, "No GPU's utilisation was read."),
        ("BatchSize", 2000, "No GPU was read together with its memory and the cores."),
    ],
)
def test_without_a_gpu_it_is_not_judged_and_says_so(rule: str, datapoints: int, finding: str) -> None:
    found = result(np.empty((2000, 0)), rule)
    assert (found.status, found.datapoints, found.finding) == ("not enough data", datapoints, finding)


def mixed(rows: int, high: float, low: float, share_low: float) -> np.ndarray:
    """Readings of two kinds, evenly mixed."""
    return np.where(np.arange(rows) % 100 < 100 * share_low, low, high).reshape(rows, 1)


@pytest.mark.parametrize(
    ("level", "status"),
    [(0.69, "found"), (0.70, "healthy"), (0.71, "healthy"), (0.0, "found"), (1.0, "healthy")],
)
def test_a_gpu_below_70_percent_is_under_utilised_and_at_70_it_is_not(level: float, status: str) -> None:
    found = result(np.full((1001, 1), level))
    assert found.status == status
    assert ("under-utilised" in found.finding) == (status == "found")


@pytest.mark.parametrize(
    ("low", "share", "status"),
    [
        (0.0, 0.06, "found"),  # the 5th percentile lies among the idle readings
        (0.0, 0.04, "healthy"),  # and here above them
        (0.09, 0.06, "found"),
        (0.10, 0.06, "healthy"),  # exactly at the threshold
        (0.11, 0.06, "healthy"),
    ],
)
def test_a_busy_gpu_that_is_idle_at_times_fluctuates(low: float, share: float, status: str) -> None:
    found = result(mixed(1100, 0.95, low, share))
    assert found.status == status
    assert ("fluctuating" in found.finding) == (status == "found")


@pytest.mark.parametrize(("share", "bands"), [(0.06, 0), (0.14, 0), (0.20, 1)])
def test_bands_of_fluctuation_need_more_idle_samples_than_the_whole_run(share: float, bands: int) -> None:
    found = result(mixed(1100, 0.95, 0.0, share))
    assert (found.status, len(found.bands)) == ("found", bands)


def test_a_gpu_exactly_at_the_p95_threshold_neither_idles_nor_fluctuates() -> None:
    assert result(mixed(1100, 0.70, 0.0, 0.5)).status == "healthy"


def test_a_gpu_that_does_nothing_for_longer_than_a_window_is_named_with_this_time() -> None:
    busy, idle = np.full((1300, 1), 0.9), np.zeros((720, 1))
    assert "(mean utilisation 58 %, not used for up to 6 min)" in result(np.vstack([busy, idle])).finding
    for other in (np.vstack([busy, idle[:480]]), np.vstack([busy, mixed(1800, 0.9, 0.0, 0.5), idle])):
        assert "under-utilised" in result(other).finding
        assert "not used" not in result(other).finding


def test_a_window_longer_than_what_there_is_takes_all_there_is() -> None:
    assert result(np.zeros((30, 1)), patience=10, window=500).triggered == 1


def test_missing_readings_are_left_out() -> None:
    gpu = np.full((2200, 1), NAN)
    gpu[::2] = 0.0
    found = result(gpu)
    assert (found.status, found.datapoints) == ("found", 1100)


def test_details_are_a_box_plot_in_percent_with_whiskers_inside_the_data() -> None:
    gpu = np.round(np.random.default_rng(1).beta(2, 5, (3000, 1)), 2)
    box = result(gpu).details["node-a"]["GPU 0"]
    assert_box_plot(box, gpu)
    assert box["gpu_95"] == pytest.approx(100 * np.percentile(gpu[-500:], 95), abs=1e-3)
    assert box["gpu_max"] == pytest.approx(100 * gpu.max(), abs=1e-3)


def assert_box_plot(box: dict[str, float], values: np.ndarray) -> None:
    for percent in (25, 50, 75, 95):
        assert box[f"p{percent}"] == pytest.approx(100 * np.percentile(values, percent), abs=0.01)
    reach = 1.5 * (box["p75"] - box["p25"])
    assert box["upper"] == pytest.approx(min(box["p75"] + reach, 100 * values.max()), abs=1e-3)
    assert box["lower"] == pytest.approx(max(box["p25"] - reach, 100 * values.min()), abs=1e-3)


def test_it_is_listed_after_the_cause_although_it_lost_more_time() -> None:
    samples = node_samples(np.ones((1500, 1)), np.tile([0.0, 0.3], (1500, 1)))
    rules = [found for found in evaluate(MemorySource(samples)).rules if found.status == "found"]
    assert [found.rule for found in rules] == ["CPUBottleneck", "LowGPUUtilization", "LoadBalancing"]
