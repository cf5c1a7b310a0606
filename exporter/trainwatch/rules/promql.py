"""What a heuristic gives to Prometheus: recording rules, alerts, and how their expressions are written.

Expressions keep every label of the target (`job`, `cluster` and the like): they match with `ignoring` and
aggregate with `without`. They avoid what Prometheus 3 changed: no range whose left end falls on a sample, no
bare `le` of a whole number, no renamed function.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trainwatch.sampling.sample_tally import BOUNDS, GRID

Severity = Literal["info", "warning", "critical"]

MINUTE = 60.0  # also the time between two scans of a report


@dataclass(frozen=True)
class Scraping:
    """How often the exporter samples and how often Prometheus looks, both in seconds."""

    interval: float = 15.0
    sample_interval: float = 0.5

    def window(self, samples: int) -> float:
        """Seconds in which so many samples are taken, rounded up to whole scrapes.

        Between two scrapes that are whole scrapes apart, Prometheus sees every sample that was counted.
        """
        scrapes = math.ceil(round(samples * self.sample_interval / self.interval, 9))
        return max(1, scrapes) * self.interval

    def reach(self, seconds: float) -> float:
        """The length of a range that has the values of so many seconds ago, and nothing before them.

        Half an interval longer: whether a range has the value on its left end differs between versions.
        """
        return seconds + self.interval / 2


@dataclass(frozen=True)
class Record:
    """A recording rule. `name` is level:metric:operations."""

    name: str
    expression: str


@dataclass(frozen=True)
class Alert:
    """An alerting rule of a heuristic, whose name it bears; the value of `expression` is `$value`.

    `pending` (`for`) and `keep_firing` are seconds. What is smooth already, as all that is counted since
    the run's start or over a window is, needs no `pending`.
    """

    expression: str
    summary: str
    description: str
    severity: Severity = "warning"
    pending: float = 0.0
    keep_firing: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PrometheusRules:
    """The rules of one heuristic.

    `targets` selects a series for each of what the heuristic judges (nodes of a run, GPUs, ranks), with
    the labels that the alerts have: each has a status, 0 or 1, at all times. `every` is the least number of
    seconds between two evaluations, for what costs much and changes slowly; else it is the scrape interval.
    """

    targets: str
    alerts: Sequence[Alert]
    records: Sequence[Record] = ()
    every: float = 0.0


def ratio(percent: float) -> str:
    """70 -> "0.7", without the noise of a division."""
    return f"{percent / 100:.12g}"


def time_span(seconds: float) -> str:
    """255 -> "4m15s", as Prometheus writes it."""
    left = round(seconds * 1000)
    parts = []
    for unit, milliseconds in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        amount, left = divmod(left, milliseconds)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def at_most(percent: float, parameter: str) -> str:
    """The matcher of the bucket with the samples at or below so many percent.

    Raises ValueError, naming the nearest that can be had, where no bucket ends there.
    """
    bound = _bound(percent, parameter, BOUNDS)
    if bound == int(bound):  # "1" in some engines, "1.0" in others
        return f'le=~"{bound:g}|{bound:.1f}"'
    return f'le="{bound:g}"'


def on_grid(percent: float, parameter: str) -> str:
    """The value of `cause_above` or `gpu_below` for so many percent. Raises ValueError as `at_most` does."""
    return f"{_bound(percent, parameter, GRID):g}"


def _bound(percent: float, parameter: str, bounds: Sequence[float]) -> float:
    exact = [bound for bound in bounds if math.isclose(100 * bound, percent, rel_tol=0, abs_tol=1e-9)]
    if exact:
        return exact[0]
    nearest = sorted(sorted(bounds, key=lambda bound: (abs(100 * bound - percent), bound))[:2])
    raise ValueError(
        f"{parameter}={percent:g} cannot be told in Prometheus: the exporter counts samples at other bounds; "
        f"the nearest are {' and '.join(f'{100 * bound:g}' for bound in nearest)}"
    )


def gained(series: str, seconds: float, whole: bool) -> str:
    """What a counter has gained in so many seconds, exactly: no extrapolation, as `increase` does.

    Unless the window must be `whole`, a counter that is younger counts from its beginning.
    """
    before = f"{series} offset {time_span(seconds)}"
    return f"({series} - {before})" if whole else f"({series} - ({before} or 0 * {series}))"


def share_at_most(histogram: str, bucket: str, seconds: float, whole: bool) -> str:
    """The share of the samples of so many seconds that lie in a bucket."""
    return (
        f"{gained(f'{histogram}_bucket{{{bucket}}}', seconds, whole)}\n"
        f"  / ignoring (le) {gained(f'{histogram}_count', seconds, whole)}"
    )
