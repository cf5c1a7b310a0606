"""What a rule must say at one moment, and the arithmetic that several rules share."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from trainwatch.crosscheck.readings import Moment, both, grouped, without
from trainwatch.crosscheck.server import Labels, Vector
from trainwatch.prometheus_rules.groups import STATUS
from trainwatch.rules.promql import Scraping

GPU_SAMPLES = "trainwatch_gpu_utilization_samples"
STEPS = "trainwatch_step_duration_seconds"


@dataclass(frozen=True)
class Expected:
    """What a rule must say at one moment: the values it records, and where each alert's condition holds."""

    records: Mapping[str, Vector]
    targets: Collection[Labels]
    conditions: tuple[frozenset[Labels], ...]

    def status(self) -> Vector:
        """1 where the condition of some alert holds, else 0."""
        holds = frozenset().union(*self.conditions)
        return {labels: float(labels in holds) for labels in (*self.targets, *holds)}

    def values_of(self, series: str) -> Mapping[Labels, float]:
        """Of the status, or of one of the records."""
        return self.status() if series == STATUS else self.records[series]


Recompute = Callable[[Moment, Any, Scraping], Expected]


def divided(dividend: float, divisor: float) -> float:
    """As PromQL divides: nothing by nothing is no number."""
    if divisor:
        return dividend / divisor
    return math.copysign(math.inf, dividend) if dividend else math.nan


def above(vector: Vector, bound: float) -> frozenset[Labels]:
    """Whose value is greater."""
    return frozenset(labels for labels, value in vector.items() if value > bound)


def below(vector: Vector, bound: float) -> frozenset[Labels]:
    """Whose value is less."""
    return frozenset(labels for labels, value in vector.items() if value < bound)


def summed(vector: Vector, *names: str) -> Vector:
    """Added up over all values of some labels."""
    return {labels: sum(values) for labels, values in grouped(vector, *names).items()}


def going_on(now: Moment, gpus: frozenset[Labels]) -> frozenset[Labels]:
    """The GPUs of runs that have not ended."""
    ended = now("trainwatch_run_end_time_seconds")
    return frozenset(labels for labels in gpus if without(labels, "gpu") not in ended)


def gained(now: Moment, name: str, matchers: str, seconds: float, whole: bool, of_run: bool = True) -> Vector:
    """What counters gained in so many seconds.

    Where the window need not be `whole`, a younger counter counts from its beginning.
    """
    current, before = now(name, matchers, 0, of_run), now(name, matchers, seconds, of_run)
    if not whole:
        before = {**dict.fromkeys(current, 0.0), **before}
    return both(current, before, lambda late, early: late - early)
