"""Finished steps by rank and phase: sums that add up, and all durations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.measure import Measure, Measurement, Views
from trainwatch.measurements.state import Scans, State
from trainwatch.runs.model import COMPONENTS, PHASES, Steps, Times

# The steps that are kept one by one, the longest; the number of outliers is always exact.
LONGEST_KEPT = 1000
# Fewer steps have no outliers: their standard deviation is too uncertain.
STEPS_NEEDED = 100
HISTOGRAM_BINS = 100


@dataclass(frozen=True)
class StepSums:
    """Sums over steps: they add up over blocks, phases and ranks, and a window is the difference of two."""

    count: int = 0
    shift: float = 0.0  # sums are of differences from this duration, to keep their precision
    beyond: float = 0.0
    squares: float = 0.0
    components: Times = field(default_factory=lambda: np.zeros(len(COMPONENTS)))  # seconds

    @classmethod
    def of(cls, durations: Times, components: Times, shift: float) -> StepSums:
        """Returns the sums of (n,) durations and (n, components) seconds."""
        beyond = durations - shift
        return cls(len(durations), shift, float(beyond.sum()), float(beyond @ beyond), components.sum(axis=0))

    def __add__(self, other: StepSums) -> StepSums:
        return self._with(other, 1) if self.count else other

    def __sub__(self, earlier: StepSums) -> StepSums:
        return self._with(earlier, -1)

    def _with(self, other: StepSums, times: int) -> StepSums:
        apart = other.shift - self.shift
        squares = other.squares + 2 * apart * other.beyond + other.count * apart**2
        return StepSums(
            self.count + times * other.count,
            self.shift,
            self.beyond + times * (other.beyond + other.count * apart),
            self.squares + times * squares,
            self.components + times * other.components,
        )

    @property
    def seconds(self) -> float:
        return self.count * self.shift + self.beyond

    @property
    def mean(self) -> float:
        """Returns the mean duration, NaN without steps."""
        return self.shift + self.beyond / self.count if self.count else math.nan

    @property
    def standard_deviation(self) -> float:
        """Returns the population's, as numpy's; NaN without steps."""
        if not self.count:
            return math.nan
        return math.sqrt(max(0.0, self.squares / self.count - (self.beyond / self.count) ** 2))


class Distribution(NamedTuple):
    """Seconds: percentiles of durations, and a histogram of at most 100 bins with one edge more."""

    min: float
    p50: float
    p95: float
    p99: float
    max: float
    edges: list[float]
    counts: list[int]


class Durations(State):
    """The steps of one rank in one phase: all durations, in 8 bytes per step, and details of the longest.

    The values are in sorted runs of falling length, as in a merge sort. Adding n values costs n log n in
    total, however small the blocks; counting those above a limit is a search in each run.
    """

    def __init__(self) -> None:
        self.sums = StepSums()
        self.runs: list[Times] = []
        self.longest: Times = np.empty((0, 2 + len(COMPONENTS)))  # duration, step number, components
        self.at_last_scan = 0  # steps so far

    def observe(
        self, numbers: NDArray[np.int64], durations: Times, components: Times, scans: Scans
    ) -> StepsAtScans:
        """Adds the steps of a block."""
        self._keep_longest(numbers, durations, components)
        moments, start = [], 0
        for end in scans:
            self._add(durations[start:end], components[start:end])
            start = end
            if self.sums.count > self.at_last_scan:
                self.at_last_scan = self.sums.count
                moments.append(self.copy())
        self._add(durations[start:], components[start:])
        return StepsAtScans(moments)

    def _add(self, durations: Times, components: Times) -> None:
        if not len(durations):
            return
        shift = self.sums.shift if self.sums.count else float(durations[0])
        self.sums += StepSums.of(durations, components, shift)
        run = np.sort(durations)
        while self.runs and len(self.runs[-1]) <= len(run):
            run = np.sort(np.concatenate((self.runs.pop(), run)), kind="stable")  # merges sorted runs
        self.runs.append(run)

    def _keep_longest(self, numbers: NDArray[np.int64], durations: Times, components: Times) -> None:
        """Keeps the longest steps; equally long ones in the order of their numbers."""
        added = np.column_stack((durations, numbers.astype(np.float64), components))
        longest = np.concatenate((self.longest, added))
        if len(longest) > LONGEST_KEPT:
            longest = longest[np.lexsort((longest[:, 1], -longest[:, 0]))[:LONGEST_KEPT]]
        self.longest = longest

    def limit(self, deviations: float) -> float:
        """Returns the seconds above which a step is an outlier: mean + deviations x standard deviation."""
        if self.sums.count < STEPS_NEEDED:
            return math.inf
        return self.sums.mean + deviations * self.sums.standard_deviation

    def above(self, limit: float) -> int:
        """Returns how many durations are longer."""
        return sum(len(run) - int(run.searchsorted(limit, side="right")) for run in self.runs)

    def seconds_above(self, limit: float) -> float:
        """Returns the sum of the durations that are longer."""
        return sum(float(run[run.searchsorted(limit, side="right") :].sum()) for run in self.runs)

    def sorted(self) -> Times:
        return np.sort(np.concatenate(self.runs), kind="stable") if self.runs else np.empty(0)

    def distribution(self, limit: float) -> Distribution:
        """Returns percentiles of all steps, at least one, and a histogram of those up to a limit."""
        ordered = self.sorted()
        p50, p95, p99 = np.percentile(ordered, (50, 95, 99)).tolist()
        edges, counts = _histogram(ordered[ordered <= limit])
        return Distribution(float(ordered[0]), p50, p95, p99, float(ordered[-1]), edges, counts)


class StepsAtScans:
    """The steps of a rank and phase at each scan with a new step."""

    def __init__(self, moments: Sequence[Durations]) -> None:
        self._moments = moments

    @property
    def steps(self) -> Times:
        """Returns (scans,) the numbers of steps."""
        return np.array([steps.sums.count for steps in self._moments], np.float64)

    def outliers(self, deviations: float) -> Times:
        """Returns (scans,) the numbers of outliers, above mean + deviations x standard deviation."""
        return np.array([steps.above(steps.limit(deviations)) for steps in self._moments], np.float64)


class ScrapedSteps(NamedTuple):
    """The steps of several ranks and phases at one moment, from histograms."""

    steps: Times
    counted: Times  # the outliers that are certain

    def outliers(self, deviations: float) -> Times:
        """Returns the outliers at the deviations at which they were counted."""
        return self.counted


class NodeSteps(Measurement[StepsAtScans]):
    """All steps of a node."""

    def __init__(self) -> None:
        self.durations: dict[tuple[int, str], Durations] = {}  # by rank and phase

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[StepsAtScans]:
        present = {(steps.rank, PHASES[index]) for index in np.unique(steps.phases)}
        for new in sorted(present - self.durations.keys()):
            self.durations[new] = Durations()
        views = []
        for (rank, phase), durations in self.durations.items():
            if rank == steps.rank:
                chosen = steps.phases == PHASES.index(phase)
                ends = np.concatenate(([0], np.cumsum(chosen)))[scans]
                view = durations.observe(
                    steps.numbers[chosen], steps.durations[chosen], steps.components[chosen], ends
                )
                views.append(((rank, phase), view))
        return views

    def count(self, rank: int | None = None) -> int:
        """Returns the number of steps, of one rank or of all."""
        return sum(steps.sums.count for key, steps in self.durations.items() if rank in (None, key[0]))


@dataclass(frozen=True)
class StepDurations(Measure[NodeSteps]):
    """Asks for all steps by rank and phase."""

    def new(self) -> NodeSteps:
        return NodeSteps()


def _histogram(ordered: Times) -> tuple[list[float], list[int]]:
    """Returns edges in seconds and counts of sorted durations."""
    if not len(ordered):
        return [], []
    bins = min(HISTOGRAM_BINS, len(ordered))
    if ordered[-1] - ordered[0] <= 1e-9 * ordered[-1]:  # equal durations: bins would have no width
        bins = 1
    counts, edges = np.histogram(ordered, bins=bins, range=(float(ordered[0]), float(ordered[-1])))
    return edges.tolist(), counts.tolist()
