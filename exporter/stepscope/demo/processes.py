"""The simulated processes: their /proc/PID and their cgroups (version 2), as Linux writes them.

A run's processes are its ranks and, as children of each, its loader workers. The ranks use all the CPU time.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from stepscope.demo.host import MEMORY_KIBIBYTES, TICKS
from stepscope.demo.runs import SimulatedRun
from stepscope.demo.scenario import Scenario

OTHER_UID = 65_534  # of a neighbour's process
NEIGHBOUR_PID = 50_000  # more than that of the run's first process
PERIOD_MICROSECONDS = 100_000  # of a CPU limit
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


class SimulatedGroup:
    """A cgroup below the root, with a limit of `cores` (None: no limit)."""

    def __init__(self, root: Path, path: str, cores: float | None) -> None:
        self._directory = root / path.lstrip("/")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._cores = cores
        self._throttled_seconds = 0.0
        self._periods = self._throttled = 0.0
        limit = "max" if cores is None else str(round(cores * PERIOD_MICROSECONDS))
        self._put("cgroup.events", "populated 1\nfrozen 0\n")
        self._put("cpu.max", f"{limit} {PERIOD_MICROSECONDS}\n")
        self._put("memory.max", "max\n")
        self._put("memory.current", f"{8 << 30}\n")
        self._put("memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")
        self._waited = {"cpu": 0.0, "io": 0.0, "memory": 0.0}  # seconds
        self.advance(0.0, 0.0, 0.0, 0.0)

    def advance(self, seconds: float, throttled: float, io_wait: float, memory_waits: float) -> None:
        """Advances; a limit stops it for the share `throttled` of the CPU time that it grants.

        Some process waits for I/O for the share `io_wait` of the time, and for memory for `memory_waits`.
        """
        self._waited["io"] += io_wait * seconds
        self._waited["memory"] += memory_waits * seconds
        for resource, waited in self._waited.items():
            line = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={1e6 * waited:.0f}\n"
            self._put(f"{resource}.pressure", line)
        cores = self._cores or 0.0
        periods = seconds * 1e6 / PERIOD_MICROSECONDS if cores else 0.0
        self._periods += periods
        self._throttled += min(1.0, 2 * throttled) * periods
        self._throttled_seconds += throttled * seconds * cores
        self._put(
            "cpu.stat",
            f"usage_usec 0\nnr_periods {self._periods:.0f}\nnr_throttled {self._throttled:.0f}\n"
            f"throttled_usec {1e6 * self._throttled_seconds:.0f}\n",
        )

    def _put(self, name: str, text: str) -> None:
        (self._directory / name).write_text(text)


class SimulatedProcesses:
    """The processes of all runs of a node, and of neighbours on their cores."""

    def __init__(self, procfs: Path, cgroups: Path) -> None:
        self._procfs, self._cgroups = procfs, cgroups
        cgroups.mkdir()
        (cgroups / "cgroup.controllers").write_text("cpuset cpu io memory\n")
        self._of: dict[SimulatedRun, _OfRun] = {}

    def begin(self, run: SimulatedRun) -> None:
        self._of[run] = _OfRun(self._procfs, self._cgroups, run)

    def advance(self, run: SimulatedRun, seconds: float, cores: float, scenario: Scenario) -> None:
        """Advances the processes of a run that uses so many cores."""
        self._of[run].advance(seconds, cores, scenario)

    def kill(self, run: SimulatedRun, pid: int) -> None:
        """Ends a rank's process and its loader workers."""
        self._of[run].kill(pid)

    def end(self, run: SimulatedRun) -> None:
        self._of.pop(run).end()


class _OfRun:
    """The processes of a run."""

    def __init__(self, procfs: Path, cgroups: Path, run: SimulatedRun) -> None:
        place = run.place
        uid = os.getuid() if place.uid is None else place.uid
        in_group = place.in_group or place.cpu_limit is not None
        path = f"/pods/{run.name}-{place.first_pid}" if in_group else "/"
        self._group = SimulatedGroup(cgroups, path, place.cpu_limit) if in_group else None
        self._ranks = [SimulatedProcess(procfs, pid, 1, uid, place.cores, path) for pid in run.pids]
        self._workers = [
            SimulatedProcess(procfs, worker, pid, uid, place.cores, path)
            for number, pid in enumerate(run.pids)
            for worker in range(pid + 10 + 20 * number, pid + 10 + 20 * number + min(run.scenario.workers, 8))
        ]
        self._neighbour: SimulatedProcess | None = None
        self._procfs, self._place = procfs, place
        self._rank_count = len(self._ranks)
        self._cpu_seconds = self._neighbours_seconds = 0.0
        self._ran = self._waited = 0.0  # seconds of each main thread

    def advance(self, seconds: float, cores: float, scenario: Scenario) -> None:
        self._cpu_seconds += seconds * cores
        self._ran += MAIN_THREAD * seconds
        self._waited += MAIN_THREAD * seconds * scenario.waits_for_cores / (1 - scenario.waits_for_cores)
        for process in self._ranks:
            process.use(self._cpu_seconds / self._rank_count, self._ran, self._waited)
            process.hold(round(scenario.memory * MEMORY_KIBIBYTES / self._rank_count))
        if self._group is not None:
            self._group.advance(seconds, scenario.throttled, max(scenario.io_wait), scenario.memory_waits)
        if scenario.neighbours:
            pid = self._place.first_pid + NEIGHBOUR_PID
            self._neighbour = self._neighbour or SimulatedProcess(
                self._procfs, pid, 1, OTHER_UID, self._place.cores
            )
            self._neighbours_seconds += seconds * scenario.neighbours * len(self._place.cores)
            self._neighbour.use(self._neighbours_seconds)
        elif self._neighbour is not None:
            self._neighbour.end()
            self._neighbour, self._neighbours_seconds = None, 0.0

    def kill(self, pid: int) -> None:
        for process in [each for each in (*self._ranks, *self._workers) if pid in (each.pid, each.parent)]:
            process.end()
            (self._ranks if process.pid == pid else self._workers).remove(process)

    def end(self) -> None:
        for process in (*self._ranks, *self._workers, *filter(None, [self._neighbour])):
            process.end()
