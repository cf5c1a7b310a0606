"""Reads a run in Prometheus at one moment: vectors of values by labels, and views computed from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Labels = frozenset[tuple[str, str]]  # without the metric's name
Vector = dict[Labels, float]  # the values of one moment
Points = tuple[NDArray[np.int64], NDArray[np.float64]]  # milliseconds and values of a series, in order

SAMPLES = "trainwatch_samples_total"
GPU_SAMPLES = "trainwatch_gpu_utilization_samples"
MEMORY_SAMPLES = "trainwatch_gpu_memory_samples"
CPU_SAMPLES = "trainwatch_cpu_utilization_samples"
STEPS = "trainwatch_step_duration_seconds"

V_co = TypeVar("V_co", covariant=True)


class Moment(Protocol):
    """The series that a rule sees when it is evaluated at one moment."""

    @property
    def time(self) -> float:
        """Returns the time in seconds since the epoch."""

    @property
    def milliseconds(self) -> int: ...

    @property
    def limits_late(self) -> bool:
        """Returns whether `rate` looks for a counter's zero only as far as it extrapolates: since 2.52."""

    def __call__(self, name: str, matchers: str = "", ago: float = 0.0, of_run: bool = True) -> Vector:
        """Returns the values of a raw series, `ago` seconds earlier."""

    def recorded(self, name: str, ago: float = 0.0) -> Vector:
        """Returns the values that another rule of the group has recorded."""

    def over(
        self, name: str, seconds: float, matchers: str = "", of_run: bool = True
    ) -> dict[Labels, Points]:
        """Returns the samples of a raw series in the last seconds."""

    def recorded_over(self, name: str, seconds: float) -> dict[Labels, Points]:
        """Returns the samples of a recorded series in the last seconds."""


@dataclass(frozen=True)
class Scraped(Generic[V_co]):
    """A view whose elements are the label sets `labels`, in this order.

    `targets` are all series with a status, 0 or 1. `records` are the values that recording rules must have;
    the values of conditions are compared too.
    """

    labels: list[Labels]
    view: V_co
    targets: Collection[Labels]
    records: Mapping[str, Vector] = field(default_factory=dict)


def column(vector: Mapping[Labels, float], labels: Collection[Labels]) -> NDArray[np.float64]:
    """Returns (labels,) values, NaN for labels that the vector lacks."""
    return np.array([vector.get(series, math.nan) for series in labels], np.float64)


@lru_cache(maxsize=100_000)  # the same few labels at every moment
def without(labels: Labels, *names: str) -> Labels:
    return frozenset(label for label in labels if label[0] not in names)


def grouped(vector: Vector, *names: str) -> dict[Labels, list[float]]:
    """Returns the values of series that differ only in some labels."""
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        groups.setdefault(without(labels, *names), []).append(value)
    return groups


def summed(vector: Vector, *names: str) -> Vector:
    """Returns the sums over all values of some labels."""
    return {labels: sum(values) for labels, values in grouped(vector, *names).items()}


def dropped(vector: Vector, *names: str) -> Vector:
    """Returns the vector without some labels, which are equal in all series."""
    return {without(labels, *names): value for labels, value in vector.items()}


def both(left: Vector, right: Vector, combine: Callable[[float, float], float]) -> Vector:
    """Combines the values of series that both have."""
    return {labels: combine(value, right[labels]) for labels, value in left.items() if labels in right}


def divided(dividend: float, divisor: float) -> float:
    """Divides as PromQL does: 0 / 0 is NaN."""
    if divisor:
        return dividend / divisor
    return math.copysign(math.inf, dividend) if dividend else math.nan


def gained(now: Moment, name: str, matchers: str, seconds: float, whole: bool, of_run: bool = True) -> Vector:
    """Returns the gains of counters in `seconds`.

    Unless the window must be `whole`, a younger counter counts from its beginning.
    """
    current, before = now(name, matchers, 0, of_run), now(name, matchers, seconds, of_run)
    if not whole:
        before = {**dict.fromkeys(current, 0.0), **before}
    return both(current, before, lambda late, early: late - early)


def going_on(now: Moment, gpus: Collection[Labels]) -> set[Labels]:
    """Returns the GPUs of runs that have not ended."""
    ended = now("trainwatch_run_end_time_seconds")
    return {labels for labels in gpus if without(labels, "gpu") not in ended}


def of_run(now: Moment, readings: Vector, values: Vector) -> Vector:
    """Returns the value of each GPU for each run that uses it and has not ended."""
    return {
        labels: values[gpu] for labels in going_on(now, readings) if (gpu := without(labels, "run")) in values
    }


def lowest(windows: Mapping[Labels, Points]) -> Vector:
    """Returns the lowest values of series, NaN only if all values are."""
    return {labels: float(np.fmin.reduce(values)) for labels, (_, values) in windows.items()}


def spellings(percent: float) -> str:
    """Returns a pattern of how servers and libraries write a percentage as a bound: 0.7, 0.70; 1, 1.0."""
    bound = round(percent / 100, 12)
    return "|".join(
        dict.fromkeys(text.replace(".", "[.]") for text in (f"{bound:g}", f"{bound:.1f}", f"{bound:.2f}"))
    )


class CountedWindow:
    """The samples of a window, with the shares at or below some bounds, from histograms.

    A percentile is below a bound if more than its share of the samples is. This is exact, because each
    threshold is a bound of the histograms.
    """

    def __init__(
        self, enough: NDArray[np.bool_], shares: Mapping[tuple[str, float], NDArray[np.float64]]
    ) -> None:
        self.enough = enough
        self._shares = shares  # by quantity and bound in percent

    def below(
        self, quantity: str, percent: int, bound: float
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Returns the share of the samples at or below a bound in percent, and where it is enough."""
        share = self._shares[quantity, bound]
        return share, np.asarray(share > percent / 100)

    def above(self, quantity: str, percent: int, bound: float) -> NDArray[np.bool_]:
        """Returns where the percentile is above a bound in percent."""
        return np.asarray(self._shares[quantity, bound] <= percent / 100)


def enough_readings(now: Moment, gpus: Collection[Labels], patience: int) -> NDArray[np.bool_]:
    """Returns which GPUs have more readings than `patience`, in runs that have not ended."""
    readings = now(f"{GPU_SAMPLES}_count")
    in_runs = going_on(now, readings)
    return np.array([gpu in in_runs and readings[gpu] > patience for gpu in gpus], bool)


def share_of_window(now: Moment, histogram: str, percent: float, seconds: float, whole: bool) -> Vector:
    """Returns the share of the samples in the last `seconds` that are at or below `percent`."""
    at_most = gained(now, f"{histogram}_bucket", f'le=~"{spellings(percent)}"', seconds, whole)
    return both(dropped(at_most, "le"), gained(now, f"{histogram}_count", "", seconds, whole), divided)
