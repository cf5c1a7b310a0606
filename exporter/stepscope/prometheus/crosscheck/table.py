"""Formats the output of `stepscope crosscheck`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from stepscope.common.words import in_columns, machine_time, number
from stepscope.prometheus.crosscheck.compare import Disagreement, Outcome

LISTED = 20  # disagreements of a rule; the table counts all of them
HEADINGS = ("rule", "run", "evaluations", "firing", "values", "by last scrape", "disagreements")


def disagreements(found: Sequence[Disagreement]) -> Iterator[str]:
    """Yields one line per disagreement of a rule, the earliest first."""
    yield from map(_line, found[:LISTED])
    if (more := len(found) - LISTED) > 0:
        yield f"{found[0].rule}: and {more} more"


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yields a table with one line per rule and run."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for outcome in outcomes:
        counts = (outcome.evaluations, outcome.firing, outcome.values, outcome.by_last_scrape)
        rows.append((outcome.rule, outcome.run, *map(number, (*counts, len(outcome.disagreements)))))
    yield from in_columns(rows, 2)


def _line(found: Disagreement) -> str:
    labels = ", ".join(f'{name}="{value}"' for name, value in sorted(found.labels))
    series = f"{found.series}{{{labels}}}" if labels else found.series
    return (
        f"{found.rule}: {machine_time(found.time / 1000, 'milliseconds')} {series}: "
        f"expected {_shown(found.expected)}, Prometheus has {_shown(found.recorded)}"
    )


def _shown(value: float | str | None) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return value
    return "NaN" if math.isnan(value) else f"{value:.15g}"
