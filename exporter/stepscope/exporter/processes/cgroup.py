"""Reads the cgroups of a process: its CPU limit and throttling, cores, memory and pressure.

Version 1 has one hierarchy per controller, version 2 has one for all, and a hybrid has both: then version 2
provides only the pressure. A limit of a group holds for all groups below it, so the smallest one counts.
Source: the kernel's Documentation/admin-guide/cgroup-v1, cgroup-v2.rst, and cgroup_namespaces(7).

What a file does not say is NaN, never 0.
"""

import errno
import re
from collections.abc import Iterable, Sequence
from math import nan
from pathlib import Path
from typing import NamedTuple

from stepscope.common.errors import raise_if_exhausted

NO_LIMIT = 1 << 60  # bytes; version 1 writes a number of pages near 2^63
MICROSECONDS, NANOSECONDS = 1e6, 1e9  # in a second
RESOURCES = ("cpu", "io", "memory")  # of which the kernel counts the pressure

# A line from a process's own group up to the highest that is mounted here, without the root of the machine,
# whose files are about the whole node.
Line = tuple[Path, ...]


class Cgroup(NamedTuple):
    """The groups of a process in the hierarchy of each controller; empty if they cannot be found."""

    cpu: Line = ()
    cpuset: Line = ()
    memory: Line = ()
    pressure: Line = ()


class CpuLimit(NamedTuple):
    """The smallest limit of a line."""

    cores: float  # NaN: no limit
    group: Path | None  # that sets it, the nearest one to the process


class Throttling(NamedTuple):
    """The counters of a group with a CPU limit; NaN if unknown."""

    periods: float = nan
    throttled_periods: float = nan
    throttled_seconds: float = nan  # sums over the cores on which it had to stop


class Memory(NamedTuple):
    """The memory of the group with the smallest limit, or of the own group if there is no limit."""

    used_bytes: float = nan  # without cached files that are not in use, as the kubelet counts it
    limit_bytes: float = nan  # NaN: no limit
    group: Path | None = None


class Hierarchies:
    """The cgroup hierarchies that are mounted below `root`, SYSFS/fs/cgroup."""

    def __init__(self, procfs: Path, root: Path) -> None:
        self._procfs = procfs
        self._is_v2 = (root / "cgroup.controllers").exists()
        self._mounts = {"": root} if self._is_v2 else {"": root / "unified"}
        self._roots = _mounted_roots(procfs / "self" / "mountinfo")
        if not self._is_v2:
            self._mounts |= {name: root / name for name in ("cpu", "cpuset", "memory")}

    def of(self, pid: int) -> Cgroup:
        """Returns the groups of a process. Raises OSError if it has ended."""
        paths: dict[str, str] = {}
        # 4:memory:/user.slice, or 0::/user.slice of version 2
        text = (self._procfs / str(pid) / "cgroup").read_text(errors="surrogateescape")
        for line in filter(None, text.split("\n")):  # a name may have other ends of lines
            _, controllers, path = line.split(":", 2)
            paths.update(dict.fromkeys(controllers.split(","), path))
        unified = self._line("", paths)
        if self._is_v2:
            return Cgroup(unified, unified, unified, unified)
        cpu, cpuset, memory = (self._line(name, paths) for name in ("cpu", "cpuset", "memory"))
        return Cgroup(cpu, cpuset, memory, unified)

    def _line(self, controller: str, paths: dict[str, str]) -> Line:
        """Returns the line of a process whose paths are as its /proc/PID/cgroup says."""
        mount = self._mounts[controller]
        if controller not in paths or not mount.is_dir():
            return ()
        below = self._below(mount, paths[controller])
        if below is None:
            return ()
        groups = [below, *below.parents][: len(below.relative_to(mount).parts) + 1]
        return tuple(group for group in groups if not _is_root_of_machine(group))

    def _below(self, mount: Path, path: str) -> Path | None:
        """Returns the directory of a group; None if it is outside of what is mounted.

        Paths in /proc are relative to the cgroup namespace of this process, and so are the roots of mounts:
        `/` is its own group, `/../b` is a sibling of it. A mount of the whole hierarchy into a container has
        the root `/../..`, which does not say the names of the groups between.
        """
        root = self._roots.get(str(mount.resolve()), "/")
        up, down = _parts(path)
        root_up, root_down = _parts(root)
        if root_up > up:
            found = list(mount.glob("/".join(("*",) * (root_up - up) + tuple(down))))
            return found[0] if len(found) == 1 else None
        if up != root_up or down[: len(root_down)] != root_down:
            return None
        directory = mount.joinpath(*down[len(root_down) :])
        return directory if directory.is_dir() else None


def cpu_limit(line: Line) -> CpuLimit:
    """Returns the smallest limit of cpu.max or cpu.cfs_quota_us, in cores."""
    smallest = CpuLimit(nan, None)
    for group in line:
        cores = _cores(group)
        if not smallest.cores <= cores and cores == cores:
            smallest = CpuLimit(cores, group)
    return smallest


