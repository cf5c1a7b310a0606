"""The directory of one recording: made for this run, and locked against others while it records."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.common.shared_files import try_hold
from stepscope.common.users import user_name
from stepscope.runs.recording.files import IGNORED, RUNS, holds_recording, new_directory, open_lock


@contextmanager
def recording_directory(given: Path | None, name: str) -> Iterator[Path]:
    """Makes the directory and yields its absolute path. Raises UserError if it cannot be used safely."""
    shown = given or RUNS
    try:
        directory = _given(given) if given is not None else _new(name)
        with tempfile.TemporaryFile(dir=directory):
            pass
        _refuse_shared(directory)
        lock = open_lock(directory)
    except OSError as error:
        raise UserError(
            f"cannot write to {shown}: {error.strerror}; choose another directory with --out"
        ) from error
    try:
        _claim(lock, directory)
        yield directory
    finally:
        os.close(lock)


def _refuse_shared(directory: Path) -> None:
    if directory.stat().st_mode & stat.S_IWOTH:  # others could replace what is written by links
        raise UserError(f"every user can write to {directory}: use a directory inside, --out {directory}/RUN")


def _claim(lock: int, directory: Path) -> None:
    with suppress(OSError):  # a file system without locks
        if not try_hold(lock):
            raise UserError(f"another run records in {directory}: choose another directory with --out")
    if holds_recording(directory):
        raise UserError(f"{directory} already has a recording: choose another directory with --out")


def _given(directory: Path) -> Path:
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is not a directory: choose another with --out")
    _make(directory.absolute())
    return directory.absolute()


def _new(name: str) -> Path:
    """Makes a directory below stepscope-runs. Runs that start in the same second get different ones."""
    is_new = not RUNS.exists()
    _make(RUNS.absolute(), 0o775)
    if is_new:
        with suppress(OSError):
            ignored = os.open(RUNS / IGNORED, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(ignored, "w") as file:
                file.write("*\n")
    found = RUNS.lstat()
    planted = stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_IWOTH
    if planted and found.st_uid not in (0, os.geteuid()):
        raise UserError(
            f"{RUNS} was made by user {user_name(found.st_uid)} for every user: choose another with --out"
        )
    if RUNS.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        raise UserError(f"every user can rename what is in {RUNS}: run `chmod o-w {RUNS}`, or add --out")
    while True:
        directory = new_directory(name)
        try:
            directory.mkdir(0o755)
        except FileExistsError:  # another run was faster
            continue
        return directory


def _make(directory: Path, mode: int = 0o755) -> None:
    """Makes the directory and its missing parents, never writable by every user, whatever the umask."""
    missing = list(takewhile(lambda path: not path.exists(), [directory, *directory.parents]))
    for path in reversed(missing):
        path.mkdir(mode, exist_ok=True)
