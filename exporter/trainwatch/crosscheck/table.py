"""What `trainwatch crosscheck` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from trainwatch.crosscheck.compare import Disagreement, Outcome

LISTED = 20  # disagreements of a rule; the table counts all of them
HEADINGS = ("rule", "run", "evaluations", "firing", "values", "by last scrape", "disagreements")


def disagreements(outcome: Outcome) -> Iterator[str]:
    """A line each, the earliest first."""
    for one in outcome.disagreements[:LISTED]:
        yield _line(one)
    if (more := len(outcome.disagreements) - LISTED) > 0:
        yield f"{outcome.rule}: and {more} more"


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A line for each rule and run."""
    rows = [HEADINGS]
    for one in outcomes:
        numbers = (one.evaluations, one.firing, one.values, one.by_last_scrape, len(one.disagreements))
        rows.append((one.rule, one.run, *(f"{number:,}" for number in numbers)))  # type: ignore[arg-type]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    for row in rows:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _line(one: Disagreement) -> str:
    moment = datetime.fromtimestamp(one.time / 1000, timezone.utc).isoformat(timespec="milliseconds")
    labels = ", ".join(f'{name}="{value}"' for name, value in sorted(one.labels))
    return (
        f"{one.rule}: {moment.replace('+00:00', 'Z')} {one.series}{{{labels}}}: "
        f"expected {_shown(one.expected)}, Prometheus has {_shown(one.recorded)}"
    )


def _shown(value: float | str | None) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return value
    return "NaN" if math.isnan(value) else f"{value:.15g}"
