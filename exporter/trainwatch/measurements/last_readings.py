"""The last readings of a device, and their percentiles at each scan that may decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from trainwatch.measurements.state import Scans, State
from trainwatch.runs.model import Floats, Times


class Decisions(NamedTuple):
    """What the scans of a block may decide upon: scan i sees the readings `history[..., : ends[i]]`."""

    history: Floats  # (quantities, readings)
    ends: NDArray[np.intp]
    times: Times  # of the last reading that each scan sees


class LastReadings(State):
    """The last `window` readings of one device, each of one or more quantities.

    A reading that lacks a quantity is none. Scans decide once there are more than `patience` readings,
    and only if they bring a new one: a device that is gone is not judged again.
    """

    def __init__(self, quantities: int, window: int, patience: int) -> None:
        self.window, self.patience = window, patience
        self.recent: Floats = np.empty((quantities, 0), np.float32)
        self.count = self.at_last_scan = 0  # readings so far
        self.last_time = np.nan

    def add(self, values: Floats, times: Times, scans: Scans) -> Decisions:
        """`values` is (quantities, n), NaN where missing."""
        there = ~np.isnan(values).any(axis=0)
        ends = scans  # readings of this block, up to each scan
        if not there.all():
            values, times = values[:, there], times[there]
            ends = np.concatenate(([0], np.cumsum(there)))[scans]
        so_far = self.count + ends
        new = np.diff(so_far, prepend=self.at_last_scan) > 0
        if len(so_far):
            self.at_last_scan = int(so_far[-1])
        history = np.concatenate((self.recent, values), axis=1)
        known = np.concatenate(([self.last_time], times))
        judged = ends[new & (so_far > self.patience)]
        decisions = Decisions(history, judged + self.recent.shape[1], known[judged])
        self.recent = history[:, -self.window :]
        self.last_time = float(known[-1])
        self.count += len(times)
        return decisions


def percentiles(
    readings: Floats, ends: NDArray[np.intp], window: int, percents: Sequence[float]
) -> NDArray[np.float32]:
    """(percents, ends) of the (at most) `window` readings of one quantity before each end.

    Interpolated in float64, then rounded to what the readings are, so that a device that stays exactly on
    a threshold is neither above nor below it.
    """
    full = ends >= window
    found = np.empty((len(percents), len(ends)))
    if full.any():
        windows = sliding_window_view(readings, window)[ends[full] - window]
        found[:, full] = _percentiles_of_rows(windows, percents)
    for index in np.flatnonzero(~full):
        found[:, index] = _percentiles_of_rows(readings[None, : ends[index]], percents)[:, 0]
    return found.astype(np.float32)


def _percentiles_of_rows(rows: Floats, percents: Sequence[float]) -> NDArray[np.float64]:
    """numpy's linear percentiles, (percents, rows). Sorting float32 takes less than numpy.percentile."""
    ordered = np.sort(rows, axis=1)
    positions = (rows.shape[1] - 1) * np.asarray(percents, np.float64) / 100
    below = positions.astype(np.intp)
    above = np.minimum(below + 1, rows.shape[1] - 1)
    low, high = ordered[:, below].astype(np.float64), ordered[:, above].astype(np.float64)
    found: NDArray[np.float64] = (low + (positions - below) * (high - low)).T
    return found
