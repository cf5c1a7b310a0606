"""How full the memory of each GPU is, whether it grows steadily, and when it will be full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.growth import Growth, Lows
from trainwatch.measurements.highest import HighestSinceScan
from trainwatch.measurements.measure import Measure, Measurement, Views
from trainwatch.measurements.state import Scans
from trainwatch.runs.model import NodeSamples, Times

FORECAST_ROWS = 600  # samples (5 minutes) that a forecast needs
_UNKNOWN: NDArray[np.floating[Any]] = np.array(np.nan)


class Filling(NamedTuple):
    """The use of a GPU's memory, as shares of all of it; NaN where it is not known."""

    samples: Times  # of the node so far
    read: NDArray[np.bool_]  # whether the memory was ever read
    highest: NDArray[np.floating[Any]] = _UNKNOWN  # since the scan before
    growth: NDArray[np.floating[Any]] = _UNKNOWN  # since the warm-up, where it is steady
    full_in: NDArray[np.floating[Any]] = _UNKNOWN  # seconds until it is full at this pace


class MemoryOfNode(Measurement[Filling]):
    """The lowest and highest use of the memory of each GPU of a node; subjects are columns."""

    def __init__(self) -> None:
        self.lows = Lows()
        self.since_scan = HighestSinceScan()

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[Filling]:
        so_far = (self.lows.rows + scans).astype(float)
        highest = self.since_scan.add(samples.gpu_memory, scans)
        growth, full_in = np.full((2, *highest.shape), np.nan)
        read = np.zeros(highest.shape, bool)
        start = 0
        for number, end in enumerate(scans):
            self.lows.add(samples.times[start:end], samples.gpu_memory[start:end])
            found = self.lows.growth()
            known = slice(len(found.level))
            growth[number, known], full_in[number, known] = found.growth, self.full_in(found)
            read[number, known] = ~np.isnan(found.level)
            start = int(end)
        self.lows.add(samples.times[start:], samples.gpu_memory[start:])
        views = zip(read.T, highest.T, growth.T, full_in.T, strict=True)
        return [(column, Filling(so_far, *view)) for column, view in enumerate(views)]

    def full_in(self, growth: Growth) -> Times:
        """Returns the seconds until the memory of each GPU is full, NaN where it is too early to say."""
        return growth.full_in if self.lows.rows > FORECAST_ROWS else np.full_like(growth.level, np.nan)


@dataclass(frozen=True)
class MemoryGrowth(Measure[MemoryOfNode]):
    """Asks for the use and the growth of each GPU's memory."""

    def new(self) -> MemoryOfNode:
        return MemoryOfNode()
