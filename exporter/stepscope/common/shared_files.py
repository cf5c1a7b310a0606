"""Opens, makes, lists, removes and locks names in directories that other users can write to.

Others may put anything there under any name, at any moment: a FIFO, a directory, a link, a file without end,
a lock. It must cost nobody else anything:

- A file is opened without following a link or waiting. Kind, owner and size are checked before it is read.
- Removing raises nothing. What cannot be removed costs its one name.
- Only a lock that needs the permission to write shows that its process lives. A lock that others must not
  prevent is on a file that they can never open.

Standard library only: training processes import it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from errno import EFBIG, EINVAL, EISDIR, ELOOP, ENXIO, EPERM
from itertools import islice
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    Path = str | os.PathLike[str]

ENTRIES = 100_000  # of a directory that are looked at

# struct flock of Linux on 64-bit machines: type, whence, start, length, pid.
_FLOCK = Struct("@hhqqi")
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # without O_NONBLOCK a FIFO or a lease makes wait


class UntrustedError(OSError):
    """A name that is not what it must be. `reason` is "kind", "owner" or "size"."""

    def __init__(self, path: Path, reason: str, number: int, what: str) -> None:
        super().__init__(number, what, os.fspath(path))
        self.reason = reason


def open_file(
    path: Path,
    owners: Collection[int] | None = None,
    flags: int = os.O_RDONLY,
    most: int | None = None,
    is_kind: Callable[[int], bool] = stat.S_ISREG,
    folder: int | None = None,
    mode: int = 0o600,
) -> int:
    """Returns a descriptor of a plain file, or of what `is_kind` says of its mode. It never waits.

    `owners` are the users to whom it must belong (None: any), `most` the bytes that it may have. `folder` is
    a descriptor of its directory, `mode` is for O_CREAT. Raises UntrustedError, and OSError if it cannot be
    opened.
    """
    try:
        fd = os.open(path, flags | _SAFELY, mode, dir_fd=folder)
    except OSError as error:
        # ENXIO: a socket, or a FIFO that nobody reads.
        if error.errno in (ELOOP, EISDIR) or (error.errno == ENXIO and is_kind is stat.S_ISREG):
            raise _wrong_kind(path) from error
        raise
    try:
        status = os.fstat(fd)
        if not is_kind(status.st_mode):
            raise _wrong_kind(path)
        if owners is not None and status.st_uid not in owners:
            wanted = " or ".join(map(str, sorted(owners)))
            what = f"belongs to user {status.st_uid}, not {wanted}"
            raise UntrustedError(path, "owner", EPERM, what)
        if most is not None and status.st_size > most:
            raise UntrustedError(path, "size", EFBIG, f"{status.st_size} bytes long, more than {most}")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _wrong_kind(path: Path) -> UntrustedError:
    return UntrustedError(path, "kind", EINVAL, "a link, a directory, a pipe or something else unexpected")


def read_file(path: Path, most: int, owners: Collection[int] | None = None, offset: int = 0) -> bytes:
    """Returns the bytes of a plain file from `offset` on. Raises as `open_file`."""
    with os.fdopen(open_file(path, owners, most=most), "rb") as file:
        file.seek(offset)
        return file.read(most)


def open_folder(path: Path, follow: bool = False) -> int:
    """Returns a descriptor of a directory. Raises OSError, also for a link unless `follow`."""
    link = 0 if follow else os.O_NOFOLLOW
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | link)


def create_file(path: Path, mode: int = 0o600, flags: int = os.O_RDWR, folder: int | None = None) -> int:
    """Makes a file of this user and returns its descriptor. Raises OSError, FileExistsError for any name."""
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | _SAFELY, mode, dir_fd=folder)


def create_fifo(path: Path) -> int:
    """Makes a FIFO for this user and returns a descriptor for reading and writing. Raises OSError."""
    os.mkfifo(path, 0o600)
    fd = open_file(path, {os.geteuid()}, os.O_RDWR, is_kind=stat.S_ISFIFO)
    os.set_blocking(fd, True)
    return fd


def create_locked(
    folder: int, name: str, hidden: str, size: int, lock: int, fill: Callable[[mmap.mmap], None]
) -> tuple[int, mmap.mmap]:
    """Makes a file that all may read, and returns its descriptor, which holds the lock, and its memory.

    It has the name `hidden`, and no other user can open it, until `fill` has written it and the byte `lock`
    is locked. So a reader never sees half of it, and nobody can lock it first. All of its pages are
    allocated: a full directory is then an error here, and not a SIGBUS later. Raises OSError.
    """
    fd = create_file(hidden, folder=folder)
    try:
        os.posix_fallocate(fd, 0, size)
        memory = mmap.mmap(fd, size)
        fill(memory)
        try_lock(fd, lock)
        os.fchmod(fd, 0o644)
        move(hidden, name, folder)
    except BaseException:
        os.close(fd)
        remove(hidden, folder)
        raise
    return fd, memory


def create_private(folder: int, hidden: str) -> int:
    """Returns a descriptor of a new, empty file for locks, which only this user can open. Raises OSError.

    It has no name, so nothing is left of it. Other processes of this user open it by `open_private`.
    """
    fd = create_file(hidden, folder=folder)
    remove(hidden, folder)
    return fd


def open_private(pid: int, fd: int) -> int:
    """Opens a file of `create_private` that another process has as `fd`. Raises OSError."""
    path = f"/proc/{pid}/fd/{fd}"
    own = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # the link there is the kernel's
    status = os.fstat(own)
    if stat.S_ISREG(status.st_mode) and not status.st_nlink and status.st_uid == os.geteuid():
        return own
    os.close(own)
    raise _wrong_kind(path)


class AboveStandardStreams:
    """Gives files that are opened within no number from 0 to 2, also if the program has closed those.

    A script that opens its streams later would close such a file, and C code would print into it.
    """

    def __enter__(self) -> None:
        self._taken: list[int] = []
        try:
            while (fd := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)) <= 2:
                self._taken.append(fd)
            os.close(fd)
        except OSError:  # no more descriptors, or no such device
            pass

    def __exit__(self, *_: object) -> None:
        for fd in self._taken:
            os.close(fd)


class Descriptor:
    """A descriptor that stays open. A program that closes all descriptors may close this one as well."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._identity = self._identify()

    def is_ours(self) -> bool:
        """Returns whether it is still open and has not become a file of the program."""
        try:
            return self.fd >= 0 and self._identify() == self._identity
        except OSError:
            return False

    def close(self) -> None:
        """Closes the descriptor unless it is somebody else's by now."""
        if self.is_ours():
            os.close(self.fd)
        self.fd = -1

    def _identify(self) -> tuple[int, int]:
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino


