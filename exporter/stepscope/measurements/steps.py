"""Finished steps by rank and phase: sums that add up, and all durations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.measure import Measure, Measurement, Portion, PortionSoFar, Views
from stepscope.measurements.state import Scans, State
from stepscope.runs.model import COMPONENTS, PHASES, Steps, Times

# The steps that are kept one by one, the longest; the number of outliers is always exact.
LONGEST_KEPT = 1000
FIRST_KEPT = 1000  # of the steps that may be a warm-up
# Fewer steps have no outliers: their standard deviation is too uncertain.
STEPS_NEEDED = 100
FEWEST = 3  # steps of a trace in which one can be an outlier
FAR_ABOVE = 0.5  # of the mean: in a few steps, the deviation alone is too uncertain
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


@dataclass(frozen=True)
class StepDistribution:
    """The step durations of one rank in one phase, in seconds.

    `counts[i]` steps took `edges[i]` to `edges[i + 1]`; the outliers of StepOutlier are in no bin.
    """

    rank: int
    phase: str
    count: int
    mean: float
    standard_deviation: float
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
        self.before: list[Times] = []  # the runs of steps before the window
        self.longest: Times = np.empty((0, 2 + len(COMPONENTS)))  # duration, step number, components
        self.at_last_scan = 0  # steps so far
        self.first: Times = np.empty((0, 2))  # the first steps: number, duration

    def observe(
        self, numbers: NDArray[np.int64], durations: Times, components: Times, scans: Scans
    ) -> StepsAtScans:
        """Adds the steps of a block."""
        if (room := FIRST_KEPT - len(self.first)) > 0:
            self.first = np.concatenate((self.first, np.column_stack((numbers, durations))[:room]))
        self._keep_longest(numbers, durations, components)
        moments, start = [], 0
        for end in scans:
            self._add(durations[start:end], components[start:end])
            start = end
            moments.append(self.copy())
        self._add(durations[start:], components[start:])
        view = StepsAtScans(moments, self.at_last_scan)
        if moments:
            self.at_last_scan = moments[-1].sums.count
        return view

    def __sub__(self, earlier: Durations) -> Durations:
        """Returns the steps since an earlier moment: their sums, limit, and how many are above."""
        window = self.copy()
        window.sums, window.before = self.sums - earlier.sums, earlier.runs
        return window

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

    def limit(self, deviations: float, needed: int = STEPS_NEEDED) -> float:
        """Returns the seconds above which a step is an outlier: mean + deviations x standard deviation.

        They are infinite with fewer steps than `needed`.
        """
        if self.sums.count < needed:
            return math.inf
        return self.sums.mean + deviations * self.sums.standard_deviation

    def limit_of_few(self, deviations: float) -> float:
        """Returns the limit of few steps: those that are not far above the shorter ones do not count in it.

        An outlier also takes half as long again as their mean. Outliers are at most a third of the steps. The
        limit is infinite without outliers, or with fewer steps than FEWEST.
        """
        ordered = self.sorted()
        usual = len(ordered) - max(1, len(ordered) // 3)
        for place in range(usual, len(ordered)) if len(ordered) >= FEWEST else ():
            shorter = ordered[:place]
            limit = shorter.mean() + max(deviations * shorter.std(), FAR_ABOVE * shorter.mean())
            if ordered[place] > limit:
                return float(limit)
        return math.inf

    def above(self, limit: float) -> int:
        """Returns how many durations are longer."""
        return _above(self.runs, limit) - _above(self.before, limit)

    def seconds_above(self, limit: float) -> float:
        """Returns the sum of the durations that are longer."""
        return _seconds_above(self.runs, limit) - _seconds_above(self.before, limit)

    def excess_seconds(self, limit: float) -> float:
        """Returns the seconds that the longer ones took beyond the mean."""
        return self.seconds_above(limit) - self.above(limit) * self.sums.mean

    def lost(self, limit: float) -> float:
        """Returns these seconds as a share of all."""
        return self.share(self.excess_seconds(limit))

    def share(self, seconds: float) -> float:
        """Returns seconds as a share of all; 0 without any."""
        return seconds / self.sums.seconds if self.sums.seconds else 0.0

    def warm_up(self, limit: float) -> Times:
        """Returns the numbers and durations of the first steps that are longer, up to one that is not."""
        before = sum(map(len, self.before))
        first = self.first[: before + self.sums.count]
        usual = np.flatnonzero(first[:, 1] <= limit)
        warm_up: Times = first[before : usual[0] if len(usual) else None]
        return warm_up

    def later(self, limit: float) -> tuple[int, float]:
        """Returns how many are longer after the warm-up, and what they took beyond the mean."""
        warm_up = self.warm_up(limit)[:, 1]
        beyond = float(warm_up.sum()) - len(warm_up) * self.sums.mean if len(warm_up) else 0.0
        return self.above(limit) - len(warm_up), self.excess_seconds(limit) - beyond

    def sorted(self) -> Times:
        return np.sort(np.concatenate(self.runs), kind="stable") if self.runs else np.empty(0)

    def distribution(self, rank: int, phase: str, limit: float) -> StepDistribution:
        """Returns percentiles of all steps, at least one, and a histogram of those up to a limit."""
        ordered, sums = self.sorted(), self.sums
        low, p50, p95, p99, high = np.percentile(ordered, (0, 50, 95, 99, 100)).tolist()
        summary = (sums.count, sums.mean, sums.standard_deviation, low, p50, p95, p99, high)
        return StepDistribution(rank, phase, *summary, *_histogram(ordered[ordered <= limit]))


class StepsAtScans:
    """The steps of a rank and phase at each scan."""

    def __init__(self, moments: Sequence[Durations], before: int = 0) -> None:
        """Compares with `before`, the number of steps at the scan before these."""
        self._moments: NDArray[np.object_] = np.empty(len(moments), object)
        self._moments[:] = moments
        self.new = np.diff(self.steps, prepend=before) > 0  # scans with a new step
        self.quickest: Times = np.full(len(moments), np.nan)  # see compare_thirds

    def moments(self) -> NDArray[np.object_]:
        """Returns the durations so far; see Cumulative."""
        return self._moments

    def of(self, moments: NDArray[np.object_]) -> StepsAtScans:
        return StepsAtScans(moments.tolist())

    def compare_thirds(self, last: NDArray[np.object_], two: NDArray[np.object_]) -> None:
        """Notes the lowest mean duration of a window's thirds, from the moments of the last one and two.

        It is NaN if only one of them has steps: nothing says then whether its steps are as usual.
        """
        sums = np.stack([(view.steps, view.seconds) for view in (self.of(last), self.of(two), self)])
        steps, seconds = np.diff(sums, axis=0, prepend=0).swapaxes(0, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            quickest = np.fmin.reduce(np.where(steps > 0, seconds / steps, np.nan))
        self.quickest = np.where((steps > 0).sum(axis=0) > 1, quickest, np.nan)

    @property
    def steps(self) -> Times:
        """Returns (scans,) the numbers of steps."""
        return np.array([steps.sums.count for steps in self._moments], np.float64)

    @property
    def seconds(self) -> Times:
        """Returns (scans,) the time that they took."""
        return np.array([steps.sums.seconds for steps in self._moments], np.float64)

    def later(self, deviations: float) -> tuple[Times, Times]:
        """Returns (scans,) the numbers of outliers after the warm-up, and their shares of the steps' time."""
        found = []
        for steps in self._moments:
            count, excess = steps.later(steps.limit(deviations, 1))
            found.append((count, steps.share(excess)))
        counts, shares = np.array(found, np.float64).reshape(-1, 2).T
        return counts, shares

    def outliers(self, deviations: float) -> Times:
        """Returns (scans,) the numbers of outliers, above mean + deviations x standard deviation."""
        return np.array([steps.above(steps.limit(deviations, 1)) for steps in self._moments], np.float64)

    def lost(self, deviations: float) -> Times:
        """Returns (scans,) the shares of the steps' time that outliers took beyond the mean."""
        return np.array([steps.lost(steps.limit(deviations, 1)) for steps in self._moments], np.float64)


