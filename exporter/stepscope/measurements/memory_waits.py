"""For how long the processes of a run waited for memory, as the kernel counts it for their cgroup."""

import numpy as np

from stepscope.measurements.measure import Measure, Measurement, Portion, PortionSoFar, Views
from stepscope.measurements.state import Last, Scans, increases
from stepscope.runs.model import NodeSamples


class MemoryWaits(Measurement[Portion]):
    """The seconds of one node for which the waits were counted, and those in which some process waited."""

    def __init__(self) -> None:
        self.waited = PortionSoFar()
        self._last, self._last_time = Last(), Last()

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[Portion]:
        waited = samples.of_run("memory_waiting_seconds")
        there = ~np.isnan(waited)
        ends = np.concatenate(([0], np.cumsum(there)))[scans]
        elapsed = increases(samples.times[there], self._last_time, after_reset=False)
        gained = increases(waited[there], self._last, after_reset=False)
        return [("", self.waited.add(elapsed, gained, ends))]


MEMORY_WAITS = Measure(MemoryWaits)
