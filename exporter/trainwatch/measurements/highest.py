"""The highest reading between two scans."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.state import Scans, State

Numbers = NDArray[np.floating[Any]]


class HighestSinceScan(State):
    """The highest reading of each of several columns since the scan before."""

    def __init__(self) -> None:
        self.so_far: Numbers | None = None  # (columns,) since the last scan

    def add(self, values: Numbers, scans: Scans) -> Numbers:
        """Adds (n, columns) readings, which may have more columns than before.

        Returns (scans, columns) the highest reading that each scan finds, NaN where there was none.
        """
        before = np.full_like(values, np.nan, shape=values.shape[1])
        if self.so_far is not None:
            before[: len(self.so_far)] = self.so_far
        rows = np.concatenate((before[None], values))
        starts, ends = np.append(0, scans + 1), np.append(scans + 1, len(rows))
        highest: Numbers = np.full_like(values, np.nan, shape=(len(starts), values.shape[1]))
        highest[starts < ends] = np.fmax.reduceat(rows, starts[starts < ends], axis=0)
        self.so_far = highest[-1]
        return highest[:-1]
