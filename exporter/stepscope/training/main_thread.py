"""The kernel's view of the thread that is sampled: what it waits for, and how long it had a core."""

from __future__ import annotations

import os

from stepscope.training.line_layout import STATES
from stepscope.training.proc_files import ProcFile

RUNNING, DISK, LOCK, CHILD, OTHER = range(len(STATES))

# System calls by number: locks (futex, fcntl, flock), waits for a child, and those that may wait for a disk.
_CALLS = {
    "x86_64": dict.fromkeys((b"202", b"72", b"73"), LOCK)
    | {b"61": CHILD, b"247": CHILD}
    | dict.fromkeys(
        (b"0", b"1", b"17", b"18", b"19", b"20", b"40", b"74", b"75", b"2", b"257", b"332"), DISK
    ),
    "aarch64": dict.fromkeys((b"98", b"25", b"32"), LOCK)
    | {b"260": CHILD, b"95": CHILD}
    | dict.fromkeys((b"63", b"64", b"67", b"68", b"65", b"66", b"71", b"82", b"83", b"56", b"291"), DISK),
}
_NOT_IN_A_CALL = b"-1"  # a page fault: the page is read from a disk


class MainThread:
    """Reads /proc. What this system does not show counts as running; times are then 0.

    The thread that reads gave the interpreter lock back just now. A thread that still waits for it would run
    if nothing were read: it counts as running.
    """

    def __init__(self, number: int) -> None:
        self.number = number  # the kernel's
        folder = f"self/task/{number}"
        self._calls = _CALLS.get(os.uname().machine, {})
        self._interpreter = variables_of_the_interpreter()
        self._call, self._stat, self._schedule = (
            ProcFile(f"{folder}/{name}") for name in ("syscall", "stat", "schedstat")
        )
        self.times = self._schedule.times

    def state(self) -> int:
        """Returns the place in STATES now."""
        call, _, arguments = self._call.read().strip().partition(b" ")
        if not call or call == b"running":
            return RUNNING
        found = DISK if call == _NOT_IN_A_CALL else self._calls.get(call, OTHER)
        if found == LOCK:
            address = int(arguments.partition(b" ")[0] or b"0", 16)
            return RUNNING if any(begin <= address < end for begin, end in self._interpreter) else LOCK
        if found != DISK:
            return found
        # A pipe or a socket is read by the same calls: then the wait can be interrupted.
        return DISK if self._stat.read().rpartition(b")")[2][1:2] == b"D" else OTHER

    def shows(self) -> bool:
        """Returns whether the kernel shows what the thread waits for."""
        return bool(self._call.read())

    def close(self) -> None:
        for file in (self._call, self._stat, self._schedule):
            file.close()


_variables: list[tuple[int, int]] = []


def variables_of_the_interpreter() -> list[tuple[int, int]]:
    """Returns where CPython's own variables are: the interpreter lock is among them, a program's locks not.

    They are read once: forked processes have them at the same addresses.
    """
    if _variables:
        return _variables
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                addresses, permissions, _, _, _, *path = line.split(maxsplit=5)
                begin, end = (int(address, 16) for address in addresses.split("-"))
                if path:
                    ours = path[0].rpartition("/")[2].startswith(("python", "libpython"))
                else:  # a mapping without a name, next to the others, has those that are 0 at the start
                    ours = bool(_variables) and _variables[-1][1] == begin
                if ours and "w" in permissions:
                    _variables.append((begin, end))
    except (OSError, ValueError):  # then a main thread that waits for its turn counts as waiting for a lock
        pass
    return _variables
