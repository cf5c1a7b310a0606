"""GPUMemoryIncrease: the moving average of used memory against the lowest of the last minute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trainwatch.evaluation.analysis import RuleResult
from trainwatch.evaluation.engine import evaluate
from trainwatch.evaluation.settings import Settings

from tests.support.source import MemorySource, node_samples

NAN = float("nan")


def result(memory: Any, **parameters: float) -> RuleResult:
    values = np.asarray(memory, np.float32).reshape(len(memory), -1)
    samples = node_samples(np.zeros((len(values), 1)), np.zeros_like(values), gpu_memory=values)
    settings = Settings.parse([f"GPUMemoryIncrease.{name}={value}" for name, value in parameters.items()])
    return next(
        one for one in evaluate(MemorySource(samples), settings).rules if one.rule == "GPUMemoryIncrease"
    )


def step_up(rise: float, at: int = 1100, rows: int = 1300, level: float = 0.5) -> np.ndarray:
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


def test_memory_that_falls_does_not_rise() -> None:
    assert result(step_up(-0.4, level=0.9)).status == "healthy"


def test_growth_that_no_two_neighbouring_averages_show_is_found() -> None:
    """Six points in a minute, 0.05 at a time; a second run grows as much in two minutes."""
    fast, slow = (np.interp(np.arange(2000), [1100, 1100 + length], [0.4, 0.46]) for length in (110, 240))
    assert result(fast).status == "found"
    assert result(slow).status == "healthy"
    assert result(slow, horizon=2).status == "found"


@pytest.mark.parametrize(
    ("high", "status"), [(5, "healthy"), (6, "found")]
)  # of ten readings, five raise the average by half of the rise: exactly the threshold
def test_the_average_of_the_window_counts_not_a_single_reading(high: int, status: str) -> None:
    values = np.full(1300, 0.5)
    values[1100 : 1100 + high] = 0.6
    assert result(values).status == status


@pytest.mark.parametrize(
    ("readings", "status"), [(999, "not enough data"), (1000, "not enough data"), (1001, "found")]
)
def test_patience_delays_the_first_decision(readings: int, status: str) -> None:
    """The rise is a second old by the decision, well within the horizon."""
    assert result(step_up(0.3, at=readings - 10, rows=readings)).status == status


def test_patience_skips_no_reading_a_rise_before_it_counts_while_it_is_within_the_horizon() -> None:
    assert result(step_up(0.3, at=950)).status == "found"
    assert result(step_up(0.3, at=500)).status == "healthy"


def test_violations_are_readings_and_triggered_are_scans() -> None:
    """From three of ten readings that rose by 20 points, until seven of ten had risen a minute before."""
    found = result(step_up(0.2, at=1080, rows=1560))
    assert found.violations == 120 + 5
    assert found.triggered == 2
    assert found.datapoints == 1560


def test_each_gpu_is_followed_alone() -> None:
    memory = np.stack([np.full(1300, 0.99), step_up(0.2), np.full(1300, 0.01)], axis=1)
    found = result(memory)
    assert list(found.details["node-a"]) == ["GPU 1"]
    assert "GPU 1 of node-a rose by 20.0 points" in found.finding


def test_missing_readings_are_left_out() -> None:
    values = np.full(2600, NAN)
    values[::2] = step_up(0.2)
    found = result(values)
    assert (found.status, found.datapoints) == ("found", 1300)
    assert result(np.full(2000, NAN)).finding == "No GPU's memory was read."


def test_after_a_gap_longer_than_the_horizon_there_is_nothing_to_compare_with() -> None:
    values = step_up(0.3, at=1400, rows=1700)
    values[1200:1400] = NAN
    assert result(values).status == "found"  # averages over the gap still rise from reading to reading
    assert result(values, window=1).status == "healthy"


def test_it_claims_no_seconds_and_gives_a_box_plot() -> None:
    values = np.round(np.random.default_rng(1).beta(5, 5, 3000), 2)
    found = result(values)
    box = found.details["node-a"]["GPU 0"]
    assert found.seconds_lost == 0
    assert set(box) >= {"increase", "gpu_max", "p05", "p25", "p50", "p75", "p95", "upper", "lower"}
    assert box["p05"] == pytest.approx(100 * np.percentile(values, 5), abs=0.01)
    assert box["gpu_max"] == pytest.approx(100 * values.max(), abs=1e-3)
    assert box["increase"] > 5
