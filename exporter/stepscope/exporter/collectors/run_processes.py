"""CPU, memory and limits of each run, from the PROCFS/PID of its processes and from SYSFS/fs/cgroup.

A look costs some reads per process, so runs are looked at every few seconds, and many processes less often,
unless their run is young. The use of their cores by everything is counted with every sample, from what the
collector `cpu` has read.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from math import inf, isnan, nan
from pathlib import Path
from time import thread_time
from typing import NamedTuple

from stepscope.common.errors import raise_if_exhausted
from stepscope.exporter.processes.cgroup import (
    Cgroup,
    Hierarchies,
    Throttling,
    allowed_cores,
    cpu_limit,
    cpu_list,
    memory,
    oom_kills,
    parse_cpu_list,
    throttling,
    waiting_seconds,
)
from stepscope.exporter.processes.neighbours import Neighbours, OnCores
from stepscope.exporter.processes.used import (
    Gains,
    Process,
    TreeCounter,
    read_io,
    read_main_thread,
    read_process,
)
from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.families import FamilyTable, LabelValues, flat
from stepscope.exporter.sampling.kept_counters import KeptCounters
from stepscope.exporter.sampling.sample import RUN_QUANTITIES, HostUse, Sample

LOOK_SECONDS = 2.0  # between two looks,
LONGEST_SHARE = 0.001  # or as many as keep their cost below this share of a core,
OF_AGE = 0.5  # but at most this part of a run's age: so a short run is known, too
FIRST_LOOKS = 5  # at which all are read
REREAD_LOOKS = 15  # between two readings of a process's cores, cgroups and memory
RETENTION_SECONDS = 300.0  # for which the counters of a run without processes are published
LATE = 4  # sample intervals; what was used in a longer gap is not known
TICKS = os.sysconf("SC_CLK_TCK")  # per second
KIBIBYTE = 1024
ANONYMOUS = re.compile(r"^(?:RssAnon|VmSwap):\s+(\d+) kB", re.MULTILINE)
PUBLISHED = [each for each in RUN_QUANTITIES.values() if each.help]
METRICS = """
gauge stepscope_run_cpus{run}
    Cores that the run's processes may use.
info stepscope_run_cpu_info{run,cpus}
    The cores that the run's processes may use.
counter stepscope_run_pressure_waiting_seconds_total{run,resource}
    Time in which at least one task of the run's cgroup waited for the resource.
counter stepscope_run_neighbour_cpu_seconds_total{run,user}
    CPU time of other processes on the cores that the run may use, by user, once they use many.
