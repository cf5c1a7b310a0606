"""Counts since a run began: the difference of two moments is the window between them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.measurements.measure import Measure
from stepscope.measurements.starved import StarvedSamples
from stepscope.measurements.steps import RankComponents
from stepscope.measurements.throttling import THROTTLING

from tests.support.source import node_samples, node_steps, piece

ROWS = 60
seeds = st.integers(0, 2**32 - 1)
moments = st.tuples(st.integers(1, ROWS), st.integers(1, ROWS)).map(sorted)


def scanned(*rows: int) -> np.ndarray:
    return np.array(rows, np.intp)


def made_up(seed: int) -> Any:
    """Samples of two GPUs whose clocks heat holds down at times, as a counter that some readings lack."""
    random = np.random.default_rng(seed)
    held = np.cumsum(0.5 * random.random((ROWS, 2)), axis=0)
    held[random.random((ROWS, 2)) < 0.1] = np.nan
    held[0] = 0
    cpu, gpu = random.random((ROWS, 3)), random.random((ROWS, 2))
    return node_samples(cpu, gpu, of_gpus={"gpu_thermal_throttle_seconds": held})


def counts_at(counts: Any, scan: int) -> Any:
    """What was counted at one scan."""
    return type(counts)(*(column[[scan]] for column in counts if column is not None))


@given(seeds, moments)
def test_of_starved_samples(seed: int, rows: list[int]) -> None:
    start, end = rows
    samples, measure = made_up(seed), Measure(StarvedSamples, "cpu", 0.7, 0.3)
    [(_, counts)] = measure.new().observe(samples, scanned(start, end))
    [(_, alone)] = measure.new().observe(piece(samples, start, end), scanned(end - start))
    assert counts_at(counts, 1) - counts_at(counts, 0) == alone


@given(seeds, moments)
def test_of_the_time_that_heat_held_clocks_down(seed: int, rows: list[int]) -> None:
    """A counter's first reading says only where it begins: the window begins with the last one before it."""
    start, end = rows
    samples = made_up(seed)
    for column, counts in THROTTLING.new().observe(samples, scanned(start, end)):
        held = samples.gpu_thermal_throttle_seconds[:, column]
        known = np.flatnonzero(~np.isnan(held[:end]))
        first = known[known < start][-1]
        window = counts_at(counts, 1) - counts_at(counts, 0)
        assert window.seen == np.count_nonzero(known >= start)
        assert window.part == pytest.approx(held[known[-1]] - held[first])
        assert window.whole == pytest.approx(samples.times[known[-1]] - samples.times[first])


@given(seeds, moments)
def test_of_a_component_of_steps(seed: int, rows: list[int]) -> None:
    start, end = rows
    random = np.random.default_rng(seed)
    durations = random.random(ROWS) + 0.01
    steps = node_steps(durations, data_wait=durations * random.random(ROWS))
    [(_, counts)] = RankComponents("data_wait").observe_steps(steps, scanned(start, end))
    [(_, alone)] = RankComponents("data_wait").observe_steps(piece(steps, start, end), scanned(end - start))
    window = counts_at(counts, 1) - counts_at(counts, 0)
    assert window.seen == alone.seen
    assert window.part == pytest.approx(alone.part)
    assert window.whole == pytest.approx(alone.whole)
    assert window.ratio == pytest.approx(alone.ratio, nan_ok=True)
