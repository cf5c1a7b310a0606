"""More of Debugger's rules against loops over single values that know nothing of blocks or counts."""

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
from stepscope.rules.parts.shares import PHASE_NAMES
from stepscope.runs.model import PHASES, NodeSamples, Steps

from tests.support import reference_debugger as reference
from tests.support.few_rules import only
from tests.support.source import START, MemorySource, node_samples, node_steps, rank_facts, run_facts

pytestmark = pytest.mark.trial  # see test_against_reference.py

seeds = st.integers(0, 2**32 - 1)
intervals = st.sampled_from([0.7, 2.0, 5.0, 60.0])
block_rows = st.sampled_from([1, 7, 64, 2048])
few = st.integers(0, 40)


def readings(random: np.random.Generator, rows: int, devices: int, missing: float = 0.05) -> np.ndarray:
    """Whole percents: long spells of one level, 0 and 100 among them, and missing readings."""
    levels = random.choice([0.0, 0.3, 0.5, 0.58, 0.6, 0.62, 0.9, 1.0], (rows // 9 + 1, devices))
    spells = np.repeat(levels, 9, axis=0)[:rows]
    values: np.ndarray = np.clip(
        np.round(spells + random.choice([0, 0, 0.01, -0.02], (rows, devices)), 2), 0, 1
    )
    values[random.random((rows, devices)) < missing] = np.nan
    return values


def made_up_samples(seed: int) -> NodeSamples:
    random = np.random.default_rng(seed)
    rows, cores, gpus = (int(random.integers(*ends)) for ends in ((1, 90), (1, 5), (0, 4)))
    samples = node_samples(
        readings(random, rows, cores),
        readings(random, rows, gpus),
        gpu_memory=readings(random, rows, gpus),
    )
    samples.times[:] += random.uniform(0, 60) + np.cumsum(random.choice([0, 0, 0, 0.2, 7], rows))
    return samples


def result(
    rule: str, *chunks: NodeSamples | Steps, interval: float, rows: int, facts: Any = None, **parameters: Any
) -> RuleResult:
    chosen = only(rule).parse([f"{rule}.{name}={value}" for name, value in parameters.items()])
    with patch.object(blocks, "BLOCK_ROWS", rows):
        found = evaluate(MemorySource(*chunks, chunk_rows=11, facts=facts), chosen, interval).rules
    return next(one for one in found if one.rule == rule)


@given(seeds, intervals, block_rows, few, st.integers(1, 60), st.sampled_from([55.03, 95.03]))
def test_batch_size(seed: int, interval: float, rows: int, patience: int, window: int, bound: float) -> None:
    samples = made_up_samples(seed)
    found = result(
        "BatchSize",
        samples,
        interval=interval,
        rows=rows,
        patience=patience,
        window=window,
        cpu_threshold_p95=95.03,
        gpu_threshold_p95=bound,
        gpu_memory_threshold_p95=95.03,
    )
    expected = reference.batch_size(
        samples, cpu=95.03, gpu=bound, memory=95.03, window=window, patience=patience, interval=interval
    )
    assert found.triggered == found.violations == sum(gpu["triggered"] for gpu in expected)
    assert (found.status != "not enough data") == any(gpu["judged"] for gpu in expected)
    for number, gpu in enumerate(expected):
        details = found.details.get("node-a", {}).get(f"GPU {number}", {"triggered": 0})
        assert details["triggered"] == gpu["triggered"]


@given(
    seeds, intervals, block_rows, few, st.integers(1, 20), st.sampled_from([0, 0.05, 0.2, 5]),
    st.sampled_from([0, 1, 5, 20]), st.sampled_from([0, 0.02, 0.1, 1]), st.sampled_from([0, 0.1, 0.5, 60]),
)  # fmt: skip
def test_gpu_memory_increase(
    seed: int,
    interval: float,
    rows: int,
    patience: int,
    window: int,
    horizon: float,
    increase: float,
    hold: float,
    baseline: float,
) -> None:
    samples = made_up_samples(seed)
    bounds = {
        "increase": increase,
        "window": window,
        "horizon": horizon,
        "hold": hold,
        "baseline": baseline,
        "patience": patience,
    }
    found = result("GPUMemoryIncrease", samples, interval=interval, rows=rows, **bounds)
    expected = reference.gpu_memory_increase(samples, interval=interval, **bounds)  # type: ignore[arg-type]
    assert (found.debugger_triggered, found.violations) == (expected["triggered"], expected["violations"])
    assert found.triggered == expected["lasting"]


@given(seeds, intervals, block_rows, few, st.sampled_from([0, 0.1, 0.25, 0.5, 1]))
def test_load_balancing(seed: int, interval: float, rows: int, patience: int, threshold: float) -> None:
    samples = made_up_samples(seed)
    found = result(
        "LoadBalancing", samples, interval=interval, rows=rows, patience=patience, threshold=threshold
    )
    expected = reference.load_balancing(samples, threshold=threshold, patience=patience, interval=interval)
    assert (found.triggered, found.violations) == (expected["triggered"], expected["violations"])
    for details in found.details.values():
        columns = {f"GPU {i}": column[~np.isnan(column)].tolist() for i, column in enumerate(samples.gpu.T)}
        for gpu, counts in details["workloads"].items():
            assert counts == reference.histogram(columns[gpu])
        for one, others in details["distances"].items():
            for other, distance in others.items():
                histograms = reference.histogram(columns[one]), reference.histogram(columns[other])
                assert distance == pytest.approx(reference.jensen_shannon(*histograms), abs=1e-7)
                gap = reference.largest_gap(columns[one], columns[other])
                assert details["kolmogorov_smirnov"][one][other] == pytest.approx(gap, abs=1e-11)


@given(seeds, intervals, block_rows, st.sampled_from([0, 0.05, 0.3, 1, 20]), st.floats(0, 90), st.booleans())
def test_max_initialization_time(
    seed: int, interval: float, rows: int, threshold: float, first: float, stepped: bool
) -> None:
    samples = made_up_samples(seed)
    steps = node_steps([0.5] * 5, start=START + first) if stepped else None
    found = result(
        "MaxInitializationTime",
        *([samples] if steps is None else [samples, steps]),
        interval=interval,
        rows=rows,
        facts=run_facts(ranks=[rank_facts()]),
        threshold=threshold,
    )
    expected = reference.max_initialization_time(
        samples, steps, start=START, threshold=threshold, interval=interval
    )
    late = found.status == "found"
    assert found.triggered == (max(expected, 1) if late else 0)
    assert late or expected == 0


@given(seeds, block_rows)
def test_what_ran_during_bottlenecks(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    durations = random.uniform(0.5, 4, 30)
    steps = node_steps(
        durations, forward=durations * 0.2, backward=durations * 0.3, data_wait=durations * random.random(30)
    )
    steps.phases[:] = random.choice(len(PHASES), 30)
    steps.starts[:] += np.cumsum(random.choice([0, 0, 1.7], 30))
    gpu = random.choice([0.0, 1.0], (400, 1), p=[0.3, 0.7])
    samples = node_samples(np.ones((400, 1)), gpu, start=START - 30.25, interval=random.uniform(0.1, 0.6))
    found = result("CPUBottleneck", samples, steps, interval=60.0, rows=rows)
    expected = reference.what_ran([float(time) for time in found.details["bottlenecks"]], steps)
    names = {**PHASE_NAMES, "others": "others"}
    assert found.details.get("phase", {}) == pytest.approx(
        {names[phase]: share for phase, share in expected["phases"].items()}
    )
    if expected["components"]:
        assert found.details["general"] == {"data_wait": 100.0}
        passes = found.details["forward_backward"]
        assert passes == pytest.approx({"Forward pass": 40.0, "Backward pass": 60.0})
