"""Queries Prometheus's HTTP API for the cross-check; times are whole milliseconds."""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from math import nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.common.errors import UserError
from stepscope.measurements.scraped import Labels, Points, Vector
from stepscope.prometheus.rules.groups import STATUS
from stepscope.runs.malformed import naming
from stepscope.runs.prometheus.address import Access
from stepscope.runs.prometheus.api import Api
from stepscope.runs.prometheus.api import Series as ApiSeries

Milliseconds = int
Samples = Sequence[tuple[Milliseconds, float | None]]  # None: the series ends here
Series = tuple[Mapping[str, str], Samples]  # its labels, `__name__` included


@dataclass(frozen=True)
class Grid:
    """`count` moments from `start`, one every `step`."""

    start: Milliseconds
    step: Milliseconds
    count: int

    def time(self, index: int) -> Milliseconds:
        return self.start + index * self.step

    def index(self, time: Milliseconds) -> int | None:
        """Returns the moment's number, or None if it is not on the grid."""
        index, rest = divmod(time - self.start, self.step)
        return index if rest == 0 and 0 <= index < self.count else None

    def earlier(self, milliseconds: Milliseconds) -> "Grid":
        return Grid(self.start - milliseconds, self.step, self.count)


class Pace(NamedTuple):
    """The evaluation interval of a group, and `for` and `keep_firing_for` of its alerts in order, in seconds.

    NaN: the server does not say.
    """

    interval: Milliseconds
    alerts: Sequence[tuple[float, float]]


class Server:
    """A server with Prometheus's API; every call raises UserError if it does not answer, or refuses.

    `ruler` evaluates the rules, if the server itself does not.
    """

    def __init__(self, url: str, ruler: str | None = None) -> None:
        self._api = Api(Access.of_flag("--prometheus", url))
        self._ruler = self._api if ruler is None else Api(Access.of_flag("--ruler", ruler))

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._api.close()
        self._ruler.close()

    @property
    def warnings(self) -> list[str]:
        """Returns the reasons why answers may lack something."""
        return self._api.warnings

    def now(self) -> Milliseconds:
        """Returns the server's time."""
        with self._trusting_nothing():
            return round(1000 * self._api.now())

    def started(self) -> Milliseconds | None:
        """Returns the start time of the process that evaluates rules; None if it does not say."""
        with self._trusting_nothing():
            found = self._ruler.find("status/runtimeinfo")
            if found is None:
                return None
            whole_seconds = re.sub(r"\.\d+", "", found["startTime"])
            return round(1000 * datetime.strptime(whole_seconds, "%Y-%m-%dT%H:%M:%S%z").timestamp())

    def runs(self, start: Milliseconds, end: Milliseconds) -> list[str]:
        """Returns the runs with samples between the two times."""
        with self._trusting_nothing():
            found = self._api.over_time("last", "stepscope_samples_total", start / 1000, end / 1000)
            return sorted({series.labels["run"] for series in found})

    def launches(self, name: str, start: Milliseconds, end: Milliseconds) -> dict[str, float]:
        """Returns the start of each run of this name that had samples between the two times."""
        with self._trusting_nothing():
            return self._api.launches(name, start / 1000, end / 1000)

    def pace(self) -> dict[str, Pace]:
        """Returns how each group of rules is evaluated, by the group's name."""
        with self._trusting_nothing():
            groups = self._ruler.data("rules")["groups"]
            return {
                group["name"]: Pace(
                    round(1000 * float(group["interval"])),
                    [
                        (float(rule["duration"]), float(rule.get("keepFiringFor", nan)))
                        for rule in group["rules"]
                        if rule["type"] == "alerting"
                    ],
                )
                for group in groups
            }

    def decides_later(self) -> bool:
        """Returns whether its rules read what the evaluation before recorded, as for Thanos and vmalert."""
        with self._trusting_nothing():
            groups = self._ruler.data("rules")["groups"]
            queries = (rule["query"] for group in groups for rule in group["rules"] if rule["name"] == STATUS)
            return any(" offset " in query for query in queries)

    def longest_scrape(self, start: Milliseconds, end: Milliseconds) -> float:
        """Returns the seconds of the longest scrape of any target."""
        with self._trusting_nothing():
            found = self._api.over_time("max", "scrape_duration_seconds", start / 1000, end / 1000)
            return max((float(series.values[0]) for series in found), default=0.0)

    @cached_property
    def closed_on_the_left(self) -> bool:
        """Returns whether a range includes its left end, as before Prometheus 3.

        Mimir, Thanos and VictoriaMetrics have versions of their own, so a query shows it.
        """
        with self._trusting_nothing():
            seconds = self._api.now() // 1
            (moments,) = self._api.values("count_over_time(vector(1)[1s:1s])", seconds)
            return float(moments.values[0]) > 1

    def samples(self, selector: str, start: Milliseconds, end: Milliseconds) -> dict[Milliseconds, Vector]:
        """Returns the stored samples of series, by time."""
        found: dict[Milliseconds, Vector] = {}
        for labels, (times, values) in self.points(selector, start, end).items():
            for time, value in zip(times.tolist(), values.tolist(), strict=True):
                found.setdefault(time, {})[labels] = value
        return found

    def points(self, selector: str, start: Milliseconds, end: Milliseconds) -> dict[Labels, Points]:
        """Returns the stored samples by series; includes both ends, for every version."""
        with self._trusting_nothing():
            return {
                frozenset(series.labels.items()): (_milliseconds(series), series.values)
                for series in self._api.samples(selector, (start - 1) / 1000, end / 1000)
            }

    def instants(self, selector: str, grid: Grid) -> list[Vector]:
        """Returns the selector's values at each moment of the grid, as a rule evaluated then sees them."""
        found: list[Vector] = [{} for _ in range(grid.count)]
        if not grid.count:
            return found
        with self._trusting_nothing():
            start, end = grid.start / 1000, grid.time(grid.count - 1) / 1000
            for series in self._api.ranges(selector, start, end, grid.step / 1000):
                labels = frozenset(series.labels.items())
                for time, value in zip(_milliseconds(series).tolist(), series.values.tolist(), strict=True):
                    index = grid.index(time)
                    if index is None:
                        raise UserError(
                            f"{self._api.url}: rounds the times of queries; ask Thanos Query itself, or "
                            "start its query frontend with --query-range.align-range-with-step=false"
                        )
                    found[index][labels] = value
        return found

    def _trusting_nothing(self) -> AbstractContextManager[None]:
        return naming(self._api.url, "answers of Prometheus", "is it the address of Prometheus?")


def _milliseconds(series: ApiSeries) -> NDArray[np.int64]:
    return np.rint(1000 * series.times).astype(np.int64)
