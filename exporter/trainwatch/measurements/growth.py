"""Whether readings grow steadily: a slope that outliers do not bend, and tests that a jump does not pass.

Theil and Sen's slope (the median of the slopes of all pairs of points) and Kendall's rank correlation, both
of which take nothing for granted about how the readings are distributed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.state import State
from trainwatch.runs.model import Floats, Times

# Readings are kept as the lowest of each of so many stretches of equal length: what is freed at the end of
# each step does not hide what is never freed, and memory does not grow with the run.
MOST_STRETCHES = 64
WARM_UP = 0.25  # of the readings; they are left out
STEADY = 0.8  # Kendall's correlation with time: one jump comes to 0.5 at the most, three jumps to 0.75
BOTH_HALVES = 0.5  # of the slope over all: what levels off does not reach it in its second half

# All pairs of points: the first n (n - 1) / 2 of them are those of the first n points.
_SECOND, _FIRST = np.tril_indices(MOST_STRETCHES, -1)


class Growth(NamedTuple):
    """One value a column; NaN where nothing is known."""

    level: Times  # the lowest reading of the last stretch
    slope: Times  # of the readings, per second; NaN where they do not grow steadily
    growth: Times  # from the end of the warm-up to now, along that slope

    @property
    def full_in(self) -> Times:
        """Returns the seconds until readings that are shares of something reach all of it."""
        return (1 - self.level) / self.slope


class Lows(State):
    """The lowest reading of each stretch of rows, of several columns."""

    def __init__(self) -> None:
        self.rows = 0
        self.length = 1  # rows of a stretch
        self.times: Times = np.empty(0)  # of the first row of each
        self.lows: Times = np.empty((0, 0))

    def add(self, times: Times, values: Floats) -> None:
        """`values` (n, columns); there may be more columns than before. NaN is no reading."""
        if not len(times):
            return
        lows = self.lows
        if missing := values.shape[1] - lows.shape[1]:
            lows = np.pad(lows, ((0, 0), (0, missing)), constant_values=np.nan)
        while self.rows + len(times) > MOST_STRETCHES * self.length:
            lows = _lowest(lows, np.arange(0, len(lows), 2))
            self.times = self.times[::2]
            self.length *= 2
        goes_on = -self.rows % self.length  # rows that belong to the last stretch
        starts = np.arange(goes_on, len(times), self.length)
        if goes_on:
            starts = np.concatenate(([0], starts))
        new = _lowest(values.astype(np.float64), starts)
        if goes_on:
            lows = np.concatenate((lows[:-1], np.fmin(lows[-1:], new[:1]), new[1:]))
            self.times = np.concatenate((self.times, times[starts[1:]]))
        else:
            lows = np.concatenate((lows, new))
            self.times = np.concatenate((self.times, times[starts]))
        self.lows = lows
        self.rows += len(times)

    @property
    def known(self) -> bool:
        """Whether there was any reading."""
        return not bool(np.isnan(self.lows).all())

    def growth(self) -> Growth:
        """What there is of growth after the warm-up."""
        first = int(np.ceil(WARM_UP * len(self.times)))
        times, lows = self.times[first:], self.lows[first:]
        columns = range(lows.shape[1])
        level = self.lows[-1] if len(self.lows) else np.empty(0)
        if np.isnan(level).any():
            level = np.array([_last_known(self.lows[:, column]) for column in columns])
        slope = np.array([_steady_slope(times, lows[:, column]) for column in columns])
        elapsed = times[-1] - times[0] if len(times) else np.nan
        return Growth(level, slope, slope * elapsed)


def _lowest(values: Times, starts: NDArray[np.intp]) -> Times:
    """(len(starts), columns) the lowest value from each start to the next one, NaN where there is none."""
    return np.fmin.reduceat(values, starts, axis=0) if len(starts) else values[:0]


def _last_known(lows: Times) -> float:
    known = lows[~np.isnan(lows)]
    return float(known[-1]) if len(known) else np.nan


def _steady_slope(times: Times, lows: Times) -> float:
    """The slope where it is steady and upwards, else NaN."""
    known = ~np.isnan(lows)
    times, lows = times[known], lows[known]
    half = len(lows) // 2
    if half < 4 or lows[-1] <= lows[0]:  # most columns grow not at all
        return np.nan
    slopes = _slopes(times, lows)
    rising, falling = np.count_nonzero(slopes > 0), np.count_nonzero(slopes < 0)
    if rising - falling <= STEADY * len(slopes):
        return np.nan
    slope = float(np.median(slopes))
    halves = (_slopes(times[part], lows[part]) for part in (slice(half), slice(half, None)))
    steady = all(float(np.median(part)) > BOTH_HALVES * slope for part in halves)
    return slope if steady else np.nan


def _slopes(times: Times, lows: Times) -> Times:
    """Of all pairs of points."""
    pairs = len(times) * (len(times) - 1) // 2
    second, first = _SECOND[:pairs], _FIRST[:pairs]
    elapsed = times[second] - times[first]
    rise = lows[second] - lows[first]
    if elapsed.min() <= 0:  # a clock was set back
        rise, elapsed = rise[elapsed > 0], elapsed[elapsed > 0]
    slopes: Times = rise / elapsed
    return slopes if len(slopes) else np.zeros(1)
