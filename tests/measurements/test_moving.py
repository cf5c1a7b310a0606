"""Percentiles of a moving window of readings, and the lowest of any range of moving averages."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from stepscope.measurements.memory_rise import lowest_between
from stepscope.measurements.recent_readings import percentiles


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40)), min_size=1, max_size=90))
def test_the_lowest_of_any_range(items: list[tuple[float, int]]) -> None:
    values = np.array([value for value, _ in items])
    ends = np.arange(len(items))
    starts = np.maximum(ends - np.array([back for _, back in items]), 0)
    expected = [values[start : end + 1].min() for start, end in zip(starts, ends, strict=True)]
    assert lowest_between(values, starts, ends).tolist() == expected


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 40))
def test_percentiles_of_a_window_are_numpys(seed: int, rows: int, window: int) -> None:
    values = np.random.default_rng(seed).random(rows, dtype=np.float32)
    ends = np.arange(1, rows + 1)
    expected = [np.percentile(values[max(end - window, 0) : end], [0, 5, 50, 95]) for end in ends]
    assert np.allclose(percentiles(values, ends, window, [0, 5, 50, 95]).T, expected, atol=1e-6)
