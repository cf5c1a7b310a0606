"""Sets of moments, as intervals that do not overlap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Intervals:
    """Intervals that do not overlap, in time order; (n,) starts and ends in any unit."""

    starts: Numbers
    ends: Numbers

    @classmethod
    def union(cls, starts: Numbers, ends: Numbers) -> Intervals:
        """Returns the time in which at least one interval runs; intervals without length are left out."""
        real = ends > starts
        if not real.all():
            starts, ends = starts[real], ends[real]
        if (starts[1:] < starts[:-1]).any():  # the columns of a large trace are in order, and are not copied
            order = np.argsort(starts, kind="stable")
            starts, ends = starts[order], ends[order]
            del order
        ends = np.maximum.accumulate(ends)
        first = np.append(True, starts[1:] > ends[:-1])[: len(starts)]
        return cls(starts[first], ends[np.append(first[1:], True)[: len(ends)]])

    def __or__(self, other: Intervals) -> Intervals:
        if not len(self.starts) or not len(other.starts):
            return self if len(self.starts) else other
        starts = np.concatenate((self.starts, other.starts))
        return Intervals.union(starts, np.concatenate((self.ends, other.ends)))

    @property
    def length(self) -> float:
        return float((self.ends - self.starts).sum())

    def gaps(self) -> Intervals:
        """Returns the intervals between these."""
        return Intervals(self.ends[:-1], self.starts[1:])

    def minus(self, other: Intervals) -> Intervals:
        """Returns the time in which these run and the other ones do not."""
        points = np.unique(np.concatenate((self.starts, self.ends, other.starts, other.ends)))
        starts, ends = points[:-1], points[1:]
        middles = (starts + ends) / 2
        kept = self.run_at(middles) & ~other.run_at(middles)
        return Intervals.union(starts[kept], ends[kept])

    def run_at(self, moments: Numbers) -> NDArray[np.bool_]:
        """Returns (n,) whether one of them runs at each moment."""
        after: NDArray[np.bool_] = np.searchsorted(self.starts, moments) > np.searchsorted(self.ends, moments)
        return after

    def within(self, starts: Numbers, ends: Numbers) -> Numbers:
        """Returns (n,) how long they run within each of n windows."""
        points = np.append(-np.inf, np.column_stack((self.starts, self.ends)).ravel())
        lengths = np.zeros(len(points))
        lengths[2::2] = self.ends - self.starts
        total = np.cumsum(lengths)
        within = np.interp(ends, points, total)
        within -= np.interp(starts, points, total)
        return within
