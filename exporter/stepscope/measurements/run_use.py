"""The use of the host by the processes of a run: CPU time, bytes from and to disks, and waits for memory."""

import numpy as np

from stepscope.measurements.measure import Measure, Measurement, Portion, PortionSoFar, Views
from stepscope.measurements.state import Last, Scans, increases
from stepscope.runs.model import NodeSamples, Times

COUNTERS = (
    "cpu_seconds",
    "main_threads_ran_seconds",
    "main_threads_waited_seconds",
    "disk_read_bytes",
    "disk_written_bytes",
)


class RunUse(Measurement[None]):
    """The totals of one node, and the time in which they were counted."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(COUNTERS, 0.0)
        self.seconds = dict.fromkeys(COUNTERS, 0.0)
        self.allowed = np.nan  # cores, the last that was read
        self.held, self.capacity = np.nan, np.nan  # bytes of memory, likewise
        self._first: float | None = None  # sample
        self._from_start = False  # whether the counters began with the samples
        self._last = {name: Last() for name in COUNTERS}
        self._last_time = {name: Last() for name in COUNTERS}

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[None]:
        del scans
        self.allowed = _last(samples.of_run("allowed_cores"), self.allowed)
        self.held = _last(samples.of_run("anonymous_memory_bytes"), self.held)
        self.capacity = _last(samples.of_run("memory_capacity_bytes"), self.capacity)
        if self._first is None and len(samples):
            self._first = float(samples.times[0])
        for name in COUNTERS:
            readings = samples.of_run(name)
            there = ~np.isnan(readings)
            if there.any() and np.isnan(self._last[name].value):
                self._begin(name, float(readings[there][0]), float(samples.times[there][0]))
            self.totals[name] += float(increases(readings[there], self._last[name], after_reset=False).sum())
            times = increases(samples.times[there], self._last_time[name], after_reset=False)
            self.seconds[name] += float(times.sum())
        return ()

    def _begin(self, name: str, reading: float, moment: float) -> None:
        """Counts the first reading, too, if the processes began after the first sample: they fit into it."""
        first = moment if self._first is None else self._first
        if name == "cpu_seconds":
            self._from_start = reading <= self.allowed * (moment - first + 1)
        if self._from_start:
            self._last[name].value, self._last_time[name].value = 0.0, first

    def per_second(self, name: str) -> float:
        """Returns the mean gain of a counter per second; NaN if it was not read."""
        return self.totals[name] / self.seconds[name] if self.seconds[name] else np.nan

    @property
    def waited_share(self) -> float:
        """Returns the share of the time in which main threads could run that they had no core."""
        ran, waited = (self.totals[f"main_threads_{what}_seconds"] for what in ("ran", "waited"))
        return waited / (ran + waited) if ran + waited else np.nan


class MemoryWaits(Measurement[Portion]):
    """The seconds for which the kernel counted waits for memory of the run's cgroup, and those of waits."""

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


def _last(readings: Times, before: float) -> float:
    """Returns the last reading that is known, otherwise that of before."""
    known = readings[~np.isnan(readings)]
    return float(known[-1]) if len(known) else before


RUN_USE = Measure(RunUse)
MEMORY_WAITS = Measure(MemoryWaits)
