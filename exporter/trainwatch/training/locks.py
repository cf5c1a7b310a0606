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


def is_locked(fd: int, byte: int) -> bool:
    """Whether another process holds the lock on one byte. Asks without taking it, so disturbs nobody."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0)
    answer = fcntl.fcntl(fd, fcntl.F_GETLK, asked)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
