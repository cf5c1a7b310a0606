"""Replays all series of a recorded run as the exporter published them after each sample."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache
from math import isnan

import numpy as np
from numpy.typing import NDArray

from trainwatch.crosscheck.replay.run import RecordedRun, name_and_labels, values_of
from trainwatch.crosscheck.server import Milliseconds
from trainwatch.measurements.scraped import Labels, Selection, Vector
from trainwatch.sampling.exposition import Exposition

LOOK_BACK = 300_000  # milliseconds: the age up to which Prometheus treats a value as current
REMEMBERED = 4096  # vectors: several evaluations read the same moment
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Sampling:
    """When samples were taken, and how late Prometheus saw them.

    `since` is the time of the first sample that was scraped, `interval` the time between samples. `late` is
    the longest delay until a scrape saw a sample.
    """

    since: Milliseconds
    interval: Milliseconds
    late: Milliseconds


@dataclass
class Series:
    """Series of one name and node: (len(labels), len(times)) values, NaN if there was no value."""

    times: NDArray[np.int64]
    labels: list[Labels]
    values: Matrix

    def before(self, time: Milliseconds) -> int:
        """Returns the column of the last sample until then, or -1."""
        return int(np.searchsorted(self.times, time, side="right")) - 1

    def vector(self, column: int) -> Vector:
        values = self.values[:, column].tolist()
        return {labels: value for labels, value in zip(self.labels, values, strict=True) if not isnan(value)}


class Archive:
    """The series of a run between two moments and Prometheus's look-back before, with Prometheus's labels."""

    def __init__(
        self,
        run: RecordedRun,
        targets: Mapping[str, Labels],
        names: Set[str],
        start: Milliseconds,
        end: Milliseconds,
        progress: Callable[[int], None],
    ) -> None:
        """Replays the run; `targets` are the labels that Prometheus adds to the series of each node."""
        self.run = run.name
        self._series: dict[str, list[Series]] = {}
        self._column = lru_cache(maxsize=REMEMBERED)(
            lambda chosen, node, column: self.choose(chosen)[node].vector(column)
        )
        self._chosen: dict[Selection, list[Series]] = {}
        done = 0
        with run.replay() as nodes:
            for node in nodes:
                times = run.times(node.name)
                kept = [time for time in times if start - LOOK_BACK <= round(1000 * time) <= end]
                columns: dict[str, list[tuple[int, float]]] = {}
                exposition = Exposition()
                for number, time in enumerate(kept):
                    for series, value in values_of(exposition, node.families(time), names):
                        columns.setdefault(series, []).append((number, float(value)))
                    done += 1
                    progress(done)
                milliseconds = np.array([round(1000 * time) for time in kept], np.int64)
                self._add(columns, milliseconds, targets[node.name])

    @property
    def names(self) -> list[str]:
        return sorted(self._series)

    def choose(self, chosen: Selection) -> list[Series]:
        """Returns the selected series of each node."""
        if chosen not in self._chosen:
            matchers = [*_MATCHER.findall(chosen.matchers)]
            if chosen.of_run:
                matchers.append(("run", "=", self.run))
            self._chosen[chosen] = [
                _matching(series, matchers) for series in self._series.get(chosen.name, [])
            ]
        return self._chosen[chosen]

    def vector(self, chosen: Selection, time: Milliseconds) -> Vector:
        """Returns the values that a scrape at that moment saw."""
        found: Vector = {}
        for node, series in enumerate(self.choose(chosen)):
            column = series.before(time)
            if column >= 0 and time - series.times[column] < LOOK_BACK:
                found |= self._column(chosen, node, column)
        return found

    def _add(
        self,
        columns: Mapping[str, list[tuple[int, float]]],
        times: NDArray[np.int64],
        target: Labels,
    ) -> None:
        by_name: dict[str, tuple[list[Labels], list[Matrix]]] = {}
        for series, points in columns.items():
            name, labels = name_and_labels(series)
            row = np.full(len(times), np.nan)
            numbers, values = zip(*points, strict=True)
            row[list(numbers)] = values
            all_labels, rows = by_name.setdefault(name, ([], []))
            all_labels.append(target | frozenset(labels.items()))
            rows.append(row)
        for name, (all_labels, rows) in by_name.items():
            self._series.setdefault(name, []).append(Series(times, all_labels, np.array(rows)))


def _matching(series: Series, matchers: list[tuple[str, str, str]]) -> Series:
    rows = [
        row
        for row, labels in enumerate(series.labels)
        if all(_holds(dict(labels).get(name, ""), sign, wanted) for name, sign, wanted in matchers)
    ]
    return Series(series.times, [series.labels[row] for row in rows], series.values[rows])


def _holds(value: str, sign: str, wanted: str) -> bool:
    """Returns whether a value matches as in PromQL, where a pattern matches the whole value."""
    equal = re.fullmatch(wanted, value) is not None if "~" in sign else value == wanted
    return equal != sign.startswith("!")
