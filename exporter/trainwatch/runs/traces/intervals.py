"""Sets of time intervals: when at least one of them runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Intervals:
    """Intervals that do not overlap, in the order of time; (n,) beginnings and ends in any unit."""

    starts: Numbers
    ends: Numbers

    @classmethod
    def union(cls, starts: Numbers, ends: Numbers) -> Intervals:
        """The time in which at least one interval runs; intervals without length are left out."""
        real = ends > starts
        order = np.argsort(starts[real], kind="stable")
        starts, ends = starts[real][order], np.maximum.accumulate(ends[real][order])
        first = np.concatenate(([True], starts[1:] > ends[:-1])) if len(starts) else np.empty(0, bool)
        return cls(starts[first], ends[np.append(first[1:], True)] if len(starts) else ends)

    def __or__(self, other: Intervals) -> Intervals:
        starts = np.concatenate((self.starts, other.starts))
        return Intervals.union(starts, np.concatenate((self.ends, other.ends)))

    @property
    def length(self) -> float:
        return float((self.ends - self.starts).sum())

    def gaps(self) -> Intervals:
        """What lies between the first and the last interval."""
        return Intervals(self.ends[:-1], self.starts[1:])

    def within(self, starts: Numbers, ends: Numbers) -> Numbers:
        """(n,) how long they run within each of n windows."""
        return self._before(ends) - self._before(starts)

    def _before(self, times: Numbers) -> Numbers:
        """(n,) how long they run before each time."""
        if not len(self.starts):
            return np.zeros(len(times))
        points = np.column_stack((self.starts, self.ends)).ravel()
        lengths = np.zeros(len(points))
        lengths[1::2] = self.ends - self.starts
        return np.interp(times, points, np.cumsum(lengths))


def empty() -> Intervals:
    return Intervals(np.empty(0), np.empty(0))
