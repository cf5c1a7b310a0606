"""For how long each rank was stopped, without a core or throttled, from PROCFS/PID and SYSFS/fs/cgroup.

A pause of a rank delays all ranks, but it is not the rank's own work.
"""

from functools import partial
from math import nan
from pathlib import Path

from stepscope.exporter.processes.cgroup import Hierarchies
from stepscope.exporter.processes.pauses import Pauses
from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.families import Family, LabelValues
from stepscope.exporter.sampling.kept_counters import KeptCounters
from stepscope.exporter.sampling.sample import Sample

LATE = 4  # sample intervals; in a longer gap it is unknown what a process did
RETENTION_SECONDS = 300.0  # for which the counters of a rank without a process are published


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
        self._paused = Family(
            "stepscope_rank_paused_seconds_total",
            "counter",
            "Time in which the rank's main thread could not run: stopped by a signal, ready but without a "
            "core (no_core), or throttled by the CPU limit of its cgroup.",
            ("run", "rank", "reason"),
        )
        self.kept: KeptCounters = KeptCounters([self._paused])
        self.families = (self._paused,)

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
