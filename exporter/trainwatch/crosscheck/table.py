"""What `trainwatch crosscheck` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from trainwatch.crosscheck.compare import Disagreement, Outcome
from trainwatch.crosscheck.hidden.compared import Compared
from trainwatch.words import machine_time, number

LISTED = 20  # disagreements of a rule; the table counts all of them
HEADINGS = ("rule", "run", "evaluations", "firing", "values", "by last scrape", "disagreements")
HIDDEN_HEADINGS = ("compared with", "series", "values", "largest difference", "may be hidden", "excesses")


def disagreements(found: Sequence[Disagreement]) -> Iterator[str]:
    """A line each, the earliest first; of one rule."""
    for one in found[:LISTED]:
        yield _line(one)
    if (more := len(found) - LISTED) > 0:
        yield f"{found[0].rule}: and {more} more"


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A line for each rule and run."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for one in outcomes:
        numbers = (one.evaluations, one.firing, one.values, one.by_last_scrape, len(one.disagreements))
        rows.append((one.rule, one.run, *map(number, numbers)))
    yield from _columns(rows)


def hidden(lines: Sequence[Compared]) -> Iterator[str]:
    """What scrapes hide: a line for each series that was compared with the recording."""
    rows: list[tuple[str, ...]] = [HIDDEN_HEADINGS]
    for one in lines:
        unit = " s" if one.series == "ALERTS" else ""
        differences = (f"{value:.6g}{unit}" for value in (one.largest, one.bound))
        rows.append((one.what, one.series, number(one.values), *differences, number(len(one.excesses))))
    yield from _columns(rows)


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first two columns to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _line(one: Disagreement) -> str:
    labels = ", ".join(f'{name}="{value}"' for name, value in sorted(one.labels))
    return (
        f"{one.rule}: {machine_time(one.time / 1000, 'milliseconds')} {one.series}{{{labels}}}: "
        f"expected {_shown(one.expected)}, Prometheus has {_shown(one.recorded)}"
    )


def _shown(value: float | str | None) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return value
    return "NaN" if math.isnan(value) else f"{value:.15g}"
