"""The last readings of each GPU, and their percentiles at each scan that may decide."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from stepscope.measurements.measure import ByGpu, GpuMeasurement
from stepscope.measurements.state import Scans
from stepscope.runs.model import Floats, NodeSamples, Times

Quantity = Literal["gpu", "gpu_memory", "cpu"]  # ratios; "cpu" is the mean of the node's cores
PERCENTS = (95, 5)  # found together, as both need the readings in order


class RecentReadings:
    """The last readings of one GPU at each scan that may decide: scan i sees `history[..., : ends[i]]`."""

    def __init__(
        self,
        quantities: Sequence[Quantity],
        history: Floats,
        ends: NDArray[np.intp],
        times: Times,
        window: int,
        judged_scans: NDArray[np.bool_],
    ) -> None:
        self._quantities, self._history, self._ends, self._window = quantities, history, ends, window
        self._percentiles: dict[Quantity, dict[float, Floats]] = {}
        self.times = times  # (scans,) of the last reading that each scan sees
        self.judged_scans = judged_scans  # the scans of the block that these are

    @property
    def enough(self) -> NDArray[np.bool_]:
        """Returns (scans,) true: scans without enough readings are left out already."""
        return np.ones(len(self._ends), bool)

    def percentile(self, quantity: Quantity, percent: float) -> Floats:
        """Returns (scans,) a percentile, a ratio."""
        known = self._percentiles.setdefault(quantity, {})
        if percent not in known:
            readings = self._history[self._quantities.index(quantity)]
            percents = (*PERCENTS, percent) if not known else (percent,)
            found = percentiles(readings, self._ends, self._window, percents)
            known.update(zip(percents, found, strict=True))
        return known[percent]

    def below(self, quantity: Quantity, percent: float, bound: float) -> tuple[Floats, NDArray[np.bool_]]:
        """Returns the percentile, and where it is below a bound in percent."""
        value = self.percentile(quantity, percent)
        return value, np.asarray(value < np.float32(bound / 100))

    def above(self, quantity: Quantity, percent: int, bound: float) -> NDArray[np.bool_]:
        """Returns where the percentile is above a bound in percent."""
        return np.asarray(self.percentile(quantity, percent) > np.float32(bound / 100))


class LastReadings(GpuMeasurement[RecentReadings]):
    """The last `window` readings of one GPU, each of one or more quantities.

    Incomplete readings are skipped. Scans decide once there are more than `patience` readings, and only if
    they have a new one: a GPU that is gone is not judged again.
    """

    def __init__(self, quantities: Sequence[Quantity], window: int, patience: int) -> None:
        self.quantities, self.window, self.patience = tuple(quantities), window, patience
        self.recent: Floats = np.empty((len(quantities), 0), np.float32)
        self.count = self.at_last_scan = 0  # readings so far
        self.last_time = np.nan

    def observe(self, samples: NodeSamples, column: int, scans: Scans) -> RecentReadings:
        columns = {"gpu": samples.gpu, "gpu_memory": samples.gpu_memory, "cpu": samples.cpu_mean[:, None]}
        values = np.stack([columns[one][:, column if one != "cpu" else 0] for one in self.quantities])
        times = samples.times
        there = ~np.isnan(values).any(axis=0)
        ends = scans  # readings of this block, up to each scan
        if not there.all():
            values, times = values[:, there], times[there]
            ends = np.concatenate(([0], np.cumsum(there)))[scans]
        so_far = self.count + ends
        new = np.diff(so_far, prepend=self.at_last_scan) > 0
        if len(so_far):
            self.at_last_scan = int(so_far[-1])
        history = np.concatenate((self.recent, values), axis=1)
        known = np.concatenate(([self.last_time], times))
        decides = new & (so_far > self.patience)
        judged = ends[decides]
        view = RecentReadings(
            self.quantities, history, judged + self.recent.shape[1], known[judged], self.window, decides
        )
        self.recent = history[:, -self.window :]
        self.last_time = float(known[-1])
        self.count += len(times)
        return view

    def percentile(self, percent: int) -> float:
        """Returns a percentile of the last readings of the first quantity, a ratio; NaN if there are none."""
        if not self.count:
            return np.nan
        ends = np.array([self.recent.shape[1]])
        return float(percentiles(self.recent[0], ends, self.window, (percent,))[0, 0])


class RecentOfGpus(ByGpu[RecentReadings, LastReadings]):
    """The last readings of each GPU of a node."""

    def __init__(self, quantities: Sequence[Quantity], window: int, patience: int) -> None:
        super().__init__(partial(LastReadings, quantities, window, patience))

    @property
    def most_readings(self) -> int:
        """Returns the number of readings of the GPU with the most."""
        return max((gpu.count for gpu in self.gpus), default=0)


def percentiles(
    readings: Floats, ends: NDArray[np.intp], window: int, percents: Sequence[float]
) -> NDArray[np.float32]:
    """Returns (percents, ends) of at most `window` readings of one quantity before each end.

    They are interpolated in float64, then rounded to the readings' precision: a device that stays exactly on
    a threshold is neither above nor below it.
    """
    full = ends >= window
    found = np.empty((len(percents), len(ends)))
    if full.any():
        windows = sliding_window_view(readings, window)[ends[full] - window]
        found[:, full] = _percentiles_of_rows(windows, percents)
    for index in np.flatnonzero(~full):
        found[:, index] = _percentiles_of_rows(readings[None, : ends[index]], percents)[:, 0]
    return found.astype(np.float32)


def _percentiles_of_rows(rows: Floats, percents: Sequence[float]) -> NDArray[np.float64]:
    """Returns numpy's linear percentiles, (percents, rows). It is faster than numpy.percentile."""
    ordered = np.sort(rows, axis=1)
    positions = (rows.shape[1] - 1) * np.asarray(percents, np.float64) / 100
    below = positions.astype(np.intp)
    above = np.minimum(below + 1, rows.shape[1] - 1)
    low, high = ordered[:, below].astype(np.float64), ordered[:, above].astype(np.float64)
    found: NDArray[np.float64] = (low + (positions - below) * (high - low)).T
    return found
