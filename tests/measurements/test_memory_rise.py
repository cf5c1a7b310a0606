"""The rise of used memory above its lowest moving average."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from stepscope.measurements.memory_rise import lowest_between


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40)), min_size=1, max_size=90))
def test_the_lowest_of_any_range(items: list[tuple[float, int]]) -> None:
    values = np.array([value for value, _ in items])
    ends = np.arange(len(items))
    starts = np.maximum(ends - np.array([back for _, back in items]), 0)
    expected = [values[start : end + 1].min() for start, end in zip(starts, ends, strict=True)]
    assert lowest_between(values, starts, ends).tolist() == expected
