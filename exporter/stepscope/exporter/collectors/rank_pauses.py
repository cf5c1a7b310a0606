"""For how long each rank was stopped, without a core or throttled, from PROCFS/PID and SYSFS/fs/cgroup.

A pause of a rank delays all ranks, but it is not the rank's own work.

Only the main thread is looked at, which does the steps. The kernel counts the time for which a CPU limit
stops a thread as waiting for a core. What the cgroup was throttled meanwhile is subtracted.
Source: proc(5) for the state, the kernel's Documentation/scheduler/sched-stats.rst for schedstat.
"""

from functools import partial
from math import isnan, nan
from pathlib import Path

from stepscope.exporter.processes.cgroup import Hierarchies, cpu_limit, throttling
from stepscope.exporter.processes.used import read_main_thread
from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.families import FamilyTable, LabelValues
from stepscope.exporter.sampling.kept_counters import KeptCounters
from stepscope.exporter.sampling.sample import PAUSES, Sample

REREAD_LOOKS = 120  # between two readings of a process's cgroup
LATE = 4  # sample intervals; in a longer gap it is unknown what a process did
RETENTION_SECONDS = 300.0  # for which the counters of a rank without a process are published
METRICS = """
counter stepscope_rank_paused_seconds_total{run,rank,reason}
    Time in which the rank's main thread could not run: stopped by a signal, ready but without a core
    (no_core), or throttled by the CPU limit of its cgroup.
"""


@collector
class RankPausesCollector(Collector):
    """Fills `paused_seconds` of each rank's process in the sample."""

    name = "rank_pauses"
    after = ("training",)
    settings = ("path_procfs", "path_cgroups")

    def __init__(self, procfs: Path, cgroups: Path) -> None:
        self._procfs, self._root = procfs, cgroups
        self._hierarchies: Hierarchies | None = None
        self._ranks: dict[tuple[str, int], Pauses] = {}
        self._seen: dict[tuple[str, int], float] = {}
        self._last_time = nan
        (self._paused,) = self.families = tuple(FamilyTable(METRICS).values())
        self.kept: KeptCounters = KeptCounters(self.families)

    def collect(self, sample: Sample) -> None:
        self._hierarchies = self._hierarchies or Hierarchies(self._procfs, self._root)
        elapsed, self._last_time = sample.monotonic - self._last_time, sample.monotonic
        in_time = 0 < elapsed < LATE * sample.interval
        look = partial(self._look, sample, elapsed if in_time else 0.0, self._hierarchies)
        self.apart.each("run {}".format, sample.runs, look)
        for key in [key for key, seen in self._seen.items() if sample.monotonic - seen > RETENTION_SECONDS]:
            del self._ranks[key], self._seen[key]
        paused: dict[LabelValues, float] = {
            (label, str(rank), reason): seconds
            for (label, rank), pauses in self._ranks.items()
            for reason, seconds in pauses.seconds.items()
        }
        self.kept.publish({self._paused.name: paused})

    def _look(self, sample: Sample, elapsed: float, hierarchies: Hierarchies, label: str) -> None:
        """Adds the pauses of each rank's newest process since the last look, `elapsed` seconds ago."""
        for process in {each.rank: each for each in sample.runs[label].processes}.values():
            if process.pid is None:
                continue
            key = label, process.rank
            pauses = self._ranks.get(key) or Pauses()
            try:
                pauses.look(self._procfs, hierarchies, process.pid, elapsed)
            except (OSError, IndexError, ValueError):  # it has ended, or its kernel does not count
                continue
            self._ranks[key], self._seen[key] = pauses, sample.monotonic
            process.paused_seconds = dict(pauses.seconds)


class Pauses:
    """The pauses of one rank, over all its processes, since the exporter first saw it."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PAUSES, 0.0)
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
