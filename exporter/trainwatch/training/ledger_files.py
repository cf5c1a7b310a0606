"""The directory and the locks of ledger files, for the training process and the exporter.

A lock on a byte shows that its process is alive: the kernel releases it even after `kill -9`. It belongs
to the process and not to the descriptor: a forked child does not inherit it, and a process that closes any
descriptor of a file loses all of its locks on it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SHARED_MEMORY = "/dev/shm"

# struct flock of Linux on 64-bit machines: type, whence, start, length, pid.
_FLOCK = Struct("@hhqqi")


def ledger_directory(environment: Mapping[str, str] = os.environ) -> str:
    """Returns TRAINWATCH_LEDGER_DIR, otherwise `trainwatch` in /dev/shm or in the temporary directory."""
    configured = environment.get("TRAINWATCH_LEDGER_DIR")
    if configured:
        return configured
    shared = os.path.join(SHARED_MEMORY, "trainwatch")
    # A reader may see the directory where nothing can be written.
    if os.path.isdir(shared) or os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return shared
    return os.path.join(environment.get("TMPDIR") or "/tmp", "trainwatch")


def open_directory(path: str) -> int:
    """Returns a descriptor of the ledger directory. Makes it if missing: shared by all users, like /tmp.

    Also shares the default directory if this user owns it: a container engine may have made it, or a process
    that was killed before it could share it. Follows a symbolic link only if TRAINWATCH_LEDGER_DIR names it.
    Raises OSError.
    """
    try:
        os.mkdir(path, 0o700)
        made = True
    except FileExistsError:
        made = False
    link = 0 if os.environ.get("TRAINWATCH_LEDGER_DIR") else os.O_NOFOLLOW
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | link)
    status = os.fstat(fd)
    own = status.st_uid == os.geteuid()
    if made or (own and status.st_mode & 0o7777 != 0o1777 and path == ledger_directory({})):
        try:  # noqa: SIM105 - contextlib takes longer to import than all of this package
            os.fchmod(fd, 0o1777)  # mkdir's mode is subject to the umask
        except OSError:  # of a read-only mount
            pass
    return fd


def make_file(
    directory: str, name: str, size: int, lock: int, fill: Callable[[mmap.mmap], None]
) -> tuple[int, mmap.mmap]:
    """Makes a file of the ledger directory and returns its descriptor, which holds the lock, and its memory.

    The file has a hidden name until `fill` has written it and the byte `lock` is locked, so a reader never
    sees half of it. All of its pages are allocated first: a full directory is then an error here, and not a
    SIGBUS later. Raises OSError.
    """
    folder = open_directory(directory)
    try:
        temporary = f".{os.path.splitext(name)[0]}.new"  # the exporter removes what a killed process left
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            os.posix_fallocate(fd, 0, size)
            memory = mmap.mmap(fd, size)
            fill(memory)
            try_lock(fd, lock)
            os.fchmod(fd, 0o644)  # the exporter may be another user
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.close(fd)
            os.unlink(temporary, dir_fd=folder)
            raise
    finally:
        os.close(folder)
    return fd, memory


def try_lock(fd: int, byte: int) -> bool:
    """Locks one byte of a file open for writing. Returns whether it could: another process may hold it.

    Raises OSError if the file system has no locks.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, depending on the system
        return False
    return True


def lock_holder(fd: int, byte: int) -> int | None:
    """Returns the pid of the other process that holds the lock on one byte, or None.

    The pid is of this process's PID namespace; 0 or less: the process is not in it. Does not take the
    lock, so it disturbs no process. The pid comes from the kernel: no file can forge it.
    """
    query = _FLOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
    return None if kind == fcntl.F_UNLCK else int(pid)


def is_locked(fd: int, byte: int) -> bool:
    """Returns whether another process holds the lock on one byte."""
    return lock_holder(fd, byte) is not None
