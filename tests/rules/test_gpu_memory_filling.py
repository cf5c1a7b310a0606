"""GPUMemoryLeak and GPUMemoryNearlyFull: steady growth, and how far it is to the end."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepscope.evaluation.analysis import RuleResult

from tests.support.few_rules import judged
from tests.support.source import node_samples

NAN = float("nan")
ROWS = 7200  # an hour
TIME = np.linspace(0, 1, ROWS)


def result(
    rule: str, memory: Any, *, interval: float = 0.5, scan: float = 60.0, **parameters: Any
) -> RuleResult:
    gpu = np.asarray(memory).reshape(len(memory), -1)
    samples = node_samples(np.zeros((len(gpu), 1)), np.ones_like(gpu), gpu_memory=gpu, interval=interval)
    return judged(rule, samples, scan=scan, **parameters)


def leak(memory: Any, **more: float) -> RuleResult:
    return result("GPUMemoryLeak", memory, **more)


def noise(seed: int = 1) -> np.ndarray:
    """Activations that come and go at each step."""
    return np.random.default_rng(seed).uniform(0, 0.2, ROWS)


@pytest.mark.parametrize("shape", ["line", "stairs of each minute", "line under activations"])
def test_steady_growth_is_a_leak(shape: str) -> None:
    line = 0.3 + 0.2 * TIME
    memory = {
        "line": line,
        "stairs of each minute": 0.3 + 0.2 * np.floor(60 * TIME) / 60,
        "line under activations": line + noise(),
    }[shape]
    found = leak(memory)
    assert found.status == "found"
    assert found.details["gpus"][0]["points_per_hour"] == pytest.approx(20, rel=0.05)


@pytest.mark.parametrize(
    "shape",
    [
        "flat",
        "activations",
        "one jump",
        "three jumps",
        "warm-up",
        "levels off",
        "falls",
        "swings",
        "jump and line",
    ],
)
def test_what_grows_otherwise_is_none(shape: str) -> None:
    memory = {
        "flat": np.full(ROWS, 0.5),
        "activations": 0.3 + noise(),
        "one jump": np.where(TIME < 0.6, 0.3, 0.8),
        "three jumps": 0.2 + 0.2 * (TIME > 0.4) + 0.2 * (TIME > 0.6) + 0.2 * (TIME > 0.8),
        "warm-up": np.minimum(0.2 + 3 * TIME, 0.8),
        "levels off": 0.8 - 0.5 * np.exp(-TIME / 0.1),
        "falls": 0.8 - 0.5 * TIME,
        "swings": 0.5 + 0.2 * np.sin(40 * TIME),
        "jump and line": np.where(TIME < 0.6, 0.3, 0.6),
    }[shape]
    found = leak(memory)
    assert found.details["gpus"][0]["points_per_hour"] is None
    assert found.status == "healthy"
    levelled = shape in {"warm-up", "levels off"}  # while they still grew, they looked like leaks
    assert ("grew steadily for a time, then levelled off" in found.finding) == levelled


def test_memory_that_is_freed_after_it_grew_may_leak_again() -> None:
    found = leak(np.where(TIME < 0.7, 0.2 + 0.8 * TIME, 0.2))  # the process was started again
    assert found.status == "found"
    assert "grew steadily in" in found.finding


@pytest.mark.parametrize(("growth", "status"), [(0.0266, "healthy"), (0.0276, "found")])
def test_the_growth_after_the_warm_up_must_be_above_the_threshold(growth: float, status: str) -> None:
    """3 of 4 quarters of the hour (of which the last stretch is cut off) are after the warm-up: 2 points."""
    assert leak(0.3 + growth * TIME).status == status


@pytest.mark.parametrize(
    ("rows", "status"), [(1199, "not enough data"), (1200, "not enough data"), (1201, "found")]
)
def test_patience_delays_the_first_decision(rows: int, status: str) -> None:
    assert leak(0.3 + 0.2 * np.linspace(0, 1, rows)).status == status


def test_missing_readings_are_left_out() -> None:
    memory = 0.3 + 0.2 * TIME
    memory[::3] = NAN
    memory[3000:4000] = NAN
    assert leak(memory).details["gpus"][0]["points_per_hour"] == pytest.approx(20, rel=0.05)
    assert leak(np.full(ROWS, NAN)).finding == "No GPU's memory was read."


def test_words_say_how_fast_and_how_long() -> None:
    two = np.stack((np.full(ROWS, 0.9), 0.3 + 0.2 * TIME), axis=1)
    assert leak(two).finding == (
        "The memory of GPU 1 of node-a grows by 20 % of its size per hour; "
        "it is 50 % full now, and will be full in 2 h 30 min; that of no other GPU does."
    )


@given(st.integers(0, 2**32 - 1), st.sampled_from([1 / 128, 4.0, 64.0]))
@settings(max_examples=15)
def test_scaling_time_changes_no_decision(seed: int, interval: float) -> None:
    random = np.random.default_rng(seed)
    memory = np.cumsum(random.normal(3e-5, random.choice([1e-5, 1e-3]), ROWS)) + 0.3
    known = leak(memory).triggered
    assert leak(memory, interval=interval, scan=120 * interval).triggered == known


def full(memory: Any, **more: float) -> RuleResult:
    return result("GPUMemoryNearlyFull", memory, **more)


@pytest.mark.parametrize(
    ("level", "status"), [(0.94, "healthy"), (0.95, "healthy"), (0.96, "found"), (1.0, "found")]
)
def test_a_gpu_above_the_threshold_is_nearly_full(level: float, status: str) -> None:
    memory = np.full(500, 0.5)
    memory[400] = level
    found = full(memory)
    assert (found.status, found.triggered) == (status, int(status == "found"))
    assert f"used up to {100 * level:.1f} % of its memory" in found.finding


@pytest.mark.parametrize(("rows", "status"), [(120, "not enough data"), (121, "found")])
def test_patience_delays_the_first_decision_here_too(rows: int, status: str) -> None:
    assert full(np.full(rows, 0.99)).status == status


@pytest.mark.parametrize(("horizon", "status"), [(40, "healthy"), (80, "found")])
def test_a_gpu_that_will_be_full_before_the_horizon_is_nearly_full(horizon: float, status: str) -> None:
    """It grows from 30 % to 60 % within half an hour: at the end it is 40 minutes to 100 %."""
    memory = 0.3 + 0.3 * np.linspace(0, 1, ROWS // 2)
    found = full(memory, horizon=horizon)
    assert found.details["gpus"][0]["full_in_seconds"] == pytest.approx(2400, rel=0.02)
    # Half an hour earlier it was 70 minutes: not yet within 40 minutes at any scan, within 80 at each.
    assert found.status == status
    assert ("will be full in 40 min 07 s at the current rate" in found.finding) == (status == "found")


def test_a_forecast_that_did_not_come_true_is_told_as_such() -> None:
    found = full(np.minimum(0.2 + 3 * TIME, 0.8))
    assert found.status == "healthy"
    assert re.search(
        "used up to 80.0 % of its memory; for a time it grew .* then it levelled off", found.finding
    )
    freed = full(np.where(TIME < 0.25, 0.2 + 3 * TIME, 0.3))
    assert freed.status == "found"
    assert re.search(r"memory; in \d+ scans it grew .* but not at the end", freed.finding)
    high = full(np.minimum(0.2 + 3 * TIME, 0.97))
    assert (high.status, high.details["gpus"][0]["triggered"]) == ("found", high.triggered)


def test_there_is_no_forecast_of_a_jump_nor_of_the_first_minutes() -> None:
    assert full(np.where(TIME < 0.6, 0.3, 0.8)).status == "healthy"
    assert full(0.3 + 0.3 * np.linspace(0, 1, 600)).status == "healthy"


def test_each_gpu_and_scan_counts_and_missing_readings_do_not() -> None:
    memory = np.full((480, 3), 0.99)
    memory[:, 1] = NAN
    memory[240:, 2] = NAN
    found = full(memory)
    assert (found.triggered, found.datapoints) == (3 + 1, 480)
    assert "the memory of the other GPU is nearly full too" in found.finding
