"""What a rule must say at one moment, and the arithmetic that several rules share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from trainwatch.crosscheck.readings import Moment
from trainwatch.measurements.scraped import Labels, Vector
from trainwatch.prometheus_rules.groups import STATUS
from trainwatch.rules.promql import Scraping


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


def above(vector: Vector, bound: float) -> frozenset[Labels]:
    """Whose value is greater."""
    return frozenset(labels for labels, value in vector.items() if value > bound)


def below(vector: Vector, bound: float) -> frozenset[Labels]:
    """Whose value is less."""
    return frozenset(labels for labels, value in vector.items() if value < bound)
