"""For how long processes held each GPU without using it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.measure import ByGpu, GpuMeasurement, Measure
from stepscope.measurements.state import HighestSinceScan, Scans
from stepscope.runs.model import NodeSamples, Times

LONGEST_GAP = 10.0  # seconds between two samples that count as seen, as in the exporter


class Held(NamedTuple):
    """GPU hours without work so far, of the present stretch; and the readings of GPU and processes."""

    hours: Times
    readings: Times
    of_run: NDArray[np.bool_]  # whether the process belongs to a run that does not wait for its user


class HeldGpu(GpuMeasurement[Held]):
    """The stretches in which one GPU did nothing although a process held its memory."""

    def __init__(self) -> None:
        self.readings = 0
        self.idle_seconds = 0.0  # of all stretches
        self.longest = 0.0  # seconds
        self._began = 0.0  # `idle_seconds` when the present stretch began
        self._last_time = np.nan
        self._highest = HighestSinceScan()

    def observe(self, samples: NodeSamples, column: int, scans: Scans) -> Held:
        held, load = samples.gpu_compute_processes[:, column], samples.gpu[:, column]
        known = ~(np.isnan(held) | np.isnan(load))
        idle = known & (held > 0) & (load == 0)
        elapsed = np.nan_to_num(np.diff(samples.times, prepend=self._last_time), nan=0.0).clip(0, LONGEST_GAP)
        until = self.idle_seconds + np.cumsum(np.where(idle, elapsed, 0.0))
        began = np.maximum.accumulate(np.where(known & ~idle, until, self._began))
        stretches = until - began
        seen = self.readings + np.concatenate(([0], np.cumsum(known)))[scans]
        if len(samples):
            self.idle_seconds, self._began = float(until[-1]), float(began[-1])
            self._last_time = float(samples.times[-1])
            self.longest = max(self.longest, float(stretches.max()))
            self.readings += int(np.count_nonzero(known))
        highest = self._highest.add(stretches[:, None], scans)[:, 0]
        hours = np.nan_to_num(highest) / 3600
        return Held(hours, seen.astype(float), np.ones(len(hours), bool))


HELD_IDLE = Measure(ByGpu[Held, HeldGpu], HeldGpu)
