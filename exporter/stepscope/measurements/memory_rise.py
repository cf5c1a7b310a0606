"""Measures how far the used memory of each GPU rose: for good, and above its lowest recent moving average."""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.measure import Measurement, Views
from stepscope.measurements.sketch import RatioSketch
from stepscope.measurements.state import HighestSinceScan, Scans, State
from stepscope.runs.model import Floats, NodeSamples, Times

# Readings are float32: differences in later decimals (of percentage points) are ignored.
DIGITS = 4


class Rises(NamedTuple):
    """The highest rises of each GPU that a scan finds, as shares of its memory: (scans, GPUs)."""

    enough: NDArray[np.bool_]
    lasting: Times
    above_lowest: Times | None = None  # of the horizon, as Debugger counts; NaN if there are too few readings


class Spans(NamedTuple):
    """The lengths by which a rise is measured."""

    window: int  # readings of a moving average
    horizon: float  # minutes in which memory rises
    hold: float  # minutes for which it then stays
    baseline: float  # minutes before, in which it was lower


class RiseOfGpu(State):
    """The used memory of one GPU: its last readings, and its moving averages of the last time."""

    def __init__(self, spans: Spans, patience: int, above: float) -> None:
        self.spans, self.patience, self.above = spans, patience, above
        self.readings = RatioSketch()
        self.recent: Floats = np.empty(0, np.float32)  # at most a window less one
        self.averages: Times = np.empty(0)
        self.times: Times = np.empty(0)  # of the averages
        self.risen = 0  # readings that were too much above the lowest of the horizon
        self.largest = 0.0  # rise in percentage points, of those that were too much
        self.last_risen = np.nan
        self.lasting = self.before = self.after = 0.0  # the largest lasting rise, in percentage points

    def add(self, column: Floats, times: Times) -> tuple[Times, Times]:
        """Returns the lasting rise and the rise at each row in percentage points, NaN if it is unknown."""
        known = np.flatnonzero(~np.isnan(column))
        lasting, rises = np.full((2, len(column)), np.nan)
        count = self.readings.count
        self.readings.add(column)
        new = self._new_averages(column[known], times[known])
        if not new:
            return lasting, rises
        numbers = count + np.arange(len(known) - new, len(known)) + 1
        enough = numbers > self.patience
        rows = known[-new:]
        rises[rows[enough]] = np.round(100 * self._rises(new), DIGITS)[enough]
        lasting[rows] = self._lasting(new, numbers)
        self._forget()
        too_much = rises > self.above
        if too_much.any():
            self.risen += int(np.count_nonzero(too_much))
            self.largest = max(self.largest, float(rises[too_much].max()))
            self.last_risen = float(times[too_much][-1])
        return lasting, rises

    def _new_averages(self, values: Floats, times: Times) -> int:
        """Adds readings; returns how many moving averages they complete."""
        window = self.spans.window
        history = np.concatenate((self.recent, values))
        self.recent = history[len(history) - min(len(history), window - 1) :]
        new = max(0, len(history) - window + 1)
        if new:
            sums = np.concatenate(([0.0], np.cumsum(history, dtype=np.float64)))
            self.averages = np.concatenate((self.averages, (sums[window:] - sums[:-window]) / window))
            self.times = np.concatenate((self.times, times[-new:]))
        return new

    def _rises(self, new: int) -> Times:
        """Returns how far the newest averages are above the lowest of the horizon; 0 if it is not too far."""
        averages, times, horizon = self.averages, self.times, 60 * self.spans.horizon
        lowest = averages[np.searchsorted(times, times[-new] - horizon) :].min()
        risen = np.flatnonzero(_above(averages[-new:], lowest, self.above))
        rises = np.zeros(new)
        if len(risen):
            ends = len(averages) - new + risen
            starts = np.searchsorted(times, times[ends] - horizon)
            rises[risen] = averages[ends] - lowest_between(averages, starts, ends)
        return rises

    def _lasting(self, new: int, numbers: NDArray[np.intp]) -> Times:
        """Returns how far the lowest average of `hold` is above the highest of the baseline, in points.

        NaN unless more than `patience` readings were before the rise; 0 if it is neither too far nor the
        farthest so far.
        """
        spans, averages, times = self.spans, self.averages, self.times
        ends = np.arange(len(averages) - new, len(averages))
        before = times[ends] - 60 * (spans.hold + spans.horizon)
        lasts = np.searchsorted(times, before, side="right") - 1
        since = before - 60 * spans.baseline
        known = (lasts >= 0) & (times[lasts] >= since) & (numbers - (ends - lasts) > self.patience)
        found = np.where(known, 0.0, np.nan)
        if not known.any() or not _above(averages.max(), averages.min(), self.above):
            return found
        # All baselines contain these averages, so each of them is at least as high.
        shared = averages[np.searchsorted(times, since[-1]) : lasts[0] + 1]
        level, points = shared.max(initial=-np.inf), min(self.above, self.lasting)
        risen = np.flatnonzero(known & _above(averages[-new:], level, points))
        if len(risen):  # few in most runs, and fewer that hold
            held = np.searchsorted(times, times[ends[risen]] - 60 * spans.hold)
            lowest = lowest_between(averages, held, ends[risen])
            high = _above(lowest, level, points)
            risen, lowest = risen[high], lowest[high]
        if not len(risen):
            return found
        highest = -lowest_between(-averages, np.searchsorted(times, since[risen]), lasts[risen])
        found[risen] = np.round(100 * (lowest - highest), DIGITS)
        most = int(np.argmax(found[risen]))
        if found[risen[most]] > self.lasting:
            self.lasting = float(found[risen[most]])
            self.before, self.after = 100 * highest[most], 100 * lowest[most]
        return found

    def _forget(self) -> None:
        """Drops the averages that no later rise is measured from."""
        spans = self.spans
        oldest = self.times[-1] - 60 * (spans.hold + spans.horizon + spans.baseline)
        first = np.searchsorted(self.times, oldest)
        self.averages, self.times = self.averages[first:], self.times[first:]


