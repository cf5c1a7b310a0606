"""How busy each core was since the last tick, and how long it waited for I/O: one read of PROCFS/stat.

Utilisation is 1 - (idle + iowait) / total, as in psutil.cpu_percent: time stolen by a hypervisor is busy,
and guest time is not counted again, because the kernel has it in `user` and `nice` already.

psutil rounds its percentages to 0.1 and makes an object of each core. These ratios come from integers, so
that 45 busy ticks of 50 are exactly 0.9, and from columns of all cores, because there may be hundreds.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable
from operator import add, sub, truediv
from pathlib import Path
from typing import NamedTuple

from trainwatch.collectors.base import Collector
from trainwatch.node.families import Family
from trainwatch.node.snapshot import Snapshot

# proc(5): "cpuN user nice system idle iowait irq softirq steal guest guest_nice", in ticks (1/100 s).
CORES = re.compile(rb"(?:^cpu\d.*\n)+", re.MULTILINE)  # not the line "cpu", which is their sum
FIELDS = 8  # the two of guests are left out: they are part of user and nice
IDLE, IO_WAIT = 3, 4


class Cores(NamedTuple):
    """The cores that are online and their counters: FIELDS columns with one value a core."""

    names: tuple[str, ...]  # "0", "1", ...
    columns: list[list[int]]


class CpuCollector(Collector):
    """Ratios of the time between two ticks; so the first tick, and a core's first, give none."""

    name = "cpu"

    def __init__(self, procfs: Path) -> None:
        self.path = procfs / "stat"
        self.utilization = Family(
            "trainwatch_cpu_utilization_ratio",
            "gauge",
            "Share of the last sample interval in which the core was neither idle nor waiting for I/O.",
            ("cpu",),
        )
        self.io_wait = Family(
            "trainwatch_cpu_io_wait_ratio",
            "gauge",
            "Share of the last sample interval in which the core was idle while a task of it waited for I/O.",
            ("cpu",),
        )
        self._before: Cores | None = None
        self._names: tuple[str, ...] = ()  # of the last tick's cores, and their labels
        self._labels: list[tuple[str, ...]] = []

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> CpuCollector:
        return cls(Path(arguments.path_procfs))

    @property
    def families(self) -> Iterable[Family]:
        return (self.utilization, self.io_wait)

    def collect(self, snapshot: Snapshot) -> None:
        before, self._before = self._before, None  # after a failed read nothing spans the gap
        now = self._before = read_cores(self.path)
        names, utilization, io_wait = _ratios(before, now) if before else ((), [], [])
        if before and not names and not set(now.names).isdisjoint(before.names):
            raise ValueError(f"{self.path}: no core's time has advanced since the last sample")

        if names != self._names:  # the same objects tick after tick are cheap to compare further on
            self._names, self._labels = names, [(name,) for name in names]
        self.utilization.publish(dict(zip(self._labels, utilization, strict=True)))
        self.io_wait.publish(dict(zip(self._labels, io_wait, strict=True)))
        snapshot.cpus = self._names
        snapshot.cpu_utilization = utilization
        snapshot.cpu_io_wait = io_wait


def read_cores(path: Path) -> Cores:
    """What the kernel has counted of each core that is online.

    Raises OSError where the file cannot be read, ValueError where it is not understood.
    """
    lines = CORES.search(path.read_bytes())
    if lines is None:
        raise ValueError(f"{path}: holds no line of a core (cpu0, cpu1, ...)")
    words = lines[0].decode("ascii", errors="replace").split()
    width = len(lines[0].partition(b"\n")[0].split())
    names = words[::width]
    del words[::width]
    try:
        counters = list(map(int, words))  # a line that is too long or too short puts a "cpuN" in here
        if width <= FIELDS or len(counters) != len(names) * (width - 1):
            raise ValueError(f"lines of {width - 1} counters")
    except ValueError as error:
        raise ValueError(f"{path}: not {FIELDS} or more counters of each core ({error})") from None
    columns = [counters[field :: width - 1] for field in range(FIELDS)]
    return Cores(tuple(name[3:] for name in names), columns)


def _ratios(before: Cores, now: Cores) -> tuple[tuple[str, ...], list[float], list[float]]:
    """(names, utilisation, I/O wait) of the cores whose time advanced; 0..1 and correctly rounded.

    A counter that steps back counts as standing still, as in psutil and top: the kernel's
    Documentation/filesystems/proc.rst says itself that iowait may decrease.
    """
    if before.names != now.names:  # a core went offline or came online: only those seen twice
        earlier = set(before.names)
        both = [name for name in now.names if name in earlier]
        before, now = _pick(before, both), _pick(now, both)
    spent = [list(map(sub, *columns)) for columns in zip(now.columns, before.columns, strict=True)]
    if any(min(column, default=0) < 0 for column in spent):
        spent = [[max(0, ticks) for ticks in column] for column in spent]
    total = list(map(sum, zip(*spent, strict=True)))
    if 0 in total:  # no time has passed for a core: nothing can be said of it
        advanced = [index for index, ticks in enumerate(total) if ticks]
        return _ratios(*(_pick(cores, [now.names[i] for i in advanced]) for cores in (before, now)))
    idle = map(add, spent[IDLE], spent[IO_WAIT])
    utilization = list(map(truediv, map(sub, total, idle), total))
    return now.names, utilization, list(map(truediv, spent[IO_WAIT], total))


def _pick(cores: Cores, names: list[str]) -> Cores:
    """Only the cores of these names, in this order."""
    row_of = {name: row for row, name in enumerate(cores.names)}
    rows = [row_of[name] for name in names]
    return Cores(tuple(names), [[column[row] for row in rows] for column in cores.columns])