class ScrapedSteps(NamedTuple):
    """The steps of several ranks and phases in a window, from histograms."""

    steps: Times
    seconds: Times
    counted: Times  # the outliers that are certain
    lost_at_least: Times  # the share of the steps' time that they took beyond the mean
    quickest: Times  # the lowest mean duration of the window's thirds, NaN unless two have steps

    def outliers(self, deviations: float) -> Times:
        """Returns the outliers at the deviations at which they were counted."""
        return self.counted

    def lost(self, deviations: float) -> Times:
        """Returns the shares lost at the same deviations."""
        return self.lost_at_least


class NodeSteps(Measurement[StepsAtScans]):
    """All steps of a node."""

    def __init__(self) -> None:
        self.durations: dict[tuple[int, str], Durations] = {}  # by rank and phase

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[StepsAtScans]:
        present = {(steps.rank, PHASES[index]) for index in np.unique(steps.phases[~steps.profiled])}
        for new in sorted(present - self.durations.keys()):
            self.durations[new] = Durations()
        views = []
        for (rank, phase), durations in self.durations.items():
            if rank == steps.rank:
                chosen = (steps.phases == PHASES.index(phase)) & ~steps.profiled
                ends = np.concatenate(([0], np.cumsum(chosen)))[scans]
                view = durations.observe(
                    steps.numbers[chosen], steps.durations[chosen], steps.components[chosen], ends
                )
                views.append(((rank, phase), view))
        return views

    def count(self, rank: int | None = None) -> int:
        """Returns the number of steps, of one rank or of all."""
        return sum(steps.sums.count for key, steps in self.durations.items() if rank in (None, key[0]))


STEP_DURATIONS = Measure(NodeSteps)


class RankComponents(Measurement[Portion]):
    """The step time of each rank, and its part in a component such as "data_wait"; subjects are ranks."""

    def __init__(self, component: str) -> None:
        self.component = COMPONENTS.index(component)
        self.ranks: dict[int, PortionSoFar] = {}

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[Portion]:
        rank = self.ranks.setdefault(steps.rank, PortionSoFar())
        return [(steps.rank, rank.add(steps.durations, steps.components[:, self.component], scans))]


def _above(runs: Sequence[Times], limit: float) -> int:
    return sum(len(run) - int(run.searchsorted(limit, side="right")) for run in runs)


def _seconds_above(runs: Sequence[Times], limit: float) -> float:
    return sum(float(run[run.searchsorted(limit, side="right") :].sum()) for run in runs)


def _histogram(ordered: Times) -> tuple[list[float], list[int]]:
    """Returns edges in seconds and counts of sorted durations."""
    if not len(ordered):
        return [], []
    bins = min(HISTOGRAM_BINS, len(ordered))
    if ordered[-1] - ordered[0] <= 1e-9 * ordered[-1]:  # equal durations: bins would have no width
        bins = 1
    counts, edges = np.histogram(ordered, bins=bins, range=(float(ordered[0]), float(ordered[-1])))
    return edges.tolist(), counts.tolist()
