"""For how long the driver held each GPU's clocks down, and how slow the GPU was meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.increases import Last, increases
from trainwatch.measurements.measure import ByGpu, GpuMeasurement, Measure
from trainwatch.measurements.state import Scans
from trainwatch.runs.model import NodeSamples, Times


class HeldDown(NamedTuple):
    """Readings of a GPU, seconds since the first, and those in which heat held its clocks down.

    A window is the difference of two of these.
    """

    readings: Times
    seconds: Times
    heat: Times
    new: NDArray[np.bool_] | None = None  # scans that saw a new reading; None: all

    def __sub__(self, earlier: HeldDown) -> HeldDown:
        return HeldDown(
            self.readings - earlier.readings, self.seconds - earlier.seconds, self.heat - earlier.heat
        )

    @property
    def ratio(self) -> Times:
        """Returns the share of the time, NaN where there is none."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.divide(self.heat, self.seconds))


class ThrottledGpu(GpuMeasurement[HeldDown]):
    """Seconds since the first reading of one GPU's counter: all of them, and those held down."""

    def __init__(self) -> None:
        self.last_heat, self.last_power, self.last_time = Last(), Last(), Last()
        self.readings = self.at_last_scan = 0
        self.seconds = self.heat = self.power = 0.0
        self.heat_clock = self.heat_with_clock = 0.0  # hertz x seconds held down, and these seconds
        self.highest_clock = 0.0
        self.hottest = np.nan

    def observe(self, samples: NodeSamples, column: int, scans: Scans) -> HeldDown:
        there = ~np.isnan(samples.gpu_thermal_throttle_seconds[:, column])
        heat = increases(
            samples.gpu_thermal_throttle_seconds[there, column], self.last_heat, after_reset=False
        )
        elapsed = increases(samples.times[there], self.last_time, after_reset=False)
        heat_until = self.heat + np.concatenate(([0.0], np.cumsum(heat)))
        seconds_until = self.seconds + np.concatenate(([0.0], np.cumsum(elapsed)))
        ends = np.concatenate(([0], np.cumsum(there)))[scans]
        so_far = self.readings + ends
        new = np.diff(so_far, prepend=self.at_last_scan) > 0
        if len(so_far):
            self.at_last_scan = int(so_far[-1])
        self.readings += int(np.count_nonzero(there))
        self.heat, self.seconds = float(heat_until[-1]), float(seconds_until[-1])
        self._note(samples, column, there, heat)
        return HeldDown(so_far.astype(float), seconds_until[ends], heat_until[ends], new)

    def _note(self, samples: NodeSamples, column: int, there: NDArray[np.bool_], heat: Times) -> None:
        """Takes in power, temperature, and how slow the GPU was meanwhile."""
        power = samples.gpu_power_throttle_seconds[:, column]
        self.power += float(increases(power[~np.isnan(power)], self.last_power, after_reset=False).sum())
        celsius = samples.gpu_temperature_celsius[:, column]
        self.hottest = float(np.fmax.reduce(celsius, initial=self.hottest))
        clock = samples.gpu_clock_hertz[there, column]
        known = ~np.isnan(clock)
        if known.any():
            self.highest_clock = max(self.highest_clock, float(clock[known].max()))
            self.heat_clock += float(heat[known] @ clock[known])
            self.heat_with_clock += float(heat[known].sum())

    @property
    def percent(self) -> float:
        """Returns heat's share of the time in percent; two reasons that hold at the same time count once."""
        return min(100.0, 100 * self.heat / self.seconds) if self.seconds else 0.0

    @property
    def seconds_lost(self) -> float:
        """Returns the time held down times the share of the highest clock that was missing meanwhile."""
        if not self.highest_clock:
            return 0.0
        return max(0.0, self.heat_with_clock - self.heat_clock / self.highest_clock)


ThrottledGpus = ByGpu[HeldDown, ThrottledGpu]


@dataclass(frozen=True)
class Throttling(Measure[ThrottledGpus]):
    """Asks for how long heat and the power limit held clocks down."""

    def new(self) -> ThrottledGpus:
        return ByGpu(ThrottledGpu)
