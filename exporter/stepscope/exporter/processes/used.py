"""Reads what processes have used, and adds it up over a tree, in counters that never fall."""

import os
import re
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from signal import SIGWINCH
from typing import Any, Literal, NamedTuple

from stepscope.common.errors import raise_if_exhausted

NANOSECONDS = 1e9  # in a second


class Process(NamedTuple):
    """The use of a process; `waited_*` is of children that have ended and that it has waited for."""

    parent: int
    start: int  # clock ticks since the boot: another process that gets the same pid later has another start
    cpu_ticks: int
    waited_cpu_ticks: int
    major_faults: int
    waited_major_faults: int
    core: int  # on which it ran last
    disk_read_bytes: float = 0.0  # of its own and of those children together, as the kernel counts them
    disk_written_bytes: float = 0.0


def read_process(procfs: Path, pid: int) -> Process | None:
    """Returns a process; None if it has ended or is hidden from this user.

    Raises OSError, here and below, if files cannot be opened now: the process may be there still.
    """
    try:
        # From the state, field 3 of proc(5); the name before it may contain anything.
        fields = (procfs / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        used = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        faults = int(fields[9]), int(fields[10])
        return Process(int(fields[1]), int(fields[19]), *used, *faults, int(fields[36]))
    except (OSError, IndexError, ValueError) as error:
        raise_if_exhausted(error)
        return None


def user_of(procfs: Path, pid: int) -> int:
    """Returns the user of a process. Raises OSError if it has ended or is hidden."""
    user = os.stat(procfs / str(pid)).st_uid
    if user == 0:  # or its files are root's, because it may not be dumped
        try:
            status = (procfs / str(pid) / "status").read_text(errors="replace")
        except OSError as error:
            raise_if_exhausted(error)
        else:
            if effective := re.search(r"^Uid:\t\d+\t(\d+)", status, re.MULTILINE):
                return int(effective[1])
    return user


def read_state(procfs: Path, pid: int) -> str:
    """Returns the letter of a process's state, as in proc(5); "" if it has ended or is hidden."""
    try:
        return (procfs / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def is_at_prompt(procfs: Path, pid: int) -> bool:
    """Returns whether a process whose main thread sleeps seems to wait for its user.

    It is a notebook's kernel, or is in the foreground of a terminal and notes changes of its window's size.
    Only what edits lines does so: Python's prompt, IPython, pdb. What a thread waits for is hidden from
    other users.
    """
    try:
        stat, status, command = (
            (procfs / str(pid) / name).read_bytes() for name in ("stat", "status", "cmdline")
        )
        _, _, group, _, _, in_foreground, *_ = stat.rpartition(b")")[2].split()
        caught = int(re.findall(rb"^SigCgt:\s*(\w+)", status, re.MULTILINE)[0], 16)
    except (OSError, IndexError, ValueError) as error:
        raise_if_exhausted(error)
        return False
    edits_lines = bool(caught >> (SIGWINCH - 1) & 1) and group == in_foreground
    return edits_lines or b"kernel_launcher" in command


def read_main_thread(procfs: Path, pid: int | str) -> tuple[float, float] | None:
    """Returns the seconds for which the main thread ran, and waited for a core; None if not counted.

    A kernel that does not count writes "0 0 0".
    """
    try:
        ran, waited, times = map(int, (procfs / str(pid) / "schedstat").read_bytes().split())
    except (OSError, ValueError) as error:
        raise_if_exhausted(error)
        return None
    return (ran / NANOSECONDS, waited / NANOSECONDS) if times else None


def read_io(procfs: Path, pid: int) -> tuple[float, float] | None:
    """Returns the bytes that a process has read from disks and written to them; None if it may not be known.

    Those of children that it has waited for are included.
    """
    try:
        lines = (procfs / str(pid) / "io").read_text().splitlines()
        values = dict(line.split(": ") for line in lines)
        written = int(values["write_bytes"]) - int(values["cancelled_write_bytes"])
        return float(values["read_bytes"]), max(0.0, float(written))
    except (OSError, KeyError, ValueError) as error:
        raise_if_exhausted(error)
        return None


class TreeCounter:
    """The CPU time, page faults or disk traffic of a tree of processes.

    A process that ends keeps what was seen of it. The kernel adds what it used since then to its parent, if
    the parent waits for it. Children that began and ended between two looks are counted in the same way.
    With `continues`, what the processes of the first look have used until then is counted elsewhere.
    """

    def __init__(
        self,
        counter: Literal["cpu_ticks", "major_faults", "disk_read_bytes", "disk_written_bytes"],
        continues: bool = False,
    ) -> None:
        self.total = 0.0
        self._continues = continues
        together = counter.startswith("disk")
        self._own = (lambda _: 0) if together else attrgetter(counter)
        self._waited = attrgetter(counter if together else f"waited_{counter}")
        self._before: Mapping[int, Process] = {}

    def add(self, processes: Mapping[int, Process]) -> None:
        """Adds what the processes, by pid, have used since the last look."""
        before = {
            pid: process
            for pid, process in self._before.items()
            if pid in processes and processes[pid].start == process.start
        }
        counted: dict[int, float] = {}  # already, of processes that ended, by the nearest parent that did not
        for pid, process in self._before.items():
            if pid not in before:
                parent = process.parent
                while parent in self._before and parent not in before:
                    parent = self._before[parent].parent
                counted[parent] = counted.get(parent, 0) + self._own(process) + self._waited(process)
        for pid, process in processes.items():
            earlier = before.get(pid)
            own = self._own(process) - (self._own(earlier) if earlier else 0)
            waited = self._waited(process) - (self._waited(earlier) if earlier else 0)
            self.total += own + max(0, waited - counted.get(pid, 0))
        if self._continues:
            self.total, self._continues = 0.0, False
        self._before = processes


class Gains:
    """The sum of what several counters gained since each was first seen, or since 0 if they are new.

    With `continues`, those of the first look are not new.
    """

    def __init__(self, from_zero: bool = False, continues: bool = False) -> None:
        self.total = 0.0
        self._continues = continues
        self._from_zero = from_zero
        self._last: dict[Any, float] = {}

    def add(self, values: Mapping[Any, float]) -> None:
        """Adds the gain of each counter since the last call; one that fell has begun again at 0."""
        last, self._last = self._last, {}
        for key, value in values.items():
            if value != value:  # it could not be read
                value = last.get(key, value)
            if value == value:
                before = last.get(key, 0.0 if self._from_zero else value)
                self.total += value - before if value >= before else value
                self._last[key] = value
        if self._continues:
            self.total, self._continues = 0.0, False
