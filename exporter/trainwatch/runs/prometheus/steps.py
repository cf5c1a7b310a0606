"""Steps of a rank made of its step histogram, its sums and its components.

What was gained between two scrapes says how many steps there were, how long all of them took together, how
much they varied, in which bucket of the histogram each lies (bounds are a factor of about 1.8 apart), and how
much time each component had. Steps are made up that have all of that. Which came first is not known, nor to
which steps a component's time belongs: each has the same share of it, so that no step's excess is blamed on
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trainwatch.runs.model import COMPONENTS, PHASES, Steps, Times
from trainwatch.runs.prometheus.scrapes import Gains, Scrapes
from trainwatch.training.layout import STEP_BOUNDS

DURATION = "trainwatch_step_duration_seconds"
EDGES = np.array((0.0, *STEP_BOUNDS, STEP_BOUNDS[-1] * 2))
WITHIN = 1e-6  # of a bucket's left edge, as a share of it
ROUNDS = 4  # of fitting the durations to their sum


class RankSteps:
    """Reads a rank's counters piece by piece, in the order of time."""

    def __init__(self, node: str, rank: int, from_beginning: bool, first_start: float | None) -> None:
        """`from_beginning`: what the first scrape counted is of this run's stored time."""
        self.node, self.rank = node, rank
        self._gains = Gains(first=0.0 if from_beginning else None)
        self._last_time = first_start
        self._numbers = dict.fromkeys(PHASES, 0)

    def add(self, scrapes: Scrapes, run: str) -> Steps | None:
        """The steps that ended between these scrapes; None where there were none."""
        labels = {"run": run, "rank": str(self.rank)}
        phases = [_Phase(phase, scrapes, self._gains, labels) for phase in PHASES]
        components = np.column_stack(
            [
                self._gains.of(
                    component,
                    scrapes.exactly("trainwatch_step_component_seconds_total", component=component, **labels),
                )
                for component in COMPONENTS
            ]
        )
        rows = [
            steps
            for row in range(len(scrapes))
            if (steps := self._between(phases, components[row], row, float(scrapes.times[row]))) is not None
        ]
        if not rows:
            return None
        columns = [np.concatenate(parts) for parts in zip(*rows, strict=True)]
        numbers, phase, starts, durations, spent = columns
        return Steps(self.node, self.rank, numbers, phase, starts, durations, spent)

    def _between(
        self, phases: list[_Phase], components: Times, row: int, now: float
    ) -> tuple[np.ndarray, ...] | None:
        durations, of_phase, numbers = [], [], []
        for index, phase in enumerate(phases):
            found = phase.durations(row)
            durations.append(found)
            of_phase.append(np.full(len(found), index, dtype=np.uint8))
            numbers.append(self._numbers[phase.name] + np.arange(len(found)))
            self._numbers[phase.name] += len(found)
        took = np.concatenate(durations)
        since, self._last_time = self._last_time, now
        if not len(took):
            return None
        total = float(took.sum())
        passed = now - since if since is not None else total
        apart = took + max(0.0, passed - total) / len(took)
        apart *= min(1.0, passed / apart.sum())  # the first step may have begun before
        ends = now - np.append(np.cumsum(apart[:0:-1])[::-1], 0.0)
        spent = np.tile(components / len(took), (len(took), 1))
        return np.concatenate(numbers), np.concatenate(of_phase), ends - took, took, spent


class _Phase:
    """What the histogram of one phase gained, scrape by scrape."""

    def __init__(self, name: str, scrapes: Scrapes, gains: Gains, labels: dict[str, str]) -> None:
        self.name = name
        own = {**labels, "phase": name}
        self._counts = gains.of((name, "count"), scrapes.exactly(f"{DURATION}_count", **own))
        self._sums = gains.of((name, "sum"), scrapes.exactly(f"{DURATION}_sum", **own))
        squares = scrapes.exactly("trainwatch_step_duration_squared_seconds_total", **own)
        self._squares = gains.of((name, "squares"), squares)
        cumulative = [
            gains.of((name, bound), scrapes.bucket(DURATION, bound, **own)) for bound in STEP_BOUNDS
        ]
        table = np.column_stack([np.zeros(len(scrapes)), *cumulative, self._counts])
        self._buckets = np.rint(np.maximum(np.diff(table, axis=1), 0)).astype(np.int64)

    def durations(self, row: int) -> Times:
        """Bucket by bucket; their sum, and as near as the buckets let it be their variance, were gained."""
        count = round(float(self._counts[row]))
        if count <= 0:
            return np.empty(0)
        bins = np.repeat(np.arange(self._buckets.shape[1]), self._buckets[row])[:count]
        if len(bins) < count:  # a bucket was not stored
            return np.full(count, self._sums[row] / count)
        low, high = EDGES[bins] * (1 + WITHIN), EDGES[bins + 1]
        found = _fitted(np.sqrt(np.maximum(low, high / 2) * high), self._sums[row], low, high)
        mean = self._sums[row] / count
        variance = max(0.0, self._squares[row] / count - mean**2)
        missing = max(0.0, variance - float(found.var()))
        found = _fitted(found + math.sqrt(missing) * _spread(bins), self._sums[row], low, high)
        for _ in range(ROUNDS):  # steps on both sides of a bound may lie near it
            if (too_wide := float(found.var())) > variance:
                nearer = mean + (found - mean) * math.sqrt(variance / too_wide)
                found = _fitted(nearer, self._sums[row], low, high)
        return found


def _fitted(values: Times, total: float, low: Times, high: Times) -> Times:
    """The values, changed by a factor within their bounds so that their sum is `total`."""
    for _ in range(ROUNDS):
        values = np.clip(values * (total / values.sum()), low, high)
    return values


def _spread(bins: NDArray[np.intp]) -> Times:
    """Even steps from low to high within each bin, with mean 0 and variance 1."""
    starts = np.searchsorted(bins, bins)
    counts = np.searchsorted(bins, bins, side="right") - starts
    places: Times = (np.arange(len(bins)) - starts + 0.5) / counts
    return (places - 0.5) * math.sqrt(12)


def ranks_of(scrapes: Scrapes, run: str) -> Iterator[int]:
    """The ranks that have a step."""
    yield from (
        int(rank) for rank in scrapes.values_of(f"{DURATION}_count", "rank", run=run) if rank.isdecimal()
    )
