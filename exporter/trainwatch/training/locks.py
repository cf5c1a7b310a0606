"""Byte-range locks that say who is alive: the kernel lets go of them even after `kill -9`.

They belong to the process and not to the descriptor: a forked child does not inherit them, and a
process that closes any descriptor of a file loses all of its locks on it.
"""

from __future__ import annotations

import fcntl
from struct import Struct

# struct flock of Linux on 64-bit machines: type, whence, start, length, pid.
_FLOCK = Struct("@hhqqi")


def try_lock(fd: int, byte: int) -> bool:
    """Takes the lock on one byte of a file open for writing; false when another process holds it.

    Raises OSError when the file system has no locks.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the system likes
        return False
    return True


def lock_holder(fd: int, byte: int) -> int | None:
    """The pid of the other process that holds the lock on one byte, as this process's PID namespace
    numbers it (0 or less: it cannot be seen from here); None where nobody does.

    Asks without taking the lock, so disturbs nobody. It is the kernel's word: no file can forge it.
    """
    asked = _FLOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(pid)


def is_locked(fd: int, byte: int) -> bool:
    """Whether another process holds the lock on one byte."""
    return lock_holder(fd, byte) is not None
