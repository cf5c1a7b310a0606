"""Joins the begin and end events of a trace into complete ones, and counts what has no duration.

Source: the Trace Event Format of Chrome: `B` and `E` nest on each thread, `X` has both, others have neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from stepscope.common.words import listing, number

MOST_OPEN = 100_000  # begun events that are remembered
# Phases without a duration that say something: asynchronous ones, instants, counters and flows.
NAMES = {
    **dict.fromkeys("bneSTpF", "asynchronous"),
    **dict.fromkeys("iI", "instant"),
    "C": "counter",
    **dict.fromkeys("stf", "flow"),
}


class Pairs:
    """One trace. An end without a begin counts nowhere, and neither does a begin without an end."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        self._opened = 0
        self._others: Counter[str] = Counter()

    def rows(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yields all rows but begins and ends, and a complete event for each pair of these."""
        for row in rows:
            phase = row.get("ph")
            if phase == "B" and self._opened < MOST_OPEN:
                self._open.setdefault((row.get("pid"), row.get("tid")), []).append(row)
                self._opened += 1
            elif phase == "E":
                if begun := self._open.get((row.get("pid"), row.get("tid"))):
                    begin = begun.pop()
                    self._opened -= 1
                    duration = float(row["ts"]) - float(begin["ts"])
                    yield {**begin, "ph": "X", "dur": max(duration, 0.0)}
            else:
                if phase in NAMES:
                    self._others[NAMES[phase]] += 1
                yield row

    def others_in_words(self) -> str:
        """Returns "100 asynchronous events and 3 counter events"; "" if there are none."""
        return listing([f"{number(count)} {kind} events" for kind, count in sorted(self._others.items())])
