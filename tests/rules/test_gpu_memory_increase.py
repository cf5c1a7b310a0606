"""GPUMemoryIncrease: memory that rises within a minute and stays above all that it was before."""

from typing import Any

import numpy as np
import pytest
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate

from tests.support.few_rules import judged, only
from tests.support.smallest import smallest
from tests.support.source import MemorySource, node_samples
from tests.support.stationary_memory import KINDS, ROWS, stationary

NAN = float("nan")
MINUTE = 120  # rows
TUNED_WITH, HELD_BACK = range(100), range(1000, 1100)  # seeds of stationary runs


def results(memory: Any, *rules: str, **parameters: float) -> list[RuleResult]:
    values = np.asarray(memory, np.float32).reshape(len(memory), -1)
    samples = node_samples(np.zeros((len(values), 1)), np.zeros_like(values), gpu_memory=values)
    settings = only("GPUMemoryIncrease", "GPUMemoryLeak").parse(
        [f"GPUMemoryIncrease.{name}={value}" for name, value in parameters.items()]
    )
    found = {one.rule: one for one in evaluate(MemorySource(samples), settings).rules}
    return [found[rule] for rule in rules]


def result(memory: Any, **parameters: float) -> RuleResult:
    return results(memory, "GPUMemoryIncrease", **parameters)[0]


def step_up(rise: float, at: int = 1100, rows: int = 1700, level: float = 0.5) -> np.ndarray:
    values = np.full(rows, level)
    values[at:] += rise
    return values


@pytest.mark.parametrize(
    ("rise", "status"),
    [(0.0, "healthy"), (0.049, "healthy"), (0.05, "healthy"), (0.051, "found"), (0.4, "found")],
)
def test_it_fires_above_5_points_and_not_at_5(rise: float, status: str) -> None:
    assert result(step_up(rise)).status == status


@pytest.mark.parametrize("level", [0.1, 1 / 3, 0.55, 0.9])
def test_memory_that_stays_as_it_is_rises_by_nothing(level: float) -> None:
    found = result(np.full(5000, level), increase=0)
    assert (found.status, found.violations) == ("healthy", 0)


@pytest.mark.parametrize("at", [700, 1250, 1690])
@pytest.mark.parametrize(("rise", "status"), [(0.0, "healthy"), (0.4, "found")])
def test_a_rise_is_found_although_the_clock_was_set_back(at: int, rise: float, status: str) -> None:
    samples = node_samples(np.zeros((1700, 1)), np.zeros((1700, 1)), gpu_memory=step_up(rise)[:, None])
    samples.times[at:] -= 3600
    assert judged("GPUMemoryIncrease", samples).status == status


def test_memory_that_falls_does_not_rise() -> None:
    assert result(step_up(-0.4, level=0.9)).status == "healthy"


def test_growth_that_no_two_neighbouring_averages_show_is_found() -> None:
    """Six points in a minute, 0.05 at a time; a second run grows as much in two minutes."""
    fast, slow = (np.interp(np.arange(2000), [1100, 1100 + length], [0.4, 0.46]) for length in (110, 240))
    assert result(fast).status == "found"
    assert result(slow).status == "healthy"
    assert result(slow, horizon=2).status == "found"


def test_growth_that_does_not_stop_is_found() -> None:
    growing = 0.1 + np.arange(1800) * 0.06 / MINUTE
    assert result(growing).status == "found"
    assert result(0.1 + np.arange(1800) * 0.049 / MINUTE).status == "healthy"


@pytest.mark.parametrize(("lasts", "status"), [(359, "healthy"), (371, "found")])
def test_a_rise_counts_once_it_has_lasted(lasts: int, status: str) -> None:
    """3 minutes and the 5 seconds of a moving average."""
    values = np.full(3000, 0.5)
    values[1500 : 1500 + lasts] = 0.6
    assert result(values).status == status
    assert result(values, hold=0).status == "found"


def test_memory_that_was_as_high_before_does_not_rise() -> None:
    """A spike of the first minutes counts for an hour."""
    spike = step_up(0.3, at=9000, rows=10_000)
    spike[500:600] = 0.8
    assert result(spike).status == "found"  # more than an hour ago
    assert result(spike, baseline=90).status == "healthy"
    spike[2000:2100] = 0.8
    assert result(spike).status == "healthy"


