"""The utilisation and I/O wait of each core since the last tick, from PROCFS/stat.

Utilisation is 1 - (idle + iowait) / total, as in psutil.cpu_percent: time stolen by a hypervisor is busy,
and guest time is not counted again, because the kernel has it in `user` and `nice` already.

psutil rounds its percentages to 0.1 and makes an object per core. These ratios come from integers, so 45
busy ticks of 50 are exactly 0.9. They come from columns of all cores, because a node may have hundreds.
"""

import re
from operator import add, sub, truediv
from pathlib import Path
from typing import NamedTuple

from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.families import Family
from stepscope.exporter.sampling.sample import NODE_QUANTITIES, Sample

# proc(5): "cpuN user nice system idle iowait irq softirq steal guest guest_nice", in ticks (1/100 s).
CORES = re.compile(rb"(?:^cpu\d.*\n)+", re.MULTILINE)  # not the line "cpu", which is their sum
FIELDS = 8  # without the two of guests, which are part of user and nice


class Cores(NamedTuple):
    """The time of each online core since boot: columns with one value per core, in ticks."""

    names: tuple[str, ...]  # "0", "1", ...
    busy: list[int]
    idle: list[int]
    io_wait: list[int]


@collector
class CpuCollector(Collector):
    """Ratios of the time between two ticks, so the first tick of a core has none."""

    name = "cpu"
    settings = ("path_procfs",)

    def __init__(self, procfs: Path) -> None:
        self.path = procfs / "stat"
        self.utilization = NODE_QUANTITIES["cpu_utilization_ratio"].family()
        self.io_wait = NODE_QUANTITIES["cpu_io_wait_ratio"].family()
        self.cores = Family("stepscope_cpus", "gauge", "Online cores.")
        self.families = (self.utilization, self.io_wait, self.cores)
        self._before: Cores | None = None
        self._names: tuple[str, ...] = ()  # of the last tick's cores, and their labels
        self._labels: list[tuple[str, ...]] = []

    def collect(self, sample: Sample) -> None:
        before, self._before = self._before, None  # no ratio spans a failed read
        now = self._before = read_cores(self.path)
        names, utilization, io_wait = _ratios(before, now) if before else ((), [], [])
        if before and not names and not set(now.names).isdisjoint(before.names):
            raise ValueError(f"{self.path}: no core's time has advanced since the last sample")

        if names != self._names:  # the same objects at every tick are cheap to compare later
            self._names, self._labels = names, [(name,) for name in names]
        ratios = self.within_limit(
            dict(zip(self._labels, zip(utilization, io_wait, strict=True), strict=True))
        )
        self.utilization.publish({core: ratio for core, (ratio, _) in ratios.items()})
        self.io_wait.publish({core: ratio for core, (_, ratio) in ratios.items()})
        self.cores.publish({(): len(names)} if names else {})
        sample.cpus = self._names
        sample.cpu_utilization_ratio = utilization
        sample.cpu_io_wait_ratio = io_wait


def read_cores(path: Path) -> Cores:
    """Returns the kernel's counters of each online core.

    Raises OSError if the file cannot be read, ValueError if it is not understood.
    """
    lines = CORES.search(path.read_bytes())
    if lines is None:
        raise ValueError(f"{path}: holds no line of a core (cpu0, cpu1, ...)")
    words = lines[0].decode("ascii", errors="replace").split()
    width = len(lines[0].partition(b"\n")[0].split())
    try:
        if width <= FIELDS or len(words) % width:
            raise ValueError(f"lines of {width - 1} counters")
        # If a line is too long or too short, int() gets the next line's "cpuN" and fails.
        user, nice, system, idle, io_wait, *interrupts_and_steal = (
            list(map(int, words[field::width])) for field in range(1, 1 + FIELDS)
        )
    except ValueError as error:
        raise ValueError(f"{path}: not {FIELDS} or more counters of each core ({error})") from None
    busy = list(map(sum, zip(user, nice, system, *interrupts_and_steal, strict=True)))
    return Cores(tuple(name[3:] for name in words[::width]), busy, idle, io_wait)


def _ratios(before: Cores, now: Cores) -> tuple[tuple[str, ...], list[float], list[float]]:
    """Returns (names, utilisation, I/O wait) of the cores whose time advanced; 0..1, correctly rounded.

    A counter that falls counts as unchanged, as in psutil and top: the kernel's documentation
    (Documentation/filesystems/proc.rst) says that iowait may decrease.
    """
    if before.names != now.names:  # a core went offline or came online: keeps those seen twice
        earlier = set(before.names)
        both = [name for name in now.names if name in earlier]
        before, now = _pick(before, both), _pick(now, both)
    busy, idle, io_wait = (_spent(*columns) for columns in zip(before[1:], now[1:], strict=True))
    total = list(map(add, map(add, busy, idle), io_wait))
    if 0 in total:  # no time has passed for a core, so it has no ratio
        advanced = [name for name, ticks in zip(now.names, total, strict=True) if ticks]
        return _ratios(_pick(before, advanced), _pick(now, advanced))
    return now.names, list(map(truediv, busy, total)), list(map(truediv, io_wait, total))


def _spent(before: list[int], now: list[int]) -> list[int]:
    spent = list(map(sub, now, before))
    return spent if min(spent, default=0) >= 0 else [max(0, ticks) for ticks in spent]


def _pick(cores: Cores, names: list[str]) -> Cores:
    """Returns the cores of these names, in this order."""
    row_of = {name: row for row, name in enumerate(cores.names)}
    rows = [row_of[name] for name in names]
    busy, idle, io_wait = ([column[row] for row in rows] for column in cores[1:])
    return Cores(tuple(names), busy, idle, io_wait)
