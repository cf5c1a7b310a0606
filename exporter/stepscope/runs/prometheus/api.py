"""The part of Prometheus's HTTP API that reading a run requires. Times are seconds since the epoch.

A server limits what it answers at once: Prometheus 11,000 points of a series and 50 million samples, Mimir
and VictoriaMetrics also the length of time, series and memory. What it refuses is asked again in halves.

With `convert_classic_histograms_to_nhcb: true`, Prometheus 3 stores a histogram with custom buckets instead
of one series per bucket. The bounds are the exporter's own, so nothing is lost. Answers omit empty buckets.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from stepscope.exporter.sampling.sample_tally import BOUNDS
from stepscope.runs.malformed import LATEST
from stepscope.runs.model import Times
from stepscope.runs.prometheus.address import Access
from stepscope.runs.prometheus.connection import Connection, TooMuchError, quoted
from stepscope.training.launch import NAME_CHARACTERS
from stepscope.training.layout import STEP_BOUNDS

Points = list[tuple[float, float]]
SAMPLES = "_samples"
POINTS = 10_000  # of a query over time; Prometheus refuses more than 11,000
LEAST = 60.0  # seconds of which a server must answer a query
# Versions differ in whether a range includes its left end; no two samples are closer than this.
INSIDE = 0.0005


@dataclass(frozen=True)
class Series:
    name: str
    labels: Mapping[str, str]
    times: Times
    values: Times


# What the values of two parts of the time become.
FOLDED: Mapping[str, Callable[[tuple[float, float]], float]] = {"last": itemgetter(1), "min": min, "max": max}


class Api:
    """A server's API. Raises UserError if the server does not answer, or refuses."""

    def __init__(self, access: Access) -> None:
        self._connection = Connection(access)
        self.url = access.url

    def close(self) -> None:
        self._connection.close()

    @property
    def warnings(self) -> list[str]:
        """Returns the reasons why answers may lack something, such as a store that Thanos cannot reach."""
        return list(self._connection.warnings)

    def now(self) -> float:
        """Returns the server's time."""
        result = self._connection.post("query", query="time()")["result"]
        scalar = result[0]["value"] if isinstance(result[0], dict) else result  # MetricsQL has vectors only
        return float(scalar[0])

    def samples(self, selector: str, start: float, end: float) -> list[Series]:
        """Returns the samples of series that were stored after `start`, until `end`."""

        def ask(since: float, until: float) -> list[Series]:
            milliseconds = max(1, round(1000 * (until - since)))
            data = self._connection.post("query", query=f"{selector}[{milliseconds}ms]", time=f"{until:.3f}")
            return [*_all_series(data, "values", since + INSIDE)]

        return _joined(_parts(ask, start, end, LEAST))

    def values(self, expression: str, time: float) -> list[Series]:
        """Returns the values of an expression at one moment."""
        return [*_all_series(self._connection.post("query", query=expression, time=f"{time:.3f}"), "value")]

    def over_time(
        self, function: Literal["last", "min", "max"], selector: str, start: float, end: float
    ) -> list[Series]:
        """Returns one value of each series: its last, lowest or highest after `start`, until `end`."""

        def ask(since: float, until: float) -> list[Series]:
            # A second more: ranges are whole seconds.
            window = f"[{round(until - since) + 1}s]"
            return self.values(f"{function}_over_time({selector}{window})", until)

        found: dict[object, Series] = {}
        for series in (one for part in _parts(ask, start, end, LEAST) for one in part):
            key = series.name, frozenset(series.labels.items())
            before = found.get(key)
            value = float(series.values[0])
            if before is not None:
                value = FOLDED[function]((float(before.values[0]), value))
            found[key] = Series(series.name, series.labels, series.times, np.array([value]))
        return list(found.values())

    def ranges(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """Returns the values of an expression at every step."""

        def ask(first: float, last: float) -> list[Series]:
            data = self._connection.post(
                "query_range",
                query=expression,
                start=f"{start + first * step:.3f}",
                end=f"{start + last * step:.3f}",
                step=f"{step:.3f}",
            )
            return [*_all_series(data, "values")]

        steps = int(round((end - start) / step, 6))
        firsts = range(0, steps + 1, POINTS)
        return _joined(
            part
            for first in firsts
            for part in _parts(ask, first, min(first + POINTS - 1, steps), 1, apart=1)
        )

    def runs(self, start: float, end: float) -> list[str]:
        """Returns the names of the runs with samples. Some servers search only the last day otherwise."""
        found = self._connection.get(
            "label/run/values",
            **{"match[]": "stepscope_samples_total", "start": f"{start:.3f}", "end": f"{end:.3f}"},
        )
        return sorted(map(str, found))

    def launches(self, name: str, start: float, end: float, matchers: str = "") -> dict[str, float]:
        """Returns the start of each run of this name that had samples between the two times."""
        runs = f"(.*-)?{re.escape(name[:NAME_CHARACTERS])}-.*"
        labels = f"run=~{quoted(runs)}{matchers}"  # reads no other run
        info = f"stepscope_run_info{{name={quoted(name)}, {labels}}}"
        named = {series.labels["run"] for series in self.over_time("last", info, start, end)}
        began = self.over_time("last", f"stepscope_run_start_time_seconds{{{labels}}}", start, end)
        starts: dict[str, float] = {}
        for series in began:
            if (run := series.labels["run"]) in named:
                starts[run] = max(starts.get(run, 0.0), float(series.values[0]))
        return starts

    def data(self, path: str) -> Any:
        """Returns the data of any other path."""
        return self._connection.get(path)

    def find(self, path: str) -> Any:
        """Returns the data of any other path; None if the server does not know it."""
        return self._connection.find(path)


def _parts(
    ask: Callable[[float, float], list[Series]], start: float, end: float, least: float, apart: float = 0
) -> Iterator[list[Series]]:
    """Yields the answer for the whole time, or for the halves if the server refuses as much, in time order.

    Halves are at least `least` long; the second one begins `apart` after the first one.
    """
    try:
        found = ask(start, end)
    except TooMuchError:
        if end - start < 2 * least:
            raise
        middle = (start + end) // 2
        yield from _parts(ask, start, middle, least, apart)
        yield from _parts(ask, middle + apart, end, least, apart)
    else:
        yield found


def _joined(parts: Iterator[list[Series]]) -> list[Series]:
    """Returns each series once, with the samples of all parts of the time."""
    found: dict[object, list[Series]] = {}
    for series in (one for part in parts for one in part):
        found.setdefault((series.name, frozenset(series.labels.items())), []).append(series)
    return [
        same[0]
        if len(same) == 1
        else Series(
            same[0].name,
            same[0].labels,
            np.concatenate([series.times for series in same]),
            np.concatenate([series.values for series in same]),
        )
        for same in found.values()
    ]


def newest_of(name: str, starts: Mapping[str, float]) -> tuple[str, str]:
    """Returns the newest of a name's launches, and a line that lists the others; "": there are none."""
    newest, *others = sorted(starts, key=lambda run: (starts[run], run), reverse=True)
    return newest, f"{name} is {newest}, its newest launch; earlier: {', '.join(others)}" if others else ""


def _all_series(data: Any, field: Literal["value", "values"], after: float = 0.0) -> Iterator[Series]:
    """Yields the series of an answer; a histogram as the series that the exporter publishes it with."""
    for found in data["result"]:
        labels = dict(found["metric"])
        name = labels.pop("__name__", "")
        if field in found:
            yield _series(name, labels, found[field] if field == "values" else [found[field]], after)
        histograms = found.get("histograms") or ([found["histogram"]] if "histogram" in found else [])
        for of_series, bound, points in classic(name, histograms):
            yield _series(of_series, {**labels, **bound}, points, after)


def _series(name: str, labels: Mapping[str, str], points: Any, after: float) -> Series:
    columns = np.array([(float(time), float(value)) for time, value in points]).reshape(-1, 2)
    if not ((columns[:, 0] >= 0) & (columns[:, 0] < LATEST)).all():
        raise ValueError("a time is out of range")
    columns = columns[columns[:, 0] > after]
    return Series(name, labels, columns[:, 0], columns[:, 1])


def classic(name: str, histograms: Sequence[Any]) -> Iterator[tuple[str, Mapping[str, str], Points]]:
    """Yields the name, the bound `le` if it is a bucket, and the points of each classic series.

    `histograms` are pairs of a time and a histogram, as the HTTP API writes them.
    """
    if not histograms:
        return
    for part in ("count", "sum"):
        yield f"{name}_{part}", {}, [(float(time), float(found[part])) for time, found in histograms]
    bounds = BOUNDS if name.endswith(SAMPLES) else STEP_BOUNDS
    rows = [
        (float(time), [(float(right), float(count)) for _, _, right, count in found.get("buckets") or ()])
        for time, found in histograms
    ]
    for bound in bounds:
        yield (
            f"{name}_bucket",
            {"le": f"{bound:g}"},
            [(time, sum(count for right, count in buckets if right <= bound)) for time, buckets in rows],
        )