def _cores(group: Path) -> float:
    """Returns the limit of one group."""
    words = (text_of(group / "cpu.max") or "").split()  # "max 100000", "200000 100000"
    if not words:
        words = [text_of(group / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    quota, period = (number_in(word) for word in (*words, "", "")[:2])
    return quota / period if quota > 0 and period > 0 else nan  # version 1 writes -1 for no limit


def throttling(group: Path) -> Throttling:
    """Returns how often a limit of this group has stopped it."""
    counts = _counts(group / "cpu.stat")
    seconds = counts.get("throttled_usec", nan) / MICROSECONDS
    if seconds != seconds:
        seconds = counts.get("throttled_time", nan) / NANOSECONDS
    return Throttling(counts.get("nr_periods", nan), counts.get("nr_throttled", nan), seconds)


def allowed_cores(line: Line) -> frozenset[int] | None:
    """Returns the cores of the process's cpuset; None if it is unknown."""
    for group in line[:1]:
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if text := text_of(group / name):
                return parse_cpu_list(text)
    return None


def memory(line: Line) -> Memory:
    """Returns the memory of a line; `used_bytes` counts towards the limit."""
    if not line:
        return Memory()
    limits = [_bytes(group, "memory.max", "memory.limit_in_bytes") for group in line]
    limit, group = min(
        ((limit, group) for limit, group in zip(limits, line, strict=True) if limit < NO_LIMIT),
        key=lambda entry: entry[0],
        default=(nan, line[0]),
    )
    used = _bytes(group, "memory.current", "memory.usage_in_bytes")
    stat = _counts(group / "memory.stat")
    inactive = stat.get("total_inactive_file", stat.get("inactive_file", 0.0))
    return Memory(used - min(used, inactive), limit, group)  # the kernel counts the two at different moments


def oom_kills(line: Line) -> float:
    """Returns how many processes of the own group the kernel has killed because memory had run out."""
    for group in line[:1]:
        for name in ("memory.events", "memory.oom_control"):
            if (kills := _counts(group / name).get("oom_kill")) is not None:
                return kills
    return nan


def read_waiting_seconds(path: Path) -> float | None:
    """Returns the seconds so far in which some task of a node or a cgroup waited; None: not counted.

    Source: Documentation/accounting/psi.rst. Raises OSError if the file cannot be read, ValueError if it is
    not understood.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None  # built without CONFIG_PSI, or older than 4.20
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None  # switched off: psi=0, or CONFIG_PSI_DEFAULT_DISABLED
        raise
    # some avg10=0.99 avg60=1.21 avg300=0.55 total=10315779
    line = text.partition(b"\n")[0].decode("ascii", errors="replace")
    kind, _, rest = line.partition(" ")
    _, _, total = rest.partition("total=")
    if kind != "some" or not total.isdecimal():
        raise ValueError(f"{path}: {line!r} is not a line like 'some avg10=0.00 ... total=0'")
    return int(total) / MICROSECONDS


def waiting_seconds(line: Line) -> dict[str, float]:
    """Returns how long some task of the own group waited, by resource; leaves out what is not counted."""
    found = {}
    for resource in RESOURCES:
        for group in line[:1]:
            try:
                seconds = read_waiting_seconds(group / f"{resource}.pressure")
            except OSError as error:
                raise_if_exhausted(error)
                continue
            if seconds is not None:
                found[resource] = seconds
    return found


def _is_root_of_machine(group: Path) -> bool:
    """Returns whether the files of a group are about the whole node: only the root has, or lacks, these."""
    if (group / "release_agent").exists():  # version 1
        return True
    return not any((group / name).exists() for name in ("cgroup.events", "notify_on_release"))


def _mounted_roots(mountinfo: Path) -> dict[str, str]:
    """Returns the root of each cgroup mount by its mount point, from proc(5)'s mountinfo."""
    roots = {}
    # 36 35 0:31 /docker/ab /sys/fs/cgroup/cpu rw,nosuid - cgroup cgroup rw,cpu
    for line in (text_of(mountinfo) or "").split("\n"):
        mounted, _, kind = line.partition(" - ")
        if kind.startswith("cgroup"):
            escaped = mounted.split(" ")[3:5]
            root, point = (re.sub(r"\\([0-7]{3})", lambda at: chr(int(at[1], 8)), each) for each in escaped)
            roots[point] = root
    return roots


def _parts(path: str) -> tuple[int, Sequence[str]]:
    """Returns how many levels a path goes up, and the names below."""
    names = [name for name in path.split("/") if name]
    up = next((place for place, name in enumerate(names) if name != ".."), len(names))
    return up, names[up:]


def text_of(path: Path) -> str | None:
    """Returns a file's text; None if it cannot be read: the group may be gone, or belong to another user.

    Raises OSError if no file can be opened now.
    """
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        raise_if_exhausted(error)
        return None


def number_in(text: str) -> float:
    return float(text) if re.fullmatch(r"-?\d+", text) else nan


def _bytes(group: Path, *names: str) -> float:
    return next((value for name in names if (value := number_in(text_of(group / name) or "")) == value), nan)


def _counts(path: Path) -> dict[str, float]:
    """Returns the numbers of a file with a name and a number per line."""
    words = (line.split() for line in (text_of(path) or "").splitlines())
    return {pair[0]: number_in(pair[1]) for pair in words if len(pair) == 2}


def parse_cpu_list(text: str) -> frozenset[int]:
    """Returns the numbers of the cores. Raises ValueError if the text is not a list."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def cpu_list(cores: Iterable[int]) -> str:
    """Returns the list with the fewest characters."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and parts[-1][1] == core - 1:
            parts[-1][1] = core
        else:
            parts.append([core, core])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)
