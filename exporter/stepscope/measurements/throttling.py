"""For how long the driver held each GPU's clocks down, and how slow the GPU was meanwhile."""

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.measure import ByGpu, GpuMeasurement, Measure, Portion, PortionSoFar
from stepscope.measurements.state import Last, Scans, increases
from stepscope.runs.model import NodeSamples, Times


class ThrottledGpu(GpuMeasurement[Portion]):
    """Seconds since the first reading of one GPU's counter: all of them, and those held down."""

    def __init__(self) -> None:
        self.last_heat, self.last_power, self.last_time = Last(), Last(), Last()
        self.held = PortionSoFar()  # seconds, and those held down by heat
        self.power = 0.0
        self.heat_clock = self.heat_with_clock = 0.0  # hertz x seconds held down, and these seconds
        self.highest_clock = 0.0
        self.hottest = np.nan

    def observe(self, samples: NodeSamples, column: int, scans: Scans) -> Portion:
        there = ~np.isnan(samples.gpu_thermal_throttle_seconds[:, column])
        heat = increases(
            samples.gpu_thermal_throttle_seconds[there, column], self.last_heat, after_reset=False
        )
        elapsed = increases(samples.times[there], self.last_time, after_reset=False)
        self._note(samples, column, there, heat)
        return self.held.add(elapsed, heat, np.concatenate(([0], np.cumsum(there)))[scans])

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
        return min(100.0, self.held.percent)

    @property
    def seconds_lost(self) -> float:
        """Returns the time held down times the share of the highest clock that was missing meanwhile."""
        if not self.highest_clock:
            return 0.0
        return max(0.0, self.heat_with_clock - self.heat_clock / self.highest_clock)


THROTTLING = Measure(ByGpu[Portion, ThrottledGpu], ThrottledGpu)
