"""Every rule against loops over single values that know nothing of blocks, chunks or counts kept."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.evaluation import blocks
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.runs.model import PHASES, NodeSamples, Steps

from tests.support import reference
from tests.support.few_rules import only
from tests.support.source import MemorySource, node_samples, node_steps

# The files of the rules have the limits, and test_laws.py any cut of a run into blocks and chunks.
pytestmark = pytest.mark.trial

seeds = st.integers(0, 2**32 - 1)


def readings(random: np.random.Generator, rows: int, devices: int) -> np.ndarray:
    """Whole percents near the thresholds, long idle and busy spells, and missing readings."""
    level = np.repeat(random.choice([0.05, 0.1, 0.5, 0.7, 0.9, 0.95], (rows // 7 + 1, devices)), 7, axis=0)[
        :rows
    ]
    values = np.clip(np.round(level + random.normal(0, 0.05, (rows, devices)), 2), 0, 1)
    values[random.random((rows, devices)) < 0.05] = np.nan
    return values


def made_up_samples(seed: int) -> NodeSamples:
    random = np.random.default_rng(seed)
    rows, cores, gpus = (int(random.integers(*ends)) for ends in ((1, 90), (1, 5), (0, 4)))
    samples = node_samples(
        readings(random, rows, cores), readings(random, rows, gpus), readings(random, rows, cores)
    )
    samples.times[:] += random.uniform(0, 60) + np.cumsum(random.choice([0, 0, 0, 0.2, 7], rows))
    return samples


def made_up_steps(seed: int) -> Steps:
    random = np.random.default_rng(seed)
    rows = int(random.integers(1, 400))
    durations = random.lognormal(-2, 0.2, rows) * random.choice([1, 1, 1, 1, 1, 1, 1, 1, 9], rows)
    steps = node_steps(durations, data_wait=durations * random.random(rows) ** 2)
    steps.phases[:] = random.choice(len(PHASES), rows, p=[0.7, 0.2, 0.05, 0.05])
    return steps


def results(
    chunk: NodeSamples | Steps, rule: str, interval: float, block_rows: int, **parameters: Any
) -> RuleResult:
    chosen = only(rule).parse([f"{rule}.{name}={value}" for name, value in parameters.items()])
    with patch.object(blocks, "BLOCK_ROWS", block_rows):
        found = evaluate(MemorySource(chunk, chunk_rows=11), chosen, interval).rules
    return next(one for one in found if one.rule == rule)


intervals = st.sampled_from([0.7, 2.0, 5.0, 60.0])
block_rows = st.sampled_from([1, 7, 64, 2048])
few = st.integers(0, 40)


@pytest.mark.parametrize(("rule", "cores"), [("CPUBottleneck", "cpu"), ("IOBottleneck", "io_wait")])
@given(seeds, intervals, block_rows, few, st.sampled_from([0, 10, 33.3, 50, 100]))
def test_starvation(
    rule: str, cores: str, seed: int, interval: float, rows: int, patience: int, threshold: float
) -> None:
    samples = made_up_samples(seed)
    bounds = {"cpu_threshold" if cores == "cpu" else "io_threshold": 70, "gpu_threshold": 50}
    found = results(samples, rule, interval, rows, patience=patience, threshold=threshold, **bounds)
    expected = reference.starvation(
        samples,
        cores,
        core_above=70,
        gpu_below=50,
        threshold=threshold,
        patience=patience,
        interval=interval,
    )
    assert (found.violations, found.datapoints) == (expected["violations"], expected["datapoints"])
    assert found.details["low_gpu_utilization"] == expected["low_gpu_utilization"]
    assert len(found.details["bottlenecks"]) == expected["violations"]
    assert found.triggered == expected["triggered"]


@given(seeds, intervals, block_rows, few, st.integers(1, 60))
def test_low_gpu_utilization(seed: int, interval: float, rows: int, patience: int, window: int) -> None:
    samples = made_up_samples(seed)
    # No percentile of whole percents is exactly at these: ties are for the tables of the rule's own tests.
    bounds = {"threshold_p95": 70.03, "threshold_p5": 10.03}
    found = results(samples, "LowGPUUtilization", interval, rows, patience=patience, window=window, **bounds)
    expected = reference.low_gpu_utilization(
        samples, p95_below=70.03, p5_below=10.03, window=window, patience=patience, interval=interval
    )
    assert found.triggered == sum(gpu["under_utilised"] + gpu["fluctuating"] for gpu in expected)
    assert found.datapoints == max((gpu["readings"] for gpu in expected), default=0)
    boxes = found.details.get("node-a", {})
    for number, gpu in enumerate(expected):
        box = boxes.get(f"GPU {number}", {"under_utilised": 0, "fluctuating": 0})
        assert {name: gpu[name] for name in ("under_utilised", "fluctuating")} == {
            name: box[name] for name in ("under_utilised", "fluctuating")
        }


@given(
    seeds,
    intervals,
    block_rows,
    st.integers(0, 20),
    st.sampled_from([0.5, 1.0, 2.0, 3.0]),
    st.sampled_from([0.1, 2.03, 10.03]),
)
def test_step_outlier(
    seed: int, interval: float, rows: int, n_outliers: int, stddev: float, time_lost: float
) -> None:
    steps = made_up_steps(seed)
    bounds = {"n_outliers": n_outliers, "stddev": stddev, "time_lost": time_lost}
    found = results(steps, "StepOutlier", interval, rows, **bounds)
    expected = {
        phase: reference.step_outlier(steps, phase, interval=interval, **bounds)  # type: ignore[arg-type]
        for phase in PHASES
    }
    assert found.debugger_triggered == sum(one["triggered"] for one in expected.values())
    assert found.triggered == sum(one["costly"] for one in expected.values())
    assert found.violations == sum(len(one["numbers"]) for one in expected.values())
    assert found.datapoints == len(steps)
    for phase, one in expected.items():
        details = found.details["step_details"].get(f"node-a, rank 0, {phase}", {"step_numbers": []})
        assert details["step_numbers"] == one["numbers"]


@given(seeds, intervals, block_rows, few, st.sampled_from([5, 20, 33.3, 60]))
def test_data_starved(seed: int, interval: float, rows: int, patience: int, threshold: float) -> None:
    steps = made_up_steps(seed)
    found = results(steps, "DataStarved", interval, rows, patience=patience, threshold=threshold)
    expected = reference.data_starved(steps, threshold=threshold, patience=patience, interval=interval)
    assert found.triggered == expected["triggered"]
    if found.status == "found":
        assert found.seconds_lost == pytest.approx(expected["seconds"])


def test_the_reference_itself_knows_debuggers_published_run() -> None:
    cores, gpus = np.zeros((3019, 2)), np.ones((3019, 2))
    cores[:2129, 0], gpus[:2129, 1] = 1.0, 0.0
    bounds = {"core_above": 90, "gpu_below": 10, "threshold": 50, "patience": 1000, "interval": 60}
    expected = reference.starvation(node_samples(cores, gpus), "cpu", **bounds)
    assert expected["violations"] == expected["low_gpu_utilization"] == 2129
    assert expected["triggered"] > 0
