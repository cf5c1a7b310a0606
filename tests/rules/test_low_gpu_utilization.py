"""LowGPUUtilization: percentiles of the last window of each GPU."""

from typing import Any

import numpy as np
import pytest
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.runs.model import GpuFacts, NodeFacts

from tests.support.few_rules import judged
from tests.support.source import MemorySource, node_samples, run_facts

NAN = float("nan")


def result(gpu: Any, **parameters: float) -> RuleResult:
    held = {"gpu_compute_processes": np.ones(np.shape(gpu))}
    samples = node_samples(np.zeros((len(gpu), 1)), gpu, of_gpus=held)
    facts = run_facts(nodes=[NodeFacts("node-a", gpus=tuple(GpuFacts(name) for name in "0123"))])
    return judged("LowGPUUtilization", samples, facts=facts, **parameters)


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


@pytest.mark.parametrize(
    ("readings", "status"), [(999, "not enough data"), (1000, "not enough data"), (1001, "found")]
)
def test_patience_delays_the_first_decision(readings: int, status: str) -> None:
    found = result(np.zeros((readings, 1)))
    assert (found.status, found.triggered) == (status, status == "found")


def test_only_the_last_window_counts() -> None:
    gpu = np.ones((1200, 1))
    gpu[:700] = 0.0  # the last 500 readings at each of the two decisions are those from 580 and from 700 on
    found = result(gpu)
    assert found.details["node-a"]["GPU 0"]["fluctuating"] == 1
    assert found.triggered == found.violations == 1


def test_a_gpu_that_does_nothing_for_longer_than_a_window_is_named_with_this_time() -> None:
    busy, idle = np.full((1300, 1), 0.9), np.zeros((720, 1))
    assert "(mean utilisation 58 %, not used for up to 6 min)" in result(np.vstack([busy, idle])).finding
    for other in (np.vstack([busy, idle[:480]]), np.vstack([busy, mixed(1800, 0.9, 0.0, 0.5), idle])):
        assert "under-utilised" in result(other).finding
        assert "not used" not in result(other).finding


def test_a_window_longer_than_what_there_is_takes_all_there_is() -> None:
    assert result(np.zeros((30, 1)), patience=10, window=500).triggered == 1


def test_each_gpu_is_judged_alone_and_each_scan_of_each_gpu_counts() -> None:
    gpu = np.tile([1.0, 0.0, 0.2], (1200, 1))
    found = result(gpu)
    assert found.triggered == found.violations == 4  # two GPUs, two scans
    assert found.datapoints == 1200
    assert set(found.details["node-a"]) == {"GPU 1", "GPU 2"}
    assert "GPU 1 of node-a" in found.finding
    assert "GPU 2 of node-a" in found.finding


def test_missing_readings_are_left_out() -> None:
    gpu = np.full((2200, 1), NAN)
    gpu[::2] = 0.0
    found = result(gpu)
    assert (found.status, found.datapoints) == ("found", 1100)


def test_a_gpu_that_is_gone_is_not_judged_on_stale_readings() -> None:
    gpu = np.zeros((2400, 1))
    gpu[1200:] = NAN
    assert result(gpu).triggered == 2  # the ninth and the tenth minute; ten more bring nothing new


def test_without_a_gpu_it_is_not_judged_and_says_so() -> None:
    found = result(np.empty((2000, 0)))
    assert (found.status, found.finding) == ("not enough data", "No GPU's utilisation was read.")


def test_details_are_a_box_plot_in_percent_with_whiskers_inside_the_data() -> None:
    gpu = np.round(np.random.default_rng(1).beta(2, 5, (3000, 1)), 2)
    box = result(gpu).details["node-a"]["GPU 0"]
    for percent in (25, 50, 75, 95):
        assert box[f"p{percent}"] == pytest.approx(100 * np.percentile(gpu, percent), abs=0.01)
    assert box["gpu_95"] == pytest.approx(100 * np.percentile(gpu[-500:], 95), abs=1e-3)
    reach = 1.5 * (box["p75"] - box["p25"])
    assert box["upper"] == pytest.approx(min(box["p75"] + reach, 100 * gpu.max()), abs=1e-3)
    assert box["lower"] == pytest.approx(max(box["p25"] - reach, 100 * gpu.min()), abs=1e-3)
    assert box["gpu_max"] == pytest.approx(100 * gpu.max(), abs=1e-3)


def test_it_is_listed_after_the_cause_although_it_lost_more_time() -> None:
    samples = node_samples(np.ones((1500, 1)), np.tile([0.0, 0.3], (1500, 1)))
    rules = [found for found in evaluate(MemorySource(samples)).rules if found.status == "found"]
    assert [found.rule for found in rules] == ["CPUBottleneck", "LowGPUUtilization", "LoadBalancing"]
