"""The series of one node over some scrapes, as arrays with a row a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from trainwatch.runs.model import Times
from trainwatch.runs.prometheus.api import Series

Labels = frozenset[tuple[str, str]]


class Scrapes:
    """`times` (n,) are those of the scrapes; a series that was not in a scrape is NaN there.

    `target` are the labels that all of the node's series have; below they are left out.
    """

    def __init__(self, times: Times, series: Iterable[Series], target: Mapping[str, str]) -> None:
        self.times = times
        outer = frozenset(target.items())
        self._values: dict[str, dict[Labels, Times]] = {}
        for one in series:
            values = np.full(len(times), np.nan)
            places = np.searchsorted(times, one.times - 0.0005)
            there = places < len(times)
            there[there] = np.abs(times[places[there]] - one.times[there]) < 0.001
            values[places[there]] = one.values[there]
            self._values.setdefault(one.name, {})[frozenset(one.labels.items()) - outer] = values

    def __len__(self) -> int:
        return len(self.times)

    def exactly(self, name: str, **labels: str) -> Times:
        """(n,) the one series of a metric that has these labels and no others."""
        found = self._values.get(name, {}).get(frozenset(labels.items()))
        return np.full(len(self), np.nan) if found is None else found

    def bucket(self, histogram: str, bound: float, **labels: str) -> Times:
        """(n,) one bucket; Prometheus 3 writes the bound 1 as 1.0."""
        for spelling in (f"{bound:g}", f"{bound:.1f}"):
            found = self._values.get(f"{histogram}_bucket", {}).get(
                frozenset((*labels.items(), ("le", spelling)))
            )
            if found is not None:
                return found
        return np.full(len(self), np.nan)

    def of(self, name: str, **labels: str) -> Mapping[Labels, Times]:
        """The series of a metric that have these labels; (n,) each."""
        wanted = frozenset(labels.items())
        return {key: values for key, values in self._values.get(name, {}).items() if wanted <= key}

    def one(self, name: str, **labels: str) -> Times:
        """(n,) their sum, NaN where there is none."""
        found = list(self.of(name, **labels).values())
        if not found:
            return np.full(len(self), np.nan)
        together = np.vstack(found)
        return np.where(np.isnan(together).all(axis=0), np.nan, np.nansum(together, axis=0))

    def table(self, name: str, label: str, values: Sequence[str], **labels: str) -> Times:
        """(n, len(values)) `one` for each value of a label."""
        columns = [self.one(name, **{label: value}, **labels) for value in values]
        return np.column_stack(columns) if columns else np.empty((len(self), 0))

    def values_of(self, name: str, label: str, **labels: str) -> tuple[str, ...]:
        """The values that a label has in the series of a metric, numbers in their order."""
        found = {value for key in self.of(name, **labels) for its, value in key if its == label}
        return tuple(sorted(found, key=_as_number))


def _as_number(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return np.inf, text


class Gains:
    """What counters gained from scrape to scrape, over the bounds of the pieces in which they are read.

    A counter that was never seen counts from `first`: its beginning (0), or its first value (None). One that
    is lower than before has begun anew. A scrape without the counter gains nothing.
    """

    def __init__(self, first: float | None = 0.0) -> None:
        self._first = first
        self._last: dict[object, float] = {}

    def of(self, key: object, values: Times) -> Times:
        """(n,) for values of the scrapes (n,); `key` names the counter."""
        there = ~np.isnan(values)
        gained = np.zeros(len(values))
        if not there.any():
            return gained
        known = values[there]
        before = self._last.get(key, self._first if self._first is not None else float(known[0]))
        steps = np.diff(known, prepend=before)
        gained[there] = np.where(steps < 0, known, steps)
        self._last[key] = float(known[-1])
        return gained
