"""Computes percentiles of any number of values in a fixed amount of memory."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.state import State

Numbers = NDArray[np.float32] | NDArray[np.float64]


class Sketch(State):
    """Counts values in bins. The largest and the smallest value and the sum are exact; NaN is left out."""

    bins: int

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(self.bins, np.int64)
        self.count = 0
        self.sum = 0.0
        self.min = np.inf
        self.max = -np.inf

    def add(self, values: Numbers) -> None:
        values = values[~np.isnan(values)]
        if not len(values):
            return
        self.counts = self.counts + np.bincount(self._bin(values), minlength=self.bins)
        self.count += len(values)
        self.sum += float(values.sum(dtype=np.float64))
        self.min = min(self.min, float(values.min()))
        self.max = max(self.max, float(values.max()))

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else np.nan

    def percentile(self, percent: float) -> float:
        """Returns numpy's linear percentile, precise to the width of a bin; NaN without values."""
        if not self.count:
            return np.nan
        position = (self.count - 1) * percent / 100
        below, share = int(position), position % 1
        ends = np.cumsum(self.counts)
        low, high = (
            self._value(int(np.searchsorted(ends, place, side="right")))
            for place in (below, min(below + 1, self.count - 1))
        )
        return float(np.clip(low + share * (high - low), self.min, self.max))

    def histogram(self, bins: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns numpy's histogram of the values, at least one: counts (bins,) and edges (bins + 1,)."""
        used = np.flatnonzero(self.counts)
        values = np.clip([self._value(int(number)) for number in used], self.min, self.max)
        counts, edges = np.histogram(values, bins, range=(self.min, self.max), weights=self.counts[used])
        return counts, edges

    @abstractmethod
    def _bin(self, values: Numbers) -> NDArray[np.intp]: ...

    @abstractmethod
    def _value(self, number: int) -> float:
        """Returns the value that represents a bin."""


class RatioSketch(Sketch):
    """Ratios 0..1, each precise to half of 0.0001; NVML's whole percents are exact."""

    bins = 10_001

    def box_plot(self, *more: int) -> dict[str, float]:
        """Returns Debugger's box plot, in percent to four digits: quartiles, the 95th and `more` percentiles.

        Whiskers ("upper", "lower") reach 1.5 interquartile ranges beyond the box, and never beyond the data.
        """
        box = {f"p{percent:02}": 100 * self.percentile(percent) for percent in (*more, 25, 50, 75, 95)}
        reach = 1.5 * (box["p75"] - box["p25"])
        box["upper"] = min(box["p75"] + reach, 100 * self.max)
        box["lower"] = max(box["p25"] - reach, 100 * self.min)
        return {name: round(value, 4) for name, value in box.items()}

    def _bin(self, values: Numbers) -> NDArray[np.intp]:
        numbers: NDArray[np.intp] = np.rint(np.clip(values, 0, 1) * (self.bins - 1)).astype(np.intp)
        return numbers

    def _value(self, number: int) -> float:
        return number / (self.bins - 1)


class SizeSketch(Sketch):
    """Amounts above 0 of any unit (seconds, bytes), each precise to 0.5 %; below 1e-9 it counts as 0."""

    bins = 6_001
    _SMALLEST = 1e-9
    _STEP = float(np.log(1.01))  # neighbouring values are 1 % apart: 6,000 of them reach beyond 1e16

    def _bin(self, values: Numbers) -> NDArray[np.intp]:
        with np.errstate(divide="ignore"):
            numbers = np.rint(np.log(np.maximum(values, 0) / self._SMALLEST) / self._STEP)
        return np.clip(numbers, -1, self.bins - 2).astype(np.intp) + 1

    def _value(self, number: int) -> float:
        return 0.0 if number == 0 else float(self._SMALLEST * np.exp((number - 1) * self._STEP))