"""


@collector
class RunProcessesCollector(Collector):
    """Fills `host` of each run in the sample."""

    name = "run_processes"
    after = ("cpu", "memory", "training")
    settings = ("path_procfs", "path_cgroups")

    def __init__(self, procfs: Path, cgroups: Path, stopwatch: Callable[[], float] = thread_time) -> None:
        self._procfs, self._root, self._stopwatch = procfs, cgroups, stopwatch
        self._hierarchies: Hierarchies | None = None
        self._runs: dict[str, _Run] = {}
        self._neighbours = Neighbours(procfs, TICKS)
        self._pause = self._since_look = 0.0  # seconds of samples
        self._last_time = nan
        self._counters, self._gauges = (
            {each.attribute: each.family() for each in PUBLISHED if each.kind == kind}
            for kind in ("counter", "gauge")
        )
        self._cpus, self._cpu_info, self._pressure, self._users = others = FamilyTable(METRICS).values()
        self.families = (*self._counters.values(), *self._gauges.values(), *others)
        kept = (family for family in self.families if family.kind == "counter")
        self.kept: KeptCounters = KeptCounters(kept)

    def collect(self, sample: Sample) -> None:
        elapsed, self._last_time = sample.monotonic - self._last_time, sample.monotonic
        for label in sample.runs.keys() - self._runs.keys():
            self._runs[label] = _Run(self.kept.continues(label))
        self.apart.each(
            "run {}".format, self._runs, lambda label: self._runs[label].count_busy(sample, elapsed)
        )
        self._since_look += sample.interval
        if self._since_look >= self._pause:
            begin = self._stopwatch()
            self._look(sample)
            self._pause = max(LOOK_SECONDS, (self._stopwatch() - begin) / LONGEST_SHARE)
            self._since_look = 0.0
        else:
            self._look_at([label for label in sample.runs if self._runs[label].is_due()], sample)
        for label, run in list(self._runs.items()):
            run.absent = 0.0 if label in sample.runs else run.absent + sample.interval
            if run.absent > RETENTION_SECONDS:
                del self._runs[label]
                self._neighbours.forget(label)
        for label, known in sample.runs.items():
            known.host = replace(self._runs[label].use)  # the recording reads it later
        self.publish({label: run.use for label, run in self._runs.items()}, sample.runs)

    def _look_at(self, labels: Iterable[str], sample: Sample) -> list[str]:
        """Looks at runs. Returns those of which no error was raised."""
        hierarchies = self._hierarchies = self._hierarchies or Hierarchies(self._procfs, self._root)

        def look(label: str) -> None:
            self._runs[label].look(self._procfs, hierarchies, sample.runs[label].pids, sample)

        return self.apart.each("run {}".format, labels, look)

    def _look(self, sample: Sample) -> None:
        """Looks at all runs, and at their neighbours."""
        on_cores = {
            label: OnCores(frozenset(use.cpus), sample.runs[label].pids, use.other_cpu_seconds)
            for label in self._look_at(sample.runs, sample)
            if not isnan((use := self._runs[label].use).other_cpu_seconds)
        }
        for label, seconds in self._neighbours.look(on_cores, self._since_look).items():
            self._runs[label].use.neighbour_cpu_seconds = dict(seconds)

    def publish(self, runs: Mapping[str, HostUse], present: Iterable[str]) -> None:
        """Publishes what runs use; gauges only of those that are present."""
        now = {label: runs[label] for label in present}
        counted = {family.name: _known(name, runs) for name, family in self._counters.items()}
        for name, family in self._gauges.items():
            family.publish(_known(name, now))
        self._cpus.publish({(label,): len(use.cpus) for label, use in now.items() if use.cpus})
        cores = {label: cpu_list(map(int, use.cpus)) for label, use in now.items() if use.cpus}
        self._cpu_info.publish(dict.fromkeys(cores.items(), 1))
        counted[self._pressure.name] = flat({(label,): use.waiting_seconds for label, use in runs.items()})
        counted[self._users.name] = flat({(label,): use.neighbour_cpu_seconds for label, use in runs.items()})
        self.kept.publish(counted)


class _Run:
    """The processes of one run, and what they have used since an exporter first saw them.

    `continues`: an earlier exporter has counted what they used until now.
    """

    def __init__(self, continues: bool) -> None:
        self.use = HostUse()
        self.looks = 0
        self.absent = 0.0  # seconds without a process
        self._age = self._looked_at = 0.0  # seconds of samples, now and at the last look
        self._cpu, self._faults = TreeCounter("cpu_ticks", continues), TreeCounter("major_faults", continues)
        self._places: dict[tuple[int, int], _Place] = {}  # by pid and start
        self._ran, self._waited = Gains(True, continues), Gains(True, continues)
        self._disks: dict[int, Process] = {}  # with the bytes that they have read and written
        self._read = TreeCounter("disk_read_bytes", continues)
        self._written = TreeCounter("disk_written_bytes", continues)
        self._limited = {name: Gains() for name in Throttling._fields}
        self._waited_or_stopped = 0.0, 0.0  # seconds at the last look
        self._waits = 0.0  # without those for which the CPU limit stopped the run
        self._kills = Gains()
        self._pressure: dict[str, Gains] = {}
        self._elapsed: float | None = None  # seconds since the last look; None: not known
        self._busy: float | None = 0.0  # of its cores since the last look; None: not known throughout
        self._own = self._waited_for_io = 0.0  # seconds at the last look
        self._others = self._most = 0.0  # CPU seconds of others; falls a little, because two clocks differ

    def count_busy(self, sample: Sample, elapsed: float) -> None:
        """Counts what everything used of the run's cores since the last sample."""
        self._age += sample.interval
        in_time = 0 < elapsed < LATE * sample.interval
        self._elapsed = self._elapsed + elapsed if in_time and self._elapsed is not None else None
        if self._busy is None or not self.use.cpus:
            return
        own = set(self.use.cpus)
        shares = dict(zip(sample.cpus, sample.cpu_utilization_ratio, strict=False))
        used = [share for cpu, share in shares.items() if cpu in own]
        known = in_time and len(used) == len(own)
        self._busy = self._busy + elapsed * sum(used) if known else None

    def is_due(self) -> bool:
        """Returns whether a run of this age is looked at now, whatever a look costs."""
        return not self.looks or self._age - self._looked_at >= max(LOOK_SECONDS, OF_AGE * self._looked_at)

    def look(self, procfs: Path, hierarchies: Hierarchies, pids: Collection[int], sample: Sample) -> None:
        """Reads the processes and their cgroups; the sample has the node's memory and online cores."""
        self._looked_at = self._age
        found = {pid: read_process(procfs, pid) for pid in pids}
        processes = {pid: process for pid, process in found.items() if process is not None}
        if not processes:  # out of sight, or ended
            self._busy = None
            return
        self._cpu.add(processes)
        self._faults.add(processes)
        self._place(procfs, hierarchies, processes)
        self._read_main_threads(procfs)
        self._read_io(procfs, processes)
        use = self.use
        use.cpu_seconds = self._cpu.total / TICKS
        use.major_page_faults = self._faults.total
        before_look = self._waited_or_stopped
        places = self._places.values()
        self._read_cgroups([place.cgroup for place in places])
        anonymous = [place.anonymous_bytes for place in places if not isnan(place.anonymous_bytes)]
        use.anonymous_memory_bytes = sum(anonymous) if anonymous else nan
        limits = [each for each in (use.memory_limit_bytes, sample.memory_total_bytes) if not isnan(each)]
        use.memory_capacity_bytes = min(limits, default=nan)
        self._waited_or_stopped = self._waited.total, self._limited["throttled_seconds"].total
        if not isnan(use.main_threads_ran_seconds):
            if self.looks:  # less those waits for which the CPU limit stopped the run
                (waited, stopped), (waits, stops) = before_look, self._waited_or_stopped
                self._waits += max(0.0, waits - waited - (stops - stopped))
            use.main_threads_waited_seconds = self._waits
        before = use.cpus
        cores = frozenset().union(*(place.cores for place in places))
        online = frozenset(map(int, sample.cpus))
        # Unless bound, processes of a virtual machine may use cores that it lacks.
        use.cpus = tuple(map(str, sorted(online if online and online < cores else cores)))
        limit = use.cpu_limit_cores if not isnan(use.cpu_limit_cores) else inf
        use.allowed_cores = min(limit, len(use.cpus)) if use.cpus else nan
        if before == use.cpus and self._busy is not None and self.looks:
            self._others += self._busy - (use.cpu_seconds - self._own)
            self._most = max(self._most, self._others)
            use.other_cpu_seconds = self._most
        if self._elapsed:
            use.cpu_cores = (use.cpu_seconds - self._own) / self._elapsed
            if "io" in use.waiting_seconds:
                use.io_waiting_ratio = (use.waiting_seconds["io"] - self._waited_for_io) / self._elapsed
        self._waited_for_io = use.waiting_seconds.get("io", 0.0)
        self._busy, self._own, self._elapsed = 0.0, use.cpu_seconds, 0.0
        self.looks += 1

    def _place(self, procfs: Path, hierarchies: Hierarchies, processes: Mapping[int, Process]) -> None:
        """Reads the cores and cgroups of new processes, and now and then of all."""
        rereads = self.looks < FIRST_LOOKS or self.looks % REREAD_LOOKS == 0  # a script may bind itself
        known = {} if rereads else self._places
        self._places = {}
        for pid, process in processes.items():
            key = (pid, process.start)
            place = known.get(key) or _place(procfs, hierarchies, pid)
            if place is not None:
                self._places[key] = place

    def _read_main_threads(self, procfs: Path) -> None:
        read = ((key, read_main_thread(procfs, key[0])) for key in self._places)
        times = {key: seconds for key, seconds in read if seconds is not None}
        if times:
            self._ran.add({key: ran for key, (ran, _) in times.items()})
            self._waited.add({key: waited for key, (_, waited) in times.items()})
            self.use.main_threads_ran_seconds = self._ran.total

    def _read_io(self, procfs: Path, processes: Mapping[int, Process]) -> None:
        """Reads what the processes have read and written; a file that is cut short lowers the latter."""
        found: dict[int, Process] = {}
        for pid, process in processes.items():
            known = self._disks.get(pid, process)
            known = known if known.start == process.start else process
            if (io := read_io(procfs, pid)) is not None or known is not process:
                read, written = io or (0.0, 0.0)
                found[pid] = process._replace(
                    disk_read_bytes=max(read, known.disk_read_bytes),
                    disk_written_bytes=max(written, known.disk_written_bytes),
                )
        if found:
            self._disks = found
            self._read.add(found)
            self._written.add(found)
            self.use.disk_read_bytes, self.use.disk_written_bytes = self._read.total, self._written.total

    def _read_cgroups(self, cgroups: Collection[Cgroup]) -> None:
        use = self.use
        limits = {cpu_limit(line) for line in {cgroup.cpu for cgroup in cgroups}}
        use.cpu_limit_cores = sum(limit.cores for limit in limits) if limits else nan
        stopped = {limit.group: throttling(limit.group) for limit in limits if limit.group is not None}
        for name, gains in self._limited.items() if stopped else ():
            gains.add({group: getattr(counts, name) for group, counts in stopped.items()})
            setattr(use, f"cpu_{name}", gains.total)
        lines = {cgroup.memory for cgroup in cgroups if cgroup.memory}
        memories = {each.group: each for each in map(memory, lines)}.values()
        use.memory_bytes = sum(each.used_bytes for each in memories) if memories else nan
        use.memory_limit_bytes = sum(each.limit_bytes for each in memories) if memories else nan
        kills = {line: oom_kills(line) for line in lines}
        if any(not isnan(count) for count in kills.values()):
            self._kills.add(kills)
            use.oom_kills = self._kills.total
        self._read_pressure({cgroup.pressure for cgroup in cgroups if cgroup.pressure})

    def _read_pressure(self, lines: Collection[tuple[Path, ...]]) -> None:
        found = {line: waiting_seconds(line) for line in lines}
        for resource in {name for waited in found.values() for name in waited}:
            gains = self._pressure.setdefault(resource, Gains())
            gains.add({line: waited.get(resource, nan) for line, waited in found.items()})
        self.use.waiting_seconds = {name: gains.total for name, gains in self._pressure.items()}


