"""Reads a run in Prometheus at one moment: vectors of values by labels, and views computed from them."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Labels = frozenset[tuple[str, str]]  # without the metric's name
Vector = dict[Labels, float]  # the values of one moment
Points = tuple[NDArray[np.int64], NDArray[np.float64]]  # milliseconds and values of a series, in order

SAMPLES = "stepscope_samples_total"
GPU_SAMPLES = "stepscope_gpu_utilization_samples"
MEMORY_SAMPLES = "stepscope_gpu_memory_samples"
MEMORY_READINGS = f"{MEMORY_SAMPLES}_count"  # a MIG device has readings of its memory only
CPU_SAMPLES = "stepscope_cpu_utilization_samples"
STEPS = "stepscope_step_duration_seconds"
OF_RUN = ("cluster", "run")  # labels: on all nodes

GAP = 60.0  # seconds without scrapes that change no verdict

V_co = TypeVar("V_co", covariant=True)


class Selection(NamedTuple):
    """Series of one name; `matchers` are PromQL's, `of_run` selects the series of the checked run."""

    name: str
    matchers: str = ""
    of_run: bool = True


class Reader(Protocol):
    """The source of a rule's series at each of its evaluations, which are numbered.

    `ago` and `length` are in milliseconds.
    """

    def time(self, index: int) -> float:
        """Returns the evaluation's time in seconds since the epoch."""

    def recorded(self, index: int, chosen: Selection, ago: int) -> Vector:
        """Returns the values of recorded series, `ago` before the evaluation."""

    def held(self, index: int, chosen: Selection, ago: int, hold: int) -> Vector:
        """Returns the last values of raw series in the `hold` until `ago` before the evaluation."""

    def window(self, index: int, chosen: Selection, length: int, is_raw: bool) -> dict[Labels, Points]:
        """Returns the samples of a range of this length; leaves out series without samples."""


class Moment:
    """The series that a rule sees when it is evaluated at one moment."""

    def __init__(self, readings: Reader, index: int) -> None:
        self._readings, self._index = readings, index

    @property
    def time(self) -> float:
        """Returns the time in seconds since the epoch."""
        return self._readings.time(self._index)

    @property
    def milliseconds(self) -> int:
        return round(1000 * self.time)

    def held(
        self, name: str, hold: float, matchers: str = "", ago: float = 0.0, of_run: bool = True
    ) -> Vector:
        """Returns the last values of a raw series in the `hold` seconds until `ago` seconds earlier."""
        chosen = Selection(name, matchers, of_run)
        return self._readings.held(self._index, chosen, round(1000 * ago), round(1000 * hold))

    def recorded(self, name: str, ago: float = 0.0) -> Vector:
        """Returns the values that another rule of the group has recorded.

        Each recorded value is checked on its own; values computed from it are checked against the stored one.
        """
        return self._readings.recorded(self._index, Selection(name), round(1000 * ago))

    def over(self, name: str, seconds: float) -> dict[Labels, Points]:
        """Returns the samples of a raw series in the last seconds."""
        return self._readings.window(self._index, Selection(name), round(1000 * seconds), is_raw=True)

    def recorded_over(self, name: str, seconds: float, ago: float = 0.0) -> dict[Labels, Points]:
        """Returns the samples of a recorded series in the `seconds` that ended `ago` seconds earlier."""
        found = self._readings.window(
            self._index, Selection(name), round(1000 * (seconds + ago)), is_raw=False
        )
        if not ago:
            return found
        end = self.milliseconds - round(1000 * ago)
        early = {
            labels: (times[times <= end], values[times <= end]) for labels, (times, values) in found.items()
        }
        return {labels: points for labels, points in early.items() if len(points[0])}


@dataclass(frozen=True)
class Scraped(Generic[V_co]):
    """A view whose elements are the label sets `labels`, in this order.

    `records` are the values of the recording rules whose expression is text.
    """

    labels: list[Labels]
    view: V_co
    records: Mapping[str, Vector] = field(default_factory=dict)


