"""The files of ledgers: where they lie, for training process and exporter alike, and who holds one.

A lock on a byte says that its process is alive: the kernel lets go of it even after `kill -9`. It belongs
to the process and not to the descriptor: a forked child does not inherit it, and a process that closes any
descriptor of a file loses all of its locks on it.
"""

from __future__ import annotations

import fcntl
import os
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SHARED_MEMORY = "/dev/shm"

# struct flock of Linux on 64-bit machines: type, whence, start, length, pid.
_FLOCK = Struct("@hhqqi")


def ledger_directory(environment: Mapping[str, str] = os.environ) -> str:
    """TRAINWATCH_LEDGER_DIR, else `trainwatch` in /dev/shm, else `trainwatch` in the temporary folder."""
    configured = environment.get("TRAINWATCH_LEDGER_DIR")
    if configured:
        return configured
    if os.path.isdir(SHARED_MEMORY) and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return os.path.join(SHARED_MEMORY, "trainwatch")
    return os.path.join(environment.get("TMPDIR") or "/tmp", "trainwatch")


def open_directory(path: str) -> int:
    """A descriptor of the ledger directory, which is made if missing: shared by all users, like /tmp.

    A symbolic link in its place is followed only where the user named the directory. Raises OSError.
    """
    try:
        os.mkdir(path)
    except FileExistsError:
        pass
    else:
        os.chmod(path, 0o1777)  # mkdir's mode is subject to the umask
    link = 0 if os.environ.get("TRAINWATCH_LEDGER_DIR") else os.O_NOFOLLOW
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | link)


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
