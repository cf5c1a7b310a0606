"""The rules that Debugger lacks, against loops over single values: see test_against_reference.py."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.common.xids import XIDS
from stepscope.evaluation import blocks
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.runs.model import PHASES, NodeSamples, Steps

from tests.support import reference_more as reference
from tests.support.few_rules import only
from tests.support.source import MemorySource, node_samples, node_steps

pytestmark = pytest.mark.trial  # see test_against_reference.py

seeds = st.integers(0, 2**32 - 1)
intervals = st.sampled_from([0.7, 2.0, 5.0, 60.0])
block_rows = st.sampled_from([1, 7, 64, 2048])
few = st.integers(0, 40)

OF_PROGRAMS = {number for number, one in XIDS.items() if one.of_the_program}


def result(
    rule: str, *chunks: NodeSamples | Steps, interval: float = 60.0, rows: int = 2048, **parameters: Any
) -> RuleResult:
    chosen = only(rule).parse([f"{rule}.{name}={value}" for name, value in parameters.items()])
    with patch.object(blocks, "BLOCK_ROWS", rows):
        found = evaluate(MemorySource(*chunks, chunk_rows=11), chosen, interval).rules
    return next(one for one in found if one.rule == rule)


@given(seeds, intervals, block_rows, few, st.sampled_from([5, 20, 33.3, 60]))
def test_communication_bound(seed: int, interval: float, rows: int, patience: int, threshold: float) -> None:
    random = np.random.default_rng(seed)
    durations = random.lognormal(-1, 0.3, int(random.integers(1, 300)))
    steps = node_steps(durations, communication=durations * random.random(len(durations)) ** 2)
    found = result(
        "CommunicationBound", steps, interval=interval, rows=rows, patience=patience, threshold=threshold
    )
    expected = reference.communication_bound(steps, threshold=threshold, patience=patience, interval=interval)
    assert found.triggered == expected["triggered"]
    if found.status == "found":
        assert found.seconds_lost == pytest.approx(expected["seconds"])


@given(seeds, block_rows, few, st.sampled_from([1.5, 5, 20]), st.sampled_from([0.05, 0.2, 1]))
def test_training_stalled(seed: int, rows: int, patience: int, factor: float, minimum: float) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 200))
    durations = random.lognormal(0, 1, count) * random.choice([1, 1, 1, 1, 40], count)
    steps = node_steps(
        durations, checkpoint=durations * random.choice([0, 0, 0.9], count), compile=0.01 * durations
    )
    steps.starts[:] += np.cumsum(random.choice([0, 0, 0, 0, 70], count))
    found = result("TrainingStalled", steps, rows=rows, patience=patience, factor=factor, minimum=minimum)
    expected = reference.training_stalled(steps, factor=factor, minimum=minimum, patience=patience)
    # The usual time is known to 0.5 %: what is as near to the bound as that may be on either side.
    more, less = (
        reference.training_stalled(steps, factor=factor * by, minimum=minimum, patience=patience)
        for by in (0.994, 1.006)
    )
    assert len(less) <= found.triggered <= len(more)
    if len(less) == len(more):
        assert [one["seconds"] for one in found.details["stalls"]] == pytest.approx(expected)


@given(
    seeds,
    block_rows,
    st.sampled_from([2, 5, 30]),
    st.sampled_from([2, 100]),
    st.sampled_from([1, 3]),
    st.sampled_from([20, 50, 90]),
)
def test_straggler(
    seed: int, rows: int, threshold: float, minimum: float, deviations: float, waiting: float
) -> None:
    random = np.random.default_rng(seed)
    own = [random.lognormal(0, 0.2, 350) for _ in range(int(random.integers(1, 6)))]
    own[0] *= np.repeat(random.choice([1, 1.1, 1.6], 7), 50)
    longest = np.max(own, axis=0) + random.uniform(0, 1, 350)
    ranks = []
    for rank, mine in enumerate(own):
        count = int(random.integers(1, 350))
        wait = longest - mine
        steps = node_steps(
            longest[:count], rank=rank, node=f"node-{rank % 2}", communication=wait[:count], first_number=0
        )
        steps.phases[:] = random.choice(len(PHASES), count, p=[0.9, 0.1, 0, 0])
        ranks.append(steps)
    parameters = {"threshold": threshold, "minimum": minimum, "deviations": deviations, "waiting": waiting}
    found = result("Straggler", *ranks, rows=rows, **parameters)
    by_rank = {row["rank"]: row["triggered"] for row in found.details["ranks"]}
    assert [by_rank.get(rank, 0) for rank in range(len(ranks))] == reference.straggler(ranks, **parameters)


def made_up_counters(seed: int) -> NodeSamples:
    """Throttling, errors and memory of some GPUs, with missing readings and counters that begin anew."""
    random = np.random.default_rng(seed)
    rows, gpus = int(random.integers(1, 250)), int(random.integers(1, 3))

    def counter(steps: np.ndarray) -> np.ndarray:
        counted = np.cumsum(steps, axis=0, dtype=np.float64) + random.integers(0, 9, gpus)
        if random.random() < 0.3:
            counted[rows // 2 :] -= counted[rows // 2]
        counted[random.random(counted.shape) < 0.1] = np.nan
        return counted

    shape = (rows, gpus)
    growth = random.choice([0, 2e-4, 1e-3], gpus) * np.arange(rows)[:, None]
    memory = np.clip(0.3 + growth + random.choice([0, 0.05, 0.6]) * random.random(shape), 0, 1)
    memory[random.random(shape) < 0.05] = np.nan
    samples = node_samples(
        np.zeros((rows, 1)),
        np.ones(shape),
        gpu_memory=memory,
        of_gpus={
            "gpu_thermal_throttle_seconds": counter(random.choice([0, 0, 0.25, 0.5], shape)),
            "gpu_xid_errors": counter(random.choice([0, 1, 2], shape, p=[0.98, 0.01, 0.01])),
            "gpu_ecc_uncorrected_errors": counter(random.choice([0, 1], shape, p=[0.99, 0.01])),
            "gpu_last_xid": random.choice([13, 31, 48, 79, 94, 500], shape),
        },
    )
    samples.times[:] += random.uniform(0, 60) + np.cumsum(random.choice([0, 0, 0, 0.2, 7], rows))
    return samples


@given(seeds, intervals, block_rows, few, st.sampled_from([5, 20, 33.3, 60]))
def test_thermal_throttling(seed: int, interval: float, rows: int, patience: int, threshold: float) -> None:
    samples = made_up_counters(seed)
    found = result(
        "ThermalThrottling", samples, interval=interval, rows=rows, patience=patience, threshold=threshold
    )
    expected = reference.thermal_throttling(
        samples, threshold=threshold, patience=patience, interval=interval
    )
    gpus = found.details["gpus"]
    assert [gpu["triggered"] for gpu in gpus] == [one["triggered"] for one in expected]
    assert [gpu["heat_seconds"] for gpu in gpus] == pytest.approx([one["heat"] for one in expected])


@given(seeds, block_rows)
def test_gpu_error(seed: int, rows: int) -> None:
    samples = made_up_counters(seed)
    found = result("GPUError", samples, rows=rows)
    expected = reference.gpu_errors(samples, of_programs=OF_PROGRAMS)
    counted = [
        {(one["xid"] or 0): one["count"] for one in gpu["errors"] if not one["of_the_program"]}
        for gpu in found.details["gpus"]
    ]
    assert counted == expected
    assert found.violations == sum(sum(errors.values()) for errors in expected)


@given(seeds, intervals, block_rows, few, st.sampled_from([0, 1, 5]))
def test_gpu_memory_leak(seed: int, interval: float, rows: int, patience: int, increase: float) -> None:
    samples = made_up_counters(seed)
    found = result(
        "GPUMemoryLeak", samples, interval=interval, rows=rows, patience=patience, increase=increase
    )
    expected = reference.gpu_memory_leak(samples, increase=increase, patience=patience, interval=interval)
    assert [gpu["triggered"] for gpu in found.details["gpus"]] == expected


@given(seeds, st.sampled_from([5.0, 60.0]), block_rows, few, st.sampled_from([0, 1, 60]))
def test_gpu_memory_nearly_full(seed: int, interval: float, rows: int, patience: int, horizon: float) -> None:
    samples = made_up_counters(seed)
    bounds: dict[str, Any] = {"threshold": 92.5, "horizon": horizon, "patience": patience}
    with patch("stepscope.measurements.memory_growth.FORECAST_ROWS", 100):
        found = result("GPUMemoryNearlyFull", samples, interval=interval, rows=rows, **bounds)
    expected = reference.gpu_memory_nearly_full(samples, interval=interval, forecast_rows=100, **bounds)
    assert [gpu["triggered"] for gpu in found.details["gpus"]] == expected
