"""Step durations of one rank in one phase: mean and deviation, how many exceed a bound, the longest steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.state import State
from trainwatch.runs.model import COMPONENTS, Times

# Which steps were outliers is known of this many of the longest; how many were is always exact.
LONGEST_KEPT = 1000


class Durations(State):
    """All durations in seconds, sorted, in 8 bytes a step; more is kept of the longest only.

    The sorted values lie in runs of falling length, like the runs of a merge sort: adding n of them costs
    n log n in all, however small the blocks, and counting those above a bound is a search in each run.
    """

    def __init__(self) -> None:
        self.count = 0
        self.runs: list[Times] = []
        self.shift = 0.0  # sums are of the difference from the first duration: no digits are lost
        self.sum = 0.0
        self.sum_of_squares = 0.0
        self.component_sums: Times = np.zeros(len(COMPONENTS))
        self.longest: Times = np.empty((0, 2 + len(COMPONENTS)))  # duration, step number, components

    def add(self, durations: Times) -> None:
        if not len(durations):
            return
        if not self.count:
            self.shift = float(durations[0])
        differences = durations - self.shift
        self.count += len(durations)
        self.sum += float(differences.sum())
        self.sum_of_squares += float(differences @ differences)
        run = np.sort(durations)
        while self.runs and len(self.runs[-1]) <= len(run):
            run = np.sort(np.concatenate((self.runs.pop(), run)), kind="stable")  # merges sorted runs
        self.runs.append(run)

    def keep_longest(self, durations: Times, numbers: NDArray[np.int64], components: Times) -> None:
        """What is known of each of these steps; equally long ones are kept in the order of their numbers."""
        self.component_sums = np.vstack((self.component_sums, components)).sum(axis=0)
        added = np.column_stack((durations, numbers.astype(np.float64), components))
        longest = np.concatenate((self.longest, added))
        if len(longest) > LONGEST_KEPT:
            longest = longest[np.lexsort((longest[:, 1], -longest[:, 0]))[:LONGEST_KEPT]]
        self.longest = longest

    @property
    def mean(self) -> float:
        return self.shift + self.sum / self.count if self.count else np.nan

    @property
    def standard_deviation(self) -> float:
        """Of the population, as numpy's."""
        if not self.count:
            return np.nan
        variance = self.sum_of_squares / self.count - (self.sum / self.count) ** 2
        return float(np.sqrt(max(0.0, variance)))

    def bound(self, deviations: float) -> float:
        """Mean and so many standard deviations."""
        return self.mean + deviations * self.standard_deviation

    def above(self, bound: float) -> int:
        """How many durations are longer than the bound."""
        return sum(len(run) - int(np.searchsorted(run, bound, side="right")) for run in self.runs)

    def seconds_above(self, bound: float) -> float:
        """The sum of the durations that are longer than the bound."""
        return sum(float(run[np.searchsorted(run, bound, side="right") :].sum()) for run in self.runs)

    def sorted(self) -> Times:
        return np.sort(np.concatenate(self.runs), kind="stable") if self.runs else np.empty(0)