def column(vector: Mapping[Labels, float], labels: Collection[Labels]) -> NDArray[np.float64]:
    """Returns (labels,) values, NaN for labels that the vector lacks."""
    return np.array([vector.get(series, math.nan) for series in labels], np.float64)


@lru_cache(maxsize=100_000)  # the same few labels at every moment
def without(labels: Labels, *names: str) -> Labels:
    return frozenset(label for label in labels if label[0] not in names)


@lru_cache(maxsize=100_000)
def run_of(labels: Labels) -> Labels:
    """Returns the labels of a run on all nodes."""
    return frozenset(label for label in labels if label[0] in OF_RUN)


def grouped(vector: Vector, *names: str) -> dict[Labels, list[float]]:
    """Returns the values of series that differ only in some labels."""
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        groups.setdefault(without(labels, *names), []).append(value)
    return groups


def both(left: Vector, right: Vector, combine: Callable[[float, float], float]) -> Vector:
    """Combines the values of series that both have."""
    return {labels: combine(value, right[labels]) for labels, value in left.items() if labels in right}


def divided(dividend: float, divisor: float) -> float:
    """Divides as PromQL does: 0 / 0 is NaN."""
    if divisor:
        return dividend / divisor
    return math.copysign(math.inf, dividend) if dividend else math.nan


@dataclass(frozen=True)
class Window:
    """The last `seconds` before a moment, as rules see them: a scraped value counts for `hold` seconds."""

    seconds: float
    hold: float
    sample_interval: float

    @property
    def samples(self) -> float:
        """Returns the samples of a full window."""
        return self.seconds / self.sample_interval

    @property
    def young(self) -> float:
        """Returns the samples below which a run began in the window, or its first scrape came in it."""
        return (self.seconds + self.hold) / self.sample_interval


def going_on(now: Moment, gpus: Collection[Labels], hold: float, ago: float = 0.0) -> set[Labels]:
    """Returns the GPUs of runs that had not ended `ago` seconds before."""
    ended = now.held("stepscope_run_end_time_seconds", hold, ago=ago)
    return {labels for labels in gpus if without(labels, "gpu") not in ended}


def of_run(now: Moment, readings: Vector, values: Vector, hold: float, ago: float = 0.0) -> Vector:
    """Returns the value of each GPU for each run that uses it and had not ended `ago` seconds before."""
    return {
        labels: values[gpu]
        for labels in going_on(now, readings, hold, ago)
        if (gpu := without(labels, "run")) in values
    }


def lowest(windows: Mapping[Labels, Points]) -> Vector:
    """Returns the lowest values of series, NaN only if all values are."""
    return {labels: float(np.fmin.reduce(values)) for labels, (_, values) in windows.items()}


def highest(windows: Mapping[Labels, Points]) -> Vector:
    """Returns the highest values of series, NaN only if all values are."""
    return {labels: float(np.fmax.reduce(values)) for labels, (_, values) in windows.items()}


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
        self, quantity: str, percent: float, bound: float
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Returns the share of the samples at or below a bound in percent, and where it is enough."""
        share = self._shares[quantity, bound]
        return share, np.asarray(share > float(f"{percent / 100:.12g}"))

    def above(self, quantity: str, percent: int, bound: float) -> NDArray[np.bool_]:
        """Returns where the percentile is above a bound in percent."""
        return np.asarray(self._shares[quantity, bound] <= percent / 100)


def enough_readings(
    now: Moment, readings: Vector, gpus: Collection[Labels], patience: int, hold: float
) -> NDArray[np.bool_]:
    """Returns which GPUs have more readings than `patience`, in runs that have not ended."""
    in_runs = going_on(now, readings, hold)
    return np.array([gpu in in_runs and readings[gpu] > patience for gpu in gpus], bool)