class _Place(NamedTuple):
    """The cores that a process may use, its cgroups, and its memory; NaN if the kernel does not say it."""

    cores: frozenset[int]
    cgroup: Cgroup
    anonymous_bytes: float


def _place(procfs: Path, hierarchies: Hierarchies, pid: int) -> _Place | None:
    """Returns the place of a process; None if it has ended."""
    try:
        status = (procfs / str(pid) / "status").read_text(errors="replace")
        cgroup = hierarchies.of(pid)
        cores = parse_cpu_list(status.partition("Cpus_allowed_list:")[2].partition("\n")[0])
    except (OSError, ValueError) as error:
        raise_if_exhausted(error)
        return None
    cpuset = allowed_cores(cgroup.cpuset)
    kibibytes = ANONYMOUS.findall(status)
    memory_bytes = float(sum(map(int, kibibytes)) * KIBIBYTE) if kibibytes else nan
    return _Place(cores & cpuset if cpuset else cores, cgroup, memory_bytes)


def _known(name: str, uses: Mapping[str, HostUse]) -> dict[LabelValues, float]:
    """Returns a counter or gauge of each run that has it."""
    values = {(label,): float(getattr(use, name)) for label, use in uses.items()}
    return {key: value for key, value in values.items() if not isnan(value)}
