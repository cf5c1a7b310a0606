"""Counts for how long a rank could not run although it had work: stopped, without a core, or throttled.

Only the main thread is looked at, which does the steps. The kernel counts the time for which a CPU limit
stops a thread as waiting for a core. What the cgroup was throttled meanwhile is subtracted.
Source: proc(5) for the state, the kernel's Documentation/scheduler/sched-stats.rst for schedstat.
"""

from math import isnan
from pathlib import Path

from stepscope.exporter.processes.cgroup import Hierarchies, cpu_limit, throttling
from stepscope.exporter.processes.used import read_main_thread

REASONS = ("stopped", "no_core", "throttled")
REREAD_LOOKS = 120  # between two readings of a process's cgroup


class Pauses:
    """The pauses of one rank, over all its processes, since the exporter first saw it."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(REASONS, 0.0)
        self._pid: int | None = None
        self._waited = self._throttled = 0.0  # seconds at the last look
        self._looks = 0
        self._limit: Path | None = None

    def look(self, procfs: Path, hierarchies: Hierarchies, pid: int, elapsed: float) -> None:
        """Adds the pauses since the last look, `elapsed` seconds ago.

        Raises OSError or ValueError if the process has ended, or its kernel does not count.
        """
        state = (procfs / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0]
        if (times := read_main_thread(procfs, pid)) is None:
            raise ValueError("the kernel does not count waits for a core")
        waited = times[1]
        if pid != self._pid or self._looks % REREAD_LOOKS == 0:
            self._limit = cpu_limit(hierarchies.of(pid).cpu).group
        throttled = 0.0 if self._limit is None else throttling(self._limit).throttled_seconds
        if pid == self._pid:
            if state in (b"T", b"t"):
                self.seconds["stopped"] += elapsed
            # The counters of the cgroup are sums over its cores.
            gained, limited = waited - self._waited, throttled - self._throttled
            stopped = min(gained, max(0.0, limited)) if not isnan(limited) else 0.0
            if gained > 0:
                self.seconds["throttled"] += stopped
                self.seconds["no_core"] += gained - stopped
        self._pid, self._waited, self._throttled = pid, waited, throttled
        self._looks += 1
