"""Steps of a rank, reconstructed from its step histogram, its sums and its components.

The gain between two scrapes gives the number of steps, their total time and its variance. It gives the
bucket of the histogram that contains each step (bounds are a factor of about 1.8 apart), and the time of
each component. Steps are made up that match all of these. Their order is not known, nor which steps a
component's time belongs to: each step gets the same share of it, so that no single step is blamed.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stepscope.runs.model import COMPONENTS, PHASES, Steps, Times
from stepscope.runs.prometheus.series import Gains, Scrapes
from stepscope.training.layout import STEP_BOUNDS

DURATION = "stepscope_step_duration_seconds"
EDGES = np.array((0.0, *STEP_BOUNDS, STEP_BOUNDS[-1] * 2))
WITHIN = 1e-6  # above a bucket's left edge, as a share of it
ROUNDS = 4  # of fitting the durations to their sum


class RankSteps:
    """Reads a rank's counters piece by piece, in time order."""

    def __init__(self, node: str, rank: int, from_beginning: bool, first_start: float | None) -> None:
        # From the beginning: the counts at the first scrape belong to the stored part of the run.
        self.node, self.rank = node, rank
        self._gains = Gains(first=0.0 if from_beginning else None)
        self._first_start = first_start
        self._last_time: float | None = None
        self._numbers = dict.fromkeys(PHASES, 0)

    def add(self, scrapes: Scrapes, run: str) -> Steps | None:
        """Returns the steps that ended between these scrapes; None if there are none."""
        labels = {"run": run, "rank": str(self.rank)}
        phases = [_Phase(phase, scrapes, self._gains, labels) for phase in PHASES]
        name = "stepscope_step_component_seconds_total"
        components = np.column_stack(
            [self._gains.exactly(scrapes, name, component=component, **labels) for component in COMPONENTS]
        )
        rows = [
            steps
            for row in range(len(scrapes))
            if (steps := self._between(phases, components[row], row, float(scrapes.times[row]))) is not None
        ]
        if not rows:
            return None
        numbers, phase, starts, durations, spent = (
            np.concatenate(parts) for parts in zip(*rows, strict=True)
        )
        return Steps(self.node, self.rank, numbers, phase, starts, durations, spent)

    def _between(
        self, phases: "list[_Phase]", components: Times, row: int, now: float
    ) -> tuple[np.ndarray, ...] | None:
        """Returns numbers, phases, starts, durations and components of the steps before one scrape."""
        durations = [phase.durations(row) for phase in phases]
        counts = [len(found) for found in durations]
        of_phase = np.repeat(np.arange(len(phases), dtype=np.uint8), counts)
        numbers = []
        for phase, count in zip(phases, counts, strict=True):
            numbers.append(self._numbers[phase.name] + np.arange(count))
            self._numbers[phase.name] += count
        took = np.concatenate(durations)
        since, self._last_time = self._last_time, now
        if not len(took):
            return None
        total = float(took.sum())
        known = [moment for moment in (since, self._first_start) if moment is not None and moment < now]
        passed = now - max(known) if known else total
        apart = took + max(0.0, passed - total) / len(took)
        apart *= min(1.0, passed / apart.sum())  # the first step may have begun before
        ends = now - np.append(np.cumsum(apart[:0:-1])[::-1], 0.0)
        spent = np.tile(components / len(took), (len(took), 1))
        return np.concatenate(numbers), of_phase, ends - took, took, spent


class _Phase:
    """The gains of the histogram of one phase, scrape by scrape."""

    def __init__(self, name: str, scrapes: Scrapes, gains: Gains, labels: dict[str, str]) -> None:
        self.name = name
        labels = {**labels, "phase": name}
        self._buckets, self._counts, self._sums = gains.histogram(scrapes, DURATION, STEP_BOUNDS, **labels)
        squares = "stepscope_step_duration_squared_seconds_total"
        self._squares = gains.exactly(scrapes, squares, **labels)

    def durations(self, row: int) -> Times:
        """Returns durations in ascending buckets, with the gained sum and as near as possible variance."""
        count = round(float(self._counts[row]))
        if count <= 0:
            return np.empty(0)
        bins = np.repeat(np.arange(self._buckets.shape[1]), self._buckets[row])[:count]
        if len(bins) < count:  # a bucket is not stored
            return np.full(count, self._sums[row] / count)
        low, high = EDGES[bins] * (1 + WITHIN), EDGES[bins + 1]
        found = _fitted(np.sqrt(np.maximum(low, high / 2) * high), self._sums[row], low, high)
        mean = self._sums[row] / count
        variance = max(0.0, self._squares[row] / count - mean**2)
        missing = max(0.0, variance - float(found.var()))
        found = _fitted(found + math.sqrt(missing) * _spread(bins), self._sums[row], low, high)
        for _ in range(ROUNDS):  # steps on both sides of a bound may be near it
            if (too_wide := float(found.var())) > variance:
                nearer = mean + (found - mean) * math.sqrt(variance / too_wide)
                found = _fitted(nearer, self._sums[row], low, high)
        return found


def _fitted(values: Times, total: float, low: Times, high: Times) -> Times:
    """Returns the values, scaled within their bounds so that their sum is `total`."""
    for _ in range(ROUNDS):
        values = np.clip(values * (total / values.sum()), low, high)
    return values


def _spread(bins: NDArray[np.intp]) -> Times:
    """Returns even steps from low to high within each bin, with mean 0 and variance 1."""
    starts = np.searchsorted(bins, bins)
    counts = np.searchsorted(bins, bins, side="right") - starts
    places: Times = (np.arange(len(bins)) - starts + 0.5) / counts
    return (places - 0.5) * math.sqrt(12)


def ranks_of(scrapes: Scrapes, run: str) -> Iterator[int]:
    """Yields the ranks that have a step."""
    for rank in scrapes.values_of(f"{DURATION}_count", "rank", run=run):
        if rank.isdecimal():
            yield int(rank)
