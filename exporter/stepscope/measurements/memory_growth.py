"""How full the memory of each GPU, or of the host, is, whether it grows steadily, and when it will be full.

Growth is a slope that is robust to outliers, with tests that a jump does not pass. The Theil-Sen slope is the
median of the slopes of all pairs of points. Neither it nor Kendall's rank correlation makes assumptions about
the distribution of the readings.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.measure import Measure, Measurement, Views
from stepscope.measurements.state import HighestSinceScan, Scans, State
from stepscope.runs.model import Floats, NodeSamples, Times

FORECAST_ROWS = 600  # samples (5 minutes) that a forecast needs
_UNKNOWN: NDArray[np.floating[Any]] = np.array(np.nan)

# At most this many stretches of equal length, each with its lowest reading: memory that is freed at the end
# of each step does not hide memory that is never freed, and this history does not grow with the run.
MOST_STRETCHES = 64
WARM_UP = 0.25  # share of the readings that are left out
STEADY = 0.8  # Kendall's correlation with time: one jump has at most 0.5, three jumps 0.75
BOTH_HALVES = 0.5  # of the whole slope: growth that levels off is below it in its second half
LEVEL = 0.01  # of the memory: what stays this close below its highest use for the last quarter grows no more

# All pairs of points: the first n (n - 1) / 2 of them are those of the first n points.
_SECOND, _FIRST = np.tril_indices(MOST_STRETCHES, -1)


class Growth(NamedTuple):
    """One value per column; NaN if unknown."""

    level: Times  # the lowest reading of the last stretch
    slope: Times  # of the readings, per second; NaN if they do not grow steadily
    growth: Times  # from the end of the warm-up to now, along that slope
    seconds: float  # from the end of the warm-up to now
    levelled: NDArray[np.bool_]  # whether they stay as high as they ever were, and grow no more

    @property
    def full_in(self) -> Times:
        """Returns the seconds until readings, which are shares, reach 1. Shared pages count twice."""
        return np.maximum(1 - self.level, 0.0) / self.slope


class Lows(State):
    """The lowest reading of each stretch of rows, of several columns."""

    def __init__(self) -> None:
        self.rows = 0
        self.length = 1  # rows of a stretch
        self.times: Times = np.empty(0)  # of the first row of each
        self.lows: Times = np.empty((0, 0))

    def add(self, times: Times, values: Floats) -> None:
        """Adds `values` (n, columns), NaN for missing readings; there may be more columns than before."""
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
        """Returns whether there was any reading."""
        return not bool(np.isnan(self.lows).all())

    def growth(self) -> Growth:
        """Returns the growth after the warm-up."""
        first = int(np.ceil(WARM_UP * len(self.times)))
        times, lows = self.times[first:], self.lows[first:]
        level = self.lows[-1] if len(self.lows) else np.empty(0)
        if np.isnan(level).any():  # the last one that is known
            rows = np.where(np.isnan(self.lows), 0, np.arange(len(self.lows))[:, None]).max(axis=0)
            level = self.lows[rows, np.arange(len(rows))]
        slope = np.array([_steady_slope(times, column) for column in lows.T])
        elapsed = times[-1] - times[0] if len(times) else np.nan
        last = self.lows[int((1 - WARM_UP) * len(self.lows)) :]
        least = np.fmax.reduce(self.lows, axis=0, initial=-np.inf) - LEVEL
        levelled = np.isnan(slope) & (np.fmin.reduce(last, axis=0, initial=np.inf) >= least)
        return Growth(level, slope, slope * elapsed, float(elapsed), levelled)


class Filling(NamedTuple):
    """The use of memory, as shares of all of it; NaN where it is not known."""

    samples: Times  # of the node so far
    read: NDArray[np.bool_]  # whether the memory was ever read
    highest: NDArray[np.floating[Any]] = _UNKNOWN  # since the scan before
    growth: NDArray[np.floating[Any]] = _UNKNOWN  # since the warm-up, where it is steady
    full_in: NDArray[np.floating[Any]] = _UNKNOWN  # seconds until it is full at this pace
    seen: NDArray[np.floating[Any]] = _UNKNOWN  # seconds that the pace is of
    lasts: NDArray[np.bool_] = np.array(True)  # whether it grew for long, and not only in the shortest time


class MemoryOfNode(Measurement[Filling]):
    """The lowest and highest use of each memory of a node; subjects are the columns of `readings`."""

    def __init__(self) -> None:
        self.lows = Lows()
        self.since_scan = HighestSinceScan()

    @abstractmethod
    def readings(self, samples: NodeSamples) -> Floats:
        """Returns (n, columns) shares in use."""

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[Filling]:
        so_far = (self.lows.rows + scans).astype(float)
        readings = self.readings(samples)
        highest = self.since_scan.add(readings, scans)
        growth, full_in, seen = np.full((3, *highest.shape), np.nan)
        read = np.zeros(highest.shape, bool)
        start = 0
        for number, end in enumerate(scans):
            self.lows.add(samples.times[start:end], readings[start:end])
            found = self.lows.growth()
            known = slice(len(found.level))
            growth[number, known], full_in[number, known] = found.growth, self.full_in(found)
            seen[number, known] = found.seconds
            read[number, known] = ~np.isnan(found.level)
            start = int(end)
        self.lows.add(samples.times[start:], readings[start:])
        views = zip(read.T, highest.T, growth.T, full_in.T, seen.T, strict=True)
        lasts = np.ones(len(so_far), bool)
        return [(column, Filling(so_far, *view, lasts)) for column, view in enumerate(views)]

    def full_in(self, growth: Growth) -> Times:
        """Returns the seconds until the memory of each GPU is full, NaN where it is too early to say."""
        return growth.full_in if self.lows.rows > FORECAST_ROWS else np.full_like(growth.level, np.nan)


class MemoryOfGpus(MemoryOfNode):
    """The memory of each GPU of a node."""

    def readings(self, samples: NodeSamples) -> Floats:
        return samples.gpu_memory


class MemoryOfRun(MemoryOfNode):
    """The memory of the host that the run's processes hold, in one column."""

    def readings(self, samples: NodeSamples) -> Floats:
        held, capacity = (samples.of_run(f"{name}_bytes") for name in ("anonymous_memory", "memory_capacity"))
        return (held / np.where(capacity > 0, capacity, np.nan)).astype(np.float32)[:, None]

    def per_second(self) -> float:
        """Returns the steady growth per second, as a share of all memory; NaN if it is not steady."""
        return float(next(iter(self.lows.growth().slope), np.nan))


MEMORY_GROWTH = Measure(MemoryOfGpus)
HOST_MEMORY_GROWTH = Measure(MemoryOfRun)


def _lowest(values: Times, starts: NDArray[np.intp]) -> Times:
    """Returns (len(starts), columns): the lowest value from each start to the next, NaN without readings."""
    return np.fmin.reduceat(values, starts, axis=0) if len(starts) else values[:0]


def _steady_slope(times: Times, lows: Times) -> float:
    """Returns the slope if it is steady and upwards, otherwise NaN."""
    known = ~np.isnan(lows)
    times, lows = times[known], lows[known]
    half = len(lows) // 2
    if half < 4 or lows[-1] <= lows[0]:  # most columns do not grow
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
    """Returns the slopes of all pairs of points."""
    pairs = len(times) * (len(times) - 1) // 2
    second, first = _SECOND[:pairs], _FIRST[:pairs]
    elapsed = times[second] - times[first]
    rise = lows[second] - lows[first]
    if elapsed.min() <= 0:  # a clock was set back
        rise, elapsed = rise[elapsed > 0], elapsed[elapsed > 0]
    slopes: Times = rise / elapsed
    return slopes if len(slopes) else np.zeros(1)