def move(source: Path, target: Path, folder: int | None = None) -> None:
    """Renames a file of this user, in place of what has the name `target`. Raises OSError."""
    os.replace(source, target, src_dir_fd=folder, dst_dir_fd=folder)


def remove(path: Path, folder: int | None = None) -> str:
    """Removes a name, whatever it is; a directory only if it is empty. Returns "", or why it is still there.

    Takes one or two system calls, so a directory that others have filled costs no more than its name.
    """
    try:
        try:
            os.unlink(path, dir_fd=folder)
        except IsADirectoryError:
            os.rmdir(path, dir_fd=folder)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def remove_tree(path: Path) -> None:
    """Removes a directory of this user that only this user can write to, as far as it can be removed."""
    from shutil import rmtree  # takes long to import

    rmtree(path, ignore_errors=True)


def entries(directory: Path | int, most: int = ENTRIES) -> Iterator[os.DirEntry[str]]:
    """Yields the entries of a directory, at most so many. Raises OSError."""
    with os.scandir(directory) as found:
        yield from islice(found, most)


# -- locks of bytes: they belong to the process, and the kernel ends them with it --------------------------


def try_lock(fd: int, byte: int) -> bool:
    """Locks one byte of a file open for writing. Returns whether it could: another process may hold it.

    A reader of the file can hold it, too: so the first lock is taken before others can open the file. Raises
    OSError if the file system has no locks.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, depending on the system
        return False
    return True


def lock_holder(fd: int, byte: int) -> int | None:
    """Returns the pid of the other process that has locked one byte for writing, or None.

    The pid is of this process's PID namespace; 0 or less: the process is not in it. Does not take the lock,
    so it disturbs no process. The kernel names the pid, so no file can forge it. Locks for reading do not
    count: every user who may read the file can take them.
    """
    query = _FLOCK.pack(fcntl.F_RDLCK, 0, byte, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
    return int(pid) if kind == fcntl.F_WRLCK else None


def is_locked(fd: int, byte: int) -> bool:
    """Returns whether another process has locked one byte for writing."""
    return lock_holder(fd, byte) is not None


# -- locks of files: they belong to the descriptor, and anyone who can open the file can take them ---------


def try_hold(fd: int) -> bool:
    """Locks a file that no other user can open. Returns whether it could. Raises OSError without locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(fd: int) -> bool:
    """Returns whether somebody has locked a file by `try_hold`; False on a file system without locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
