"""Collects the results of the comparison with a recording, one per series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainwatch.crosscheck.compare import Disagreement
from trainwatch.crosscheck.server import Milliseconds
from trainwatch.measurements.scraped import Labels

# Ratios are recorded as float32, with 7 digits.
TOLERANCE = 2e-6


@dataclass
class Compared:
    """One series of Prometheus, of all its labels.

    `largest` is the largest difference from the value by all samples until then, `bound` the largest that
    scrapes may have hidden. Both are in the unit of the series, or in seconds for ALERTS.
    """

    subject: str  # the rule, or "samples"
    series: str
    values: int = 0
    largest: float = 0.0
    bound: float = 0.0
    excesses: list[Disagreement] = field(default_factory=list)

    def add(
        self,
        time: Milliseconds,
        labels: Labels,
        exact: float | None,
        possible: Sequence[float],
        theirs: float | None,
        must_be: bool,
    ) -> None:
        """Compares one stored value with those that are possible; `must_be` if a missing one is an error."""
        if theirs is None:
            if must_be:
                self._exceeds(time, labels, _range(possible), None)
            return
        self.values += 1
        numbers = [value for value in possible if not math.isnan(value)]
        if math.isnan(theirs):
            if len(numbers) == len(possible):
                self._exceeds(time, labels, _range(possible), theirs)
            return
        if not numbers:
            self._exceeds(time, labels, _range(possible), theirs)
            return
        low, high = min(numbers), max(numbers)
        if not (low - _slack(low) <= theirs <= high + _slack(high)):
            self._exceeds(time, labels, _range(possible), theirs)
        if exact is not None and math.isfinite(exact) and math.isfinite(theirs):
            self.largest = max(self.largest, abs(theirs - exact))
            self.bound = max(self.bound, high - exact, exact - low)

    def _exceeds(
        self, time: Milliseconds, labels: Labels, expected: str | None, recorded: float | None
    ) -> None:
        self.excesses.append(Disagreement(self.subject, time, self.series, labels, expected, recorded))


def _slack(value: float) -> float:
    return TOLERANCE * max(1.0, abs(value)) if math.isfinite(value) else 0.0


def _range(possible: Sequence[float]) -> str:
    numbers = [value for value in possible if not math.isnan(value)]
    if not possible:
        return "nothing"
    if not numbers:
        return "NaN"
    low, high = min(numbers), max(numbers)
    return f"{low:.9g}" if low == high else f"{low:.9g} to {high:.9g}"