@pytest.mark.parametrize(
    ("high", "status"), [(5, "healthy"), (6, "found")]
)  # of ten readings, five raise the average by half of the rise: exactly the threshold
def test_the_average_of_the_window_counts_not_a_single_reading(high: int, status: str) -> None:
    values = np.full(1300, 0.5)
    values[1200 : 1200 + high] = 0.6
    assert result(values, hold=0).status == status


@pytest.mark.parametrize(
    ("readings", "status"), [(1480, "not enough data"), (1481, "found"), (1482, "found")]
)
def test_patience_is_for_the_readings_before_the_rise(readings: int, status: str) -> None:
    """1001 readings, a minute in which memory rises, and 3 minutes in which it stays."""
    assert result(step_up(0.3, at=1050, rows=readings)).status == status


def test_a_warm_up_is_no_rise() -> None:
    """The memory of the first readings is not compared with anything before."""
    assert result(step_up(0.3, at=950, rows=3000)).status == "healthy"


def test_debuggers_counts_are_of_all_rises_above_the_lowest_average_of_the_horizon() -> None:
    """From three of ten readings that rose by 20 points, until seven of ten had risen a minute before."""
    found = result(step_up(0.2, at=1080, rows=1560))
    assert found.violations == 120 + 5
    assert (found.debugger_triggered, found.triggered) == (2, 1)
    assert found.datapoints == 1560
    again = np.full(3000, 0.5)
    again[1400:1500] = again[2000:2100] = 0.6
    swings = result(again)
    assert (swings.status, swings.triggered) == ("healthy", 0)
    assert swings.debugger_triggered == 4
    assert swings.violations > 150


def test_each_gpu_is_followed_alone() -> None:
    memory = np.stack([np.full(1700, 0.99), step_up(0.2), np.full(1700, 0.01)], axis=1)
    found = result(memory)
    assert list(found.details["node-a"]) == ["GPU 1"]
    assert found.finding == (
        "The used memory of GPU 1 of node-a rose by 20.0 points within 1 min, beyond all that it was in the "
        "60 min before, and stayed there for 3 min: from at most 50 % to at least 70 %. It reached 70 %."
    )


def test_missing_readings_are_left_out() -> None:
    values = np.full(3400, NAN)
    values[::2] = step_up(0.2)
    found = result(values)
    assert (found.status, found.datapoints) == ("found", 1700)
    assert result(np.full(2000, NAN)).finding == "No GPU's memory was read."


def test_a_gap_changes_nothing() -> None:
    values = step_up(0.3, at=1400, rows=2200)
    values[1390:1510] = NAN
    assert result(values).status == "found"
    flat = np.full(2200, 0.5)
    flat[1390:1510] = NAN
    assert result(flat, increase=0).status == "healthy"


@pytest.mark.parametrize("seeds", smallest([HELD_BACK, TUNED_WITH], [0]), ids=["held back", "tuned with"])
def test_memory_that_does_not_grow_alarms_in_at_most_1_of_100_runs(seeds: range) -> None:
    runs = stationary(seeds)
    increase, leak = results(runs, "GPUMemoryIncrease", "GPUMemoryLeak")
    assert increase.debugger_triggered is not None
    assert increase.debugger_triggered > 100  # they do rise within a minute
    rises = {
        gpu: found["lasting_increase"]
        for gpu, found in increase.details["node-a"].items()
        if found["lasting_increase"] > 5
    }
    assert len(rises) <= 1, rises
    assert [gpu["gpu"] for gpu in leak.details["gpus"] if gpu["triggered"]] == []


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_rise_beyond_the_variation_of_such_memory_is_found(kind: str) -> None:
    """20 points more than its highest value, from the middle of the run on."""
    memory = stationary([list(KINDS).index(kind)])[:, 0].astype(float)
    shrunken = 0.5 * memory
    shrunken[ROWS // 2 :] += shrunken.max() - shrunken[ROWS // 2 :].min() + 0.1
    assert result(shrunken).status == "found"


def test_it_claims_no_seconds_and_gives_a_box_plot() -> None:
    values = np.round(np.random.default_rng(1).beta(5, 5, 3000), 2)
    found = result(values)
    box = found.details["node-a"]["GPU 0"]
    assert found.seconds_lost == 0
    assert set(box) >= {"increase", "gpu_max", "p05", "p25", "p50", "p75", "p95", "upper", "lower"}
    assert box["p05"] == pytest.approx(100 * np.percentile(values, 5), abs=0.01)
    assert box["gpu_max"] == pytest.approx(100 * values.max(), abs=1e-3)
    assert box["increase"] > 5
