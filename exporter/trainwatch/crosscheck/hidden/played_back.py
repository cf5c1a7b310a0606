"""Gives a rule its series as they were at each evaluation, for a given age of the last scrape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainwatch.crosscheck.expected import Expected, expected
from trainwatch.crosscheck.hidden.archive import Archive, Sampling
from trainwatch.crosscheck.readings import Readings
from trainwatch.crosscheck.server import Grid, Milliseconds
from trainwatch.measurements.scraped import Labels, Moment, Points, Selection, Vector
from trainwatch.rules.base import Rule
from trainwatch.rules.promql import Scraping


class PlayedBack:
    """Raw series from the archive, and the rule's earlier records from Prometheus.

    `age` is the age of the last scrape at each evaluation; 0 uses every sample. `scrape` is the time between
    scrapes. `jitter` is by how much all scrapes except the last one were earlier.
    """

    def __init__(
        self,
        archive: Archive,
        recorded: Readings,
        grid: Grid,
        sampling: Sampling,
        scrape: Milliseconds,
        age: Milliseconds = 0,
        jitter: Milliseconds = 0,
    ) -> None:
        self._archive, self._recorded, self._grid = archive, recorded, grid
        self._since = sampling.since
        self._scrape, self._age, self._jitter = scrape, age, jitter
        self._own: Mapping[str, Vector] = {}  # the rule's records at this moment
        self._reads_own = False
        self.looks_back = False  # whether it read raw series of earlier scrapes

    @property
    def limits_late(self) -> bool:
        return self._recorded.limits_late

    def time(self, index: int) -> float:
        return self._grid.time(index) / 1000

    def expected(self, index: int, rule: Rule[Any, Any], scraping: Scraping) -> Expected:
        """Returns what the rule must record. Records read each other: repeats until they do not change."""
        self._own, self._reads_own = {}, False
        found = expected(rule, Moment(self, index), scraping)
        for _ in found.records:
            if not self._reads_own or found.records == self._own:
                break
            self._own = found.records
            found = expected(rule, Moment(self, index), scraping)
        return found

    def vector(self, index: int, chosen: Selection, ago: Milliseconds, is_raw: bool) -> Vector:
        if is_raw:
            self.looks_back |= ago > 0
            return self._seen(chosen, self._grid.time(index) - self._scraped(ago))
        if ago:
            return self._recorded.vector(index, chosen, ago, is_raw=False)
        self._reads_own = True
        return self._own.get(chosen.name, {})

    def held(self, index: int, chosen: Selection, ago: Milliseconds, hold: Milliseconds) -> Vector:
        """Returns the values of the last scrape that had any."""
        self.looks_back |= ago > 0
        found: Vector = {}
        for age in range(self._scraped(ago), ago + hold, self._scrape):
            found = self._seen(chosen, self._grid.time(index) - age) | found
        return found

    def window(
        self, index: int, chosen: Selection, length: Milliseconds, is_raw: bool
    ) -> dict[Labels, Points]:
        return self._raw_window(index, chosen, length) if is_raw else self._own_window(index, chosen, length)

    def _scraped(self, ago: Milliseconds) -> Milliseconds:
        """Returns the age of the last scrape before the moment `ago` before the evaluation."""
        if not ago:
            return self._age
        return ago + (self._age - ago) % self._scrape + self._jitter

    def _seen(self, chosen: Selection, time: Milliseconds) -> Vector:
        return self._archive.vector(chosen, time) if time >= self._since else {}

    def _raw_window(self, index: int, chosen: Selection, length: Milliseconds) -> dict[Labels, Points]:
        self.looks_back = True
        now = self._grid.time(index)
        ages = range(self._age, min(length, now - self._since) + 1, self._scrape)
        found: dict[Labels, tuple[list[Milliseconds], list[float]]] = {}
        for age in reversed(ages):
            seen = age + (self._jitter if age != self._age else 0)
            for labels, value in self._seen(chosen, now - seen).items():
                times, values = found.setdefault(labels, ([], []))
                times.append(now - age)
                values.append(value)
        return {
            labels: (np.array(times, np.int64), np.array(values)) for labels, (times, values) in found.items()
        }

    def _own_window(self, index: int, chosen: Selection, length: Milliseconds) -> dict[Labels, Points]:
        """Returns the earlier records of Prometheus, and those of this moment."""
        self._reads_own = True
        now = self._grid.time(index)
        found = {}
        for labels, (times, values) in self._recorded.window(index, chosen, length, is_raw=False).items():
            last = len(times) - (times[-1] == now)
            found[labels] = times[:last], values[:last]
        for labels, value in self._own.get(chosen.name, {}).items():
            times, values = found.get(labels, (np.empty(0, np.int64), np.empty(0)))
            found[labels] = np.append(times, now), np.append(values, value)
        return {labels: points for labels, points in found.items() if len(points[0])}
