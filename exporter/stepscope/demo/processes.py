"""The simulated processes: their /proc/PID, as Linux writes them.

A run's processes are its ranks and, as children of each, its loader workers. The ranks use all the CPU time.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from stepscope.demo.host import MEMORY_KIBIBYTES, TICKS
from stepscope.demo.runs import SimulatedRun
from stepscope.demo.scenario import Scenario

MAIN_THREAD = 0.5  # of a core
FIELDS = 52  # of /proc/PID/stat


class SimulatedProcess:
    """A process in a cgroup, allowed on some cores."""

    def __init__(
        self, procfs: Path, pid: int, parent: int, uid: int, cores: Sequence[int], group: str = "/"
    ) -> None:
        self.pid = pid
        self._cores = cores
        self._directory = procfs / str(pid)
        self.parent = parent
        self._directory.mkdir(parents=True)
        allowed = ",".join(map(str, cores))
        self._status = (
            f"Name:\tpython\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}\n"
            f"Cpus_allowed_list:\t{allowed}\n"
        )
        self._memory = -1
        self.hold(0)
        (self._directory / "cgroup").write_text(f"0::{group}\n")
        (self._directory / "comm").write_text("python\n")
        (self._directory / "environ").write_bytes(b"")
        if os.geteuid() == 0:  # only root can give a file away
            os.chown(self._directory, uid, uid)
        self.use(0.0)

    def use(self, cpu_seconds: float, ran: float = 0.0, waited: float = 0.0) -> None:
        """Writes the CPU time since its start, and for how long its main thread ran and waited for a core."""
        (self._directory / "schedstat").write_text(f"{1e9 * ran:.0f} {1e9 * waited:.0f} 1\n")
        fields = ["0"] * (FIELDS - 2)
        fields[0], fields[1] = "S", str(self.parent)
        fields[11] = str(round(TICKS * cpu_seconds))
        fields[19] = str(self.pid)  # its start, which no other process has
        fields[36] = str(self._cores[0])
        (self._directory / "stat").write_text(f"{self.pid} (python) {' '.join(fields)}\n")

    def hold(self, kibibytes: int) -> None:
        """Writes how much memory it has that is no file's."""
        if kibibytes != self._memory:
            self._memory = kibibytes
            (self._directory / "status").write_text(f"{self._status}RssAnon:\t{kibibytes} kB\n")

    def end(self) -> None:
        shutil.rmtree(self._directory)


class RunProcesses:
    """The processes of a run, in a cgroup."""

    def __init__(self, procfs: Path, run: SimulatedRun, group: str = "/") -> None:
        place = run.place
        uid = os.getuid() if place.uid is None else place.uid
        self.ranks = [SimulatedProcess(procfs, pid, 1, uid, place.cores, group) for pid in run.pids]
        self.workers = [
            SimulatedProcess(procfs, worker, pid, uid, place.cores, group)
            for number, pid in enumerate(run.pids)
            for worker in range(pid + 10 + 20 * number, pid + 10 + 20 * number + min(run.scenario.workers, 8))
        ]
        self._rank_count = len(self.ranks)
        self._cpu_seconds = 0.0
        self._ran = self._waited = 0.0  # seconds of each main thread

    def advance(self, seconds: float, cores: float, scenario: Scenario) -> None:
        """Advances the processes, which use so many cores."""
        self._cpu_seconds += seconds * cores
        self._ran += MAIN_THREAD * seconds
        self._waited += MAIN_THREAD * seconds * scenario.waits_for_cores / (1 - scenario.waits_for_cores)
        for process in self.ranks:
            process.use(self._cpu_seconds / self._rank_count, self._ran, self._waited)
            process.hold(round(scenario.memory * MEMORY_KIBIBYTES / self._rank_count))

    def end(self) -> None:
        for process in (*self.ranks, *self.workers):
            process.end()
