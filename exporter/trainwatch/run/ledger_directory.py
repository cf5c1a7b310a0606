"""The directory for the ledgers of one observed run, in memory if possible."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwatch.training.reader import LedgerError, LedgerReader, open_ledgers

PREFIX = "trainwatch-run-"
_LOCK = ".observed"  # held by the process that observes the run


@contextmanager
def ledger_directory(base: Path | None = None) -> Iterator[Path]:
    """Makes a directory and removes it at the end; a live training process keeps its mapped file.

    Steps must never wait for a disk: a page of a mapped file may be locked while it is written back. So the
    directory is in /dev/shm if possible, otherwise in the temporary directory. Also removes directories of
    observers that were killed.
    """
    base = base or _memory_or_temporary()
    for directory in base.glob(f"{PREFIX}*"):
        _remove_if_dead(directory)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    unlocked = directory / f"{_LOCK}.new"  # a lock with its name is held, so no other run takes us for dead
    lock = os.open(unlocked, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unlocked.rename(directory / _LOCK)
        yield directory
    finally:
        os.close(lock)
        shutil.rmtree(directory, ignore_errors=True)


def _memory_or_temporary() -> Path:
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def _remove_if_dead(directory: Path) -> None:
    """Removes the directory if its observer and its training processes are dead."""
    try:
        if directory.lstat().st_uid != os.geteuid():  # another user could fill it with links
            return
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # not complete yet
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not any(_is_alive(path) for path in open_ledgers(directory)):
            shutil.rmtree(directory, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


def _is_alive(ledger: Path) -> bool:
    try:
        with LedgerReader(ledger) as reader:
            return reader.alive()
    except (LedgerError, OSError):
        return False