class MemoryRises(Measurement[Rises]):
    """The rises of all GPUs of a node; a scan sees those since the previous scan.

    A lasting rise is judged: the lowest moving average of `hold` above the highest of the baseline, which
    ends a `horizon` earlier. Rises above the lowest average of the horizon are counted, too. Rises up to
    `above` percentage points may be given as 0, which saves time.
    """

    def __init__(self, spans: Spans, patience: int, above: float) -> None:
        self.new_gpu = partial(RiseOfGpu, spans, patience, above)
        self.gpus: list[RiseOfGpu] = []
        self.highest, self.highest_lasting = HighestSinceScan(), HighestSinceScan()
        self.last_time = np.nan
        self.set_back = 0.0  # seconds by which the clock was set back so far

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[Rises]:
        while len(self.gpus) < samples.gpu_memory.shape[1]:
            self.gpus.append(self.new_gpu())
        lasting, rises = np.empty((2, *samples.gpu_memory.shape))
        times = self._in_order(samples.times)
        for number, gpu in enumerate(self.gpus):
            lasting[:, number], rises[:, number] = gpu.add(samples.gpu_memory[:, number], times)
        highest_lasting, highest = (
            np.round(kept.add(values, scans) / 100, DIGITS + 2)
            for kept, values in ((self.highest_lasting, lasting), (self.highest, rises))
        )
        return [("", Rises(~np.isnan(highest_lasting), highest_lasting, highest))]

    def _in_order(self, times: Times) -> Times:
        """Returns the times of a clock that was never set back."""
        back = np.cumsum(np.fmin(np.diff(times, prepend=self.last_time), 0.0))
        found: Times = times + (self.set_back - back)
        if len(times):
            self.last_time, self.set_back = float(times[-1]), self.set_back - float(back[-1])
        return found


def _above(averages: Times | float, level: float, points: float) -> NDArray[np.bool_]:
    """Returns which averages are more than `points` above a level."""
    above: NDArray[np.bool_] = np.round(100 * (averages - level), DIGITS) > points
    return above


def lowest_between(values: Times, starts: NDArray[np.intp], ends: NDArray[np.intp]) -> Times:
    """Returns the lowest of values[start] .. values[end], both included, for each pair.

    No start is before the first. The lowest of each run of 1, 2, 4, ... values is found once; two such runs
    cover any range.
    """
    levels = np.frexp(ends - starts + 1)[1] - 1  # the largest power of two that fits
    lowest = np.empty(len(ends))
    first = starts[0]
    of_runs = values[first:]
    starts, ends = starts - first, ends - first
    for level in range(int(levels.max()) + 1):
        if level:
            half = 2 ** (level - 1)
            of_runs = np.minimum(of_runs[:-half], of_runs[half:])
        its = np.flatnonzero(levels == level)
        lowest[its] = np.minimum(of_runs[starts[its]], of_runs[ends[its] - 2**level + 1])
    return lowest
