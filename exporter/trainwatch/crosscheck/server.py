"""Queries Prometheus's HTTP API for the cross-check; times are whole milliseconds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import requests

from trainwatch.errors import UserError
from trainwatch.measurements.scraped import Labels, Points, Vector
from trainwatch.runs.prometheus.api import TIMEOUT, answered

Milliseconds = int
Samples = Sequence[tuple[Milliseconds, float | None]]  # None: the series ends here
Series = tuple[Mapping[str, str], Samples]  # its labels, `__name__` included

POINTS = 10_000  # per series and query; Prometheus refuses more than 11,000


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

    def earlier(self, milliseconds: Milliseconds) -> Grid:
        return Grid(self.start - milliseconds, self.step, self.count)


class Server:
    """A Prometheus server; every call raises UserError if it does not answer, or refuses."""

    def __init__(self, url: str) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise UserError(f"--prometheus {url}: is not a URL; give one such as http://localhost:9090")
        self._url = url.rstrip("/")
        self._shown = _without_password(self._url)
        self._session = requests.Session()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def now(self) -> Milliseconds:
        """Returns the server's time."""
        return _milliseconds(self._post("query", query="time()")["result"])

    def started(self) -> Milliseconds:
        """Returns the start time of the server's process."""
        text = self._answer("GET", "status/runtimeinfo", {})["startTime"]
        whole_seconds = re.sub(r"\.\d+", "", text)
        return round(1000 * datetime.strptime(whole_seconds, "%Y-%m-%dT%H:%M:%S%z").timestamp())

    def runs(self, start: Milliseconds, end: Milliseconds) -> list[str]:
        """Returns the runs with samples between the two times."""
        selector = f"last_over_time(trainwatch_samples_total[{_range(start, end)}])"
        data = self._post("query", query=f"count by (run) ({selector})", time=_seconds(end))
        return sorted(series["metric"]["run"] for series in data["result"])

    def intervals(self) -> dict[str, Milliseconds]:
        """Returns the evaluation interval of each group of rules, by the group's name."""
        groups = self._answer("GET", "rules", {})["groups"]
        return {group["name"]: round(1000 * group["interval"]) for group in groups}

    def longest_scrape(self, start: Milliseconds, end: Milliseconds) -> float:
        """Returns the seconds of the longest scrape of any target."""
        window = f"[{_range(start, end)}]"
        data = self._post(
            "query", query=f"max(max_over_time(scrape_duration_seconds{window}))", time=_seconds(end)
        )
        return max((float(series["value"][1]) for series in data["result"]), default=0.0)

    def vector(self, selector: str, time: Milliseconds) -> Vector:
        data = self._post("query", query=selector, time=_seconds(time))
        return {_labels(series["metric"]): float(series["value"][1]) for series in data["result"]}

    @cached_property
    def version(self) -> tuple[int, ...]:
        """Returns the server's version, such as (2, 42)."""
        text = self._answer("GET", "status/buildinfo", {})["version"]
        return tuple(int(number) for number in re.findall(r"\d+", text)[:2])

    @property
    def closed_on_the_left(self) -> bool:
        """Returns whether a range includes its left end, as before Prometheus 3."""
        return self.version < (3, 0)

    @property
    def limits_late(self) -> bool:
        """Returns whether `rate` looks for a counter's zero only as far as it extrapolates.

        Prometheus does since https://github.com/prometheus/prometheus/pull/13725 of March 2024.
        """
        return self.version >= (2, 52)

    def samples(self, selector: str, start: Milliseconds, end: Milliseconds) -> dict[Milliseconds, Vector]:
        """Returns the stored samples of series, by time."""
        found: dict[Milliseconds, Vector] = {}
        for labels, (times, values) in self.points(selector, start, end).items():
            for time, value in zip(times.tolist(), values.tolist(), strict=True):
                found.setdefault(time, {})[labels] = value
        return found

    def points(self, selector: str, start: Milliseconds, end: Milliseconds) -> dict[Labels, Points]:
        """Returns the stored samples by series; includes both ends, for every version."""
        data = self._post("query", query=f"{selector}[{_range(start - 1, end)}]", time=_seconds(end))
        return {
            _labels(series["metric"]): (
                np.array([_milliseconds(point) for point in series["values"]], np.int64),
                np.array([float(point[1]) for point in series["values"]]),
            )
            for series in data["result"]
        }

    def instants(self, selector: str, grid: Grid) -> list[Vector]:
        """Returns the selector's values at each moment of the grid, as a rule evaluated then sees them."""
        found: list[Vector] = [{} for _ in range(grid.count)]
        for first, part in _parts(grid):
            data = self._post(
                "query_range",
                query=selector,
                start=_seconds(part.start),
                end=_seconds(part.time(part.count - 1)),
                step=_seconds(part.step),
            )
            for series in data["result"]:
                labels = _labels(series["metric"])
                for point in series["values"]:
                    index = part.index(_milliseconds(point))
                    assert index is not None
                    found[first + index][labels] = float(point[1])
        return found

    def _post(self, path: str, **parameters: str) -> Any:
        return self._answer("POST", path, parameters)

    def _answer(self, method: str, path: str, parameters: Mapping[str, str]) -> Any:
        def ask() -> requests.Response:
            url = f"{self._url}/api/v1/{path}"
            return self._session.request(method, url, data=parameters, timeout=TIMEOUT)

        return answered(ask, self._shown, "choose a shorter time with --start")


def _parts(grid: Grid) -> Iterator[tuple[int, Grid]]:
    for first in range(0, grid.count, POINTS):
        yield first, Grid(grid.time(first), grid.step, min(POINTS, grid.count - first))


def _labels(metric: Mapping[str, str]) -> Labels:
    return frozenset((name, value) for name, value in metric.items() if name != "__name__")


def _milliseconds(point: Any) -> Milliseconds:
    return round(1000 * float(point[0]))


def _seconds(time: Milliseconds) -> str:
    return f"{time / 1000:.3f}"


def _range(start: Milliseconds, end: Milliseconds) -> str:
    return f"{max(1, end - start)}ms"


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
