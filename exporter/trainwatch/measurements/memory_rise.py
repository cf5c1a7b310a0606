"""Measures how far the used memory of each GPU rose above its lowest recent moving average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.highest import HighestSinceScan
from trainwatch.measurements.measure import Measure, Measurement, Views
from trainwatch.measurements.sketch import RatioSketch
from trainwatch.measurements.state import Scans, State
from trainwatch.runs.model import Floats, NodeSamples, Times

# Readings are float32: differences in later decimals (of percentage points) are ignored.
DIGITS = 4


class Rises(NamedTuple):
    """The highest rise of each GPU that a scan finds, as a share of the GPU's memory: (scans, GPUs)."""

    enough: NDArray[np.bool_]
    rise: Times


class RiseOfGpu(State):
    """The used memory of one GPU: its last readings, and its moving averages within the horizon."""

    def __init__(self, asked: MemoryRise) -> None:
        self.asked = asked
        self.readings = RatioSketch()
        self.recent: Floats = np.empty(0, np.float32)  # at most a window less one
        self.averages: Times = np.empty(0)
        self.times: Times = np.empty(0)  # of the averages
        self.risen = 0  # readings that were too much above
        self.largest = 0.0  # rise in percentage points, of those that were too much
        self.last_risen = np.nan

    def add(self, column: Floats, times: Times) -> Times:
        """Returns the rise at each row in percentage points, NaN if known are too few readings."""
        known = np.flatnonzero(~np.isnan(column))
        found = np.full(len(column), np.nan)
        count = self.readings.count
        self.readings.add(column)
        new = self._new_averages(column[known], times[known])
        if not new:
            return found
        rises = np.round(100 * self._rises(new), DIGITS)
        enough = count + np.arange(len(known) - new, len(known)) + 1 > self.asked.patience
        rows = known[-new:]
        found[rows[enough]] = rises[enough]
        too_much = found > self.asked.above
        if too_much.any():
            self.risen += int(np.count_nonzero(too_much))
            self.largest = max(self.largest, float(found[too_much].max()))
            self.last_risen = float(times[too_much][-1])
        return found

    def _new_averages(self, values: Floats, times: Times) -> int:
        """Adds readings; returns how many moving averages they complete."""
        window = self.asked.window
        history = np.concatenate((self.recent, values))
        self.recent = history[len(history) - min(len(history), window - 1) :]
        new = max(0, len(history) - window + 1)
        if new:
            sums = np.concatenate(([0.0], np.cumsum(history, dtype=np.float64)))
            self.averages = np.concatenate((self.averages, (sums[window:] - sums[:-window]) / window))
            self.times = np.concatenate((self.times, times[-new:]))
        return new

    def _rises(self, new: int) -> Times:
        """Returns how far the newest averages are above the lowest of the horizon; 0 if none is too high."""
        ends = np.arange(len(self.averages) - new, len(self.averages))
        starts = np.searchsorted(self.times, self.times[ends] - 60 * self.asked.horizon)
        averages = self.averages
        self.averages, self.times = averages[starts[-1] :], self.times[starts[-1] :]
        newest: Times = averages[ends]
        widest = 100 * (newest.max() - averages[starts[0] :].min())
        if round(float(widest), DIGITS) <= self.asked.above:
            return np.zeros(new)  # no rise is too high, as in most runs
        rises: Times = newest - lowest_between(averages, starts, ends)
        return rises


class MemoryRises(Measurement[Rises]):
    """The rises of all GPUs of a node; a scan sees those since the previous scan."""

    def __init__(self, asked: MemoryRise) -> None:
        self.asked = asked
        self.gpus: list[RiseOfGpu] = []
        self.highest = HighestSinceScan()

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[Rises]:
        while len(self.gpus) < samples.gpu_memory.shape[1]:
            self.gpus.append(RiseOfGpu(self.asked))
        rises = np.empty(samples.gpu_memory.shape)
        for number, gpu in enumerate(self.gpus):
            rises[:, number] = gpu.add(samples.gpu_memory[:, number], samples.times)
        highest = np.round(self.highest.add(rises, scans) / 100, DIGITS + 2)
        return [("", Rises(~np.isnan(highest), highest))]


@dataclass(frozen=True)
class MemoryRise(Measure[MemoryRises]):
    """Asks for the rises of moving averages, over `window` readings, above the lowest of `horizon` minutes.

    Rises up to `above` percentage points may be given as 0, which saves time. Only larger rises count, once
    there are more than `patience` readings.
    """

    window: int
    horizon: float
    patience: int
    above: float

    def new(self) -> MemoryRises:
        return MemoryRises(self)


def lowest_between(values: Times, starts: NDArray[np.intp], ends: NDArray[np.intp]) -> Times:
    """Returns the lowest of values[start] .. values[end], both included, for each pair.

    The lowest of each run of 1, 2, 4, ... values is found once; two such runs cover any range.
    """
    levels = np.frexp(ends - starts + 1)[1] - 1  # the largest power of two that fits
    lowest = np.empty(len(ends))
    of_runs = values
    for level in range(int(levels.max()) + 1):
        if level:
            half = 2 ** (level - 1)
            of_runs = np.minimum(of_runs[:-half], of_runs[half:])
        its = levels == level
        lowest[its] = np.minimum(of_runs[starts[its]], of_runs[ends[its] - 2**level + 1])
    return lowest
