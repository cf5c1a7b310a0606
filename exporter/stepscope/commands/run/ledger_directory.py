"""The directory for the ledgers of one observed run, in memory if possible."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepscope.common.shared_files import create_file, entries, move, open_file, remove_tree, try_hold
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.training.ledger_files import SHARED_MEMORY

PREFIX = "stepscope-run-"
_LOCK = ".observed"  # held by the process that observes the run
_LOCKED_WITHIN = 3600.0  # seconds: by then there is a lock, or its process was killed before it made one


@contextmanager
def ledger_directory(base: Path | None = None) -> Iterator[Path]:
    """Makes a directory and removes it at the end; a live training process keeps its mapped file.

    Steps must never wait for a disk: a page of a mapped file may be locked while it is written back. So the
    directory is in /dev/shm if possible, otherwise in the temporary directory. Also removes directories of
    observers that were killed.
    """
    base = base or memory_or_temporary()
    for entry in entries(base):
        if entry.name.startswith(PREFIX):
            _remove_if_dead(base / entry.name)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    unlocked = directory / f"{_LOCK}.new"  # a lock with its name is held, so no other run takes us for dead
    lock = create_file(unlocked)
    try:
        try_hold(lock)
        move(unlocked, directory / _LOCK)
        yield directory
    finally:
        os.close(lock)
        remove_tree(directory)


def memory_or_temporary() -> Path:
    """Returns /dev/shm if this user can write there, otherwise the temporary directory."""
    return Path(SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else tempfile.gettempdir())


def _remove_if_dead(directory: Path) -> None:
    """Removes the directory if its observer and its training processes are dead."""
    with suppress(OSError):
        found = directory.lstat()
        if found.st_uid != os.geteuid():  # another user could fill it with links
            return
        try:
            lock = open_file(directory / _LOCK, {os.geteuid()}, os.O_RDWR)
        except FileNotFoundError:  # not complete yet, or half removed
            if time.time() - found.st_mtime < _LOCKED_WITHIN:
                return
            lock = create_file(directory / _LOCK)
        try:
            if try_hold(lock) and not any(_is_alive(path) for path in open_ledgers(directory)):
                remove_tree(directory)
        finally:
            os.close(lock)


def _is_alive(ledger: Path) -> bool:
    try:
        with LedgerReader(ledger) as reader:
            return reader.alive()
    except (LedgerError, OSError):
        return False
