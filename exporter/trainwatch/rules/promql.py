"""Defines recording rules and alerts of a rule, and writes their PromQL.

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
    """The intervals of Prometheus's scrapes and of the exporter's samples, in seconds."""

    interval: float = 15.0
    sample_interval: float = 0.5

    def window(self, samples: int) -> float:
        """Returns the seconds in which `samples` are taken, rounded up to whole scrapes.

        Over a whole number of scrapes, Prometheus sees every counted sample.
        """
        scrapes = math.ceil(round(samples * self.sample_interval / self.interval, 9))
        return max(1, scrapes) * self.interval

    def reach(self, seconds: float) -> float:
        """Returns the length of a range that contains the values of `seconds` ago, and none before.

        It is half an interval longer, because versions differ in whether a range includes its left end.
        """
        return seconds + self.interval / 2


@dataclass(frozen=True)
class Record:
    """A recording rule. `name` is level:metric:operations."""

    name: str
    expression: str


@dataclass(frozen=True)
class Alert:
    """An alerting rule, named like the rule; the value of `expression` is `$value`.

    `pending` (`for`) and `keep_firing` are seconds. Values since the run's start or over a window are smooth
    and need no `pending`.
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
    """The recording rules and alerts of one rule.

    `targets` selects one series per judged node, GPU or rank of a run, with the labels of the alerts. Each
    has a status, 0 or 1, at all times. `every` is the minimum evaluation interval in seconds, for expressions
    that are expensive and change slowly; 0 means every scrape interval.
    """

    targets: str
    alerts: Sequence[Alert]
    records: Sequence[Record] = ()
    every: float = 0.0


def ratio(percent: float) -> str:
    """Returns "0.7" for 70, without the rounding error of a division."""
    return f"{percent / 100:.12g}"


def time_span(seconds: float) -> str:
    """Returns "4m15s" for 255, as Prometheus writes it."""
    left = round(seconds * 1000)
    parts = []
    for unit, milliseconds in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        amount, left = divmod(left, milliseconds)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def at_most(percent: float, parameter: str) -> str:
    """Returns the matcher of the bucket with the samples at or below `percent`.

    Raises ValueError, naming the nearest bounds, if no bucket ends there.
    """
    bound = _bound(percent, parameter, BOUNDS)
    if bound == int(bound):  # "1" in some engines, "1.0" in others
        return f'le=~"{bound:g}|{bound:.1f}"'
    return f'le="{bound:g}"'


def on_grid(percent: float, parameter: str) -> str:
    """Returns the label of `cause_above` or `gpu_below` for `percent`. Raises ValueError like `at_most`."""
    return f"{_bound(percent, parameter, GRID):g}"


def _bound(percent: float, parameter: str, bounds: Sequence[float]) -> float:
    exact = [bound for bound in bounds if math.isclose(100 * bound, percent, rel_tol=0, abs_tol=1e-9)]
    if exact:
        return exact[0]
    nearest = sorted(sorted(bounds, key=lambda bound: (abs(100 * bound - percent), bound))[:2])
    raise ValueError(
        f"{parameter}={percent:g} is not available in Prometheus: the exporter counts samples at other "
        f"bounds; use {' or '.join(f'{100 * bound:g}' for bound in nearest)}"
    )


def gained(series: str, seconds: float, whole: bool) -> str:
    """Returns the exact gain of a counter in `seconds`, without the extrapolation of `increase`.

    Unless the window must be `whole`, a younger counter counts from its beginning.
    """
    before = f"{series} offset {time_span(seconds)}"
    return f"({series} - {before})" if whole else f"({series} - ({before} or 0 * {series}))"


def share_at_most(histogram: str, bucket: str, seconds: float, whole: bool) -> str:
    """Returns the share of the samples in the last `seconds` that are in a bucket."""
    return (
        f"{gained(f'{histogram}_bucket{{{bucket}}}', seconds, whole)}\n"
        f"  / ignoring (le) {gained(f'{histogram}_count', seconds, whole)}"
    )
