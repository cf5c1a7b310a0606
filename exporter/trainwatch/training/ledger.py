"""Makes a rank's ledger file and keeps it open: the training process's side of the file.

The file has a hidden name until its header is complete and its lock is held, so a reader never sees
half a ledger. All of its pages are allocated first: a full directory is then an error here, and not a
SIGBUS at a later step.
"""

from __future__ import annotations

import mmap
import os
import time

from trainwatch.training import layout
from trainwatch.training.ledger_files import open_directory, try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainwatch.training.ranks import Ranks

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class Ledger:
    """An open ledger: a mapping of the whole file, and the descriptor that holds the locks.

    The descriptor stays open while the process counts: closing any descriptor of a file drops all
    `lockf` locks of the process on it.
    """

    __slots__ = ("fd", "memory", "path")

    def __init__(self, path: str, fd: int, memory: mmap.mmap) -> None:
        self.path = path
        self.fd = fd
        self.memory = memory

    def name_framework(self, framework: str, version: str) -> None:
        _put_text(self.memory, layout.FRAMEWORK_VERSION_AT, layout.FRAMEWORK_VERSION_BYTES, version)
        _put_text(self.memory, layout.FRAMEWORK_AT, layout.FRAMEWORK_BYTES, framework)

    def finish(self) -> None:
        """Writes the end of the run and releases all locks; the mapping stays for its workers."""
        counters = memoryview(self.memory)[layout.COUNTERS_AT : layout.WORKERS_AT].cast("d")
        counters[layout.COUNTER_ENDED] = time.time()
        counters.release()
        os.close(self.fd)
        self.fd = -1


def create_ledger(directory: str, run: str, ranks: Ranks) -> Ledger:
    """Makes the ledger of this process in `directory`. Raises OSError."""
    safe_run = "".join(c if c in _NAME_CHARACTERS else "_" for c in run)[:80]
    name = f"{safe_run}.{ranks.rank}.{os.getpid()}.{os.urandom(4).hex()}"
    folder = open_directory(directory)
    try:
        temporary = f".{name}.new"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            os.posix_fallocate(fd, 0, layout.FILE_BYTES)
            memory = mmap.mmap(fd, layout.FILE_BYTES)
            _put_header(memory, run, ranks)
            try_lock(fd, layout.LOCK_ALIVE)
            os.fchmod(fd, 0o644)  # the exporter may be another user
            os.rename(temporary, name + layout.SUFFIX, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.close(fd)
            os.unlink(temporary, dir_fd=folder)
            raise
    finally:
        os.close(folder)
    return Ledger(os.path.join(os.path.abspath(directory), name + layout.SUFFIX), fd, memory)


def join_ledger(path: str) -> Ledger:
    """Opens the ledger of the process that this one works for. Raises OSError when it is gone."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size != layout.FILE_BYTES:
            raise OSError(f"{path} is no ledger of this version")
        memory = mmap.mmap(fd, layout.FILE_BYTES)
        magic, version = layout.HEADER.unpack_from(memory)[:2]
        if (magic, version) != (layout.MAGIC, layout.VERSION):
            raise OSError(f"{path} is no ledger of this version")
    except BaseException:
        os.close(fd)
        raise
    return Ledger(path, fd, memory)


def _put_header(memory: mmap.mmap, run: str, ranks: Ranks) -> None:
    now, clock = time.time(), time.perf_counter()
    local_rank = -1 if ranks.local_rank is None else ranks.local_rank
    layout.HEADER.pack_into(
        memory,
        0,
        layout.MAGIC,
        layout.VERSION,
        layout.FILE_BYTES,
        os.getpid(),
        ranks.rank,
        local_rank,
        ranks.world_size,
        now,
        now - clock,
    )
    _put_text(memory, layout.RUN_AT, layout.RUN_BYTES, run)


def _put_text(memory: mmap.mmap, at: int, size: int, text: str) -> None:
    data = text.encode("utf-8", "replace")[: size - 1].decode("utf-8", "ignore").encode()
    memory[at : at + size] = data.ljust(size, b"\0")
