"""Histories of gauges that are thinned as they grow."""

import numpy as np
import pytest
from stepscope.runs.gauge_history import MOST, GrowingHistory


def grown(times: np.ndarray, values: np.ndarray, at_once: int) -> GrowingHistory:
    history = GrowingHistory()
    for first in range(0, len(times), at_once):
        rows = slice(first, first + at_once)
        history.add(times[rows].tolist(), values[rows].tolist())
    return history


def test_a_short_history_is_kept_whole() -> None:
    times = np.arange(float(MOST))
    assert grown(times, times, 100).times.tolist() == times.tolist()


@pytest.mark.parametrize("length", [MOST + 1, 50_000])
def test_a_long_history_keeps_the_last_value_of_each_period_however_it_came(length: int) -> None:
    times = 1.8e9 + 0.3 + np.arange(float(length))
    values = np.sin(times)
    values[-1] = np.nan
    whole = grown(times, values, length)
    assert MOST / 4 < len(whole.times) <= MOST
    assert whole.times[-1] == times[-1]
    assert np.isnan(whole.values[-1])
    assert len(set(np.diff(whole.times[1:-1]).tolist())) == 1
    for at_once in (1, 60, 977):
        pieces = grown(times, values, at_once)
        assert np.array_equal(pieces.times, whole.times)
        assert np.array_equal(pieces.values, whole.values, equal_nan=True)
