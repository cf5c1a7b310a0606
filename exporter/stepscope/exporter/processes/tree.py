"""Which processes belong to which training process: its children, their children, and so on.

Source: /proc/PID/stat, because /proc/PID/task/*/children needs a kernel option that many kernels lack. All
pids are those of the procfs: if it is the host's, pids of the host, also of processes in containers.
"""

import os
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, thread_time

from stepscope.common.errors import raise_if_exhausted
from stepscope.exporter.processes.used import user_of

LOOK_SECONDS = 5.0  # between two looks,
REREAD_SECONDS = 60.0  # until a process outside all trees is read again: its pid may be another's by then,
LONGEST_SHARE = 0.001  # or as many as keep the cost of either below this share of a core


class ProcessTrees:
    """The processes of the node, at most some seconds old."""

    def __init__(
        self,
        procfs: Path = Path("/proc"),
        clock: Callable[[], float] = monotonic,
        stopwatch: Callable[[], float] = thread_time,
    ) -> None:
        self._procfs = procfs
        self._clock, self._stopwatch = clock, stopwatch
        self._parents: dict[int, int] = {}
        self._trees: dict[int | None, frozenset[int]] | None = None  # of the last look, by root
        self._members: frozenset[int] = frozenset()  # of all trees
        self._due = self._reread_due = 0.0

    def of(self, roots: Iterable[int]) -> dict[int | None, frozenset[int]]:
        """Returns each root with all of its descendants, without those that another root started."""
        self._look_when_due()
        wanted = set(roots)
        if self._trees is None or self._trees.keys() != wanted:
            children: dict[int, list[int]] = {}
            for pid, parent in self._parents.items():
                children.setdefault(parent, []).append(pid)
            self._trees = {root: _descendants(root, children, wanted - {root}) for root in wanted}
            self._members = frozenset().union(*self._trees.values())
        return self._trees

    def children(self, pid: int) -> list[int]:
        """Returns the processes that a process has started and that are still there."""
        self._look_when_due()
        return [child for child, parent in self._parents.items() if parent == pid]

    def hurry(self) -> None:
        """Looks again at the next call."""
        self._due = 0.0

    def _look_when_due(self) -> None:
        now = self._clock()
        if now < self._due:
            return
        rereads = now >= self._reread_due
        begin = self._stopwatch()
        with suppress(OSError):  # too many open files: what was known stays
            self._look({} if rereads else self._parents)
            self._trees = None
        pause = (self._stopwatch() - begin) / LONGEST_SHARE
        if rereads:  # what it costs says nothing about the next look
            self._reread_due, pause = now + max(REREAD_SECONDS, pause), 0.0
        self._due = now + max(LOOK_SECONDS, pause)

    def _look(self, known: Mapping[int, int]) -> None:
        """Lists all processes. Reads those that are new, that belong to a tree, or whose parent ended."""
        pids = {int(name) for name in os.listdir(self._procfs) if name.isdigit()}
        parents: dict[int, int] = {}
        for pid in pids:
            parent = known.get(pid)
            if parent is None or pid in self._members or parent not in pids:
                parent = _parent(self._procfs, pid)
            if parent is not None:
                parents[pid] = parent
        self._parents = parents


def _parent(procfs: Path, pid: int) -> int | None:
    """Returns the parent of a process; None if it has ended or is hidden from this user. Raises OSError."""
    try:
        fields = (procfs / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[1])  # the name before it may contain anything
    except (OSError, IndexError, ValueError) as error:
        raise_if_exhausted(error)
        return None


class Namespaces:
    """Translates the processes that hold ledgers into pids of the procfs.

    A training process in a container writes the pid that it has there into its ledger. The kernel names the
    holder of a lock in the reader's own PID namespace, and in /proc/locks in that of the procfs.
    """

    def __init__(self, procfs: Path = Path("/proc")) -> None:
        self._procfs = procfs
        self._own: bool | None = None  # whether the procfs is of this process's PID namespace

    @property
    def own(self) -> bool:
        if self._own is None:
            self._own = False
            with suppress(OSError):
                self._own = os.readlink(self._procfs / "self") == str(os.getpid())
        return self._own

    def lock_holders(self) -> dict[tuple[int, int], int]:
        """Returns the pids that hold the first byte of a file, by its device and inode."""
        try:
            lines = (self._procfs / "locks").read_text().splitlines()
        except OSError:
            return {}
        holders: dict[tuple[int, int], int] = {}
        for fields in map(str.split, lines):
            # A ledger's byte LOCK_ALIVE, locked by its writer: users who may read it can lock it for reading.
            if fields[1:4:2] == ["POSIX", "WRITE"] and fields[6:] == ["0", "0"]:
                major, minor, inode = fields[5].split(":")
                holders[os.makedev(int(major, 16), int(minor, 16)), int(inode)] = int(fields[4])
        return holders

    def find(self, own_pid: int, owner: int) -> int | None:
        """Returns the user's process with this pid in its innermost namespace; None if not exactly one."""
        found = [pid for pid in self._pids_of(owner) if self._innermost(pid) == own_pid]
        return found[0] if len(found) == 1 else None

    def _pids_of(self, owner: int) -> Iterable[int]:
        with suppress(OSError), os.scandir(self._procfs) as entries:
            for entry in entries:
                with suppress(OSError):  # it has ended
                    if entry.name.isdigit() and user_of(self._procfs, int(entry.name)) == owner:
                        yield int(entry.name)

    def _innermost(self, pid: int) -> int | None:
        with suppress(OSError, IndexError, ValueError):
            for line in (self._procfs / str(pid) / "status").read_text(errors="replace").split("\n"):
                if line.startswith("NSpid:"):
                    return int(line.split()[-1])
        return None


def _descendants(root: int, children: Mapping[int, Iterable[int]], others: Container[int]) -> frozenset[int]:
    found: set[int] = set()
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid not in found and pid not in others:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return frozenset(found)
