"""Removes finished recordings in `trainwatch-runs/`, oldest first, if the user set a limit.

Only what Trainwatch wrote is removed. A recording that is still written, and every other file, stays.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trainwatch.errors import UserError
from trainwatch.runs.recording.damage import DamageError
from trainwatch.runs.recording.files import RUN_FILE, RUNS, RunFile
from trainwatch.runs.recording.lines import NAME as LINES
from trainwatch.runs.recording.schema import TABLES

REPORTS = ("report.html", "report.json", "report.md", "profiler-reports/*.json")
PIECE = re.compile(rf"\.?({'|'.join(TABLES)})-.*|\.lock|\.?{re.escape(LINES)}.*")
ABANDONED_SECONDS = 86400.0  # after its last change, a recording whose run was killed counts as finished


def remove_old_recordings(
    root: Path, now: float, max_age: float | None, max_size: int | None
) -> Iterator[str]:
    """Removes finished recordings above the limits. Yields a line per recording that is gone."""
    if max_age is None and max_size is None:
        return
    recordings = sorted(_recordings(root), key=lambda each: each.end)
    size = sum(each.size for each in recordings)
    for each in recordings:
        if max_age is not None and now - each.end > max_age:
            reason = "--recording.max-age"
        elif max_size is not None and size > max_size:
            reason = "--recording.max-size"
        else:
            continue
        with _finished(each, now) as finished:
            if finished and each.remove():
                size -= each.size
                yield f"removed {each.directory}, because of {reason}"


def remove_unused(directory: Path) -> None:
    """Removes the recording of a command that never started, and `trainwatch-runs/` if it is empty then."""
    _Recording(directory, 0.0, True, (*_files(directory), directory / RUN_FILE), 0).remove()
    with suppress(OSError):  # other runs, or another directory
        RUNS.rmdir()


@dataclass(frozen=True)
class _Recording:
    """A recording and its files. Times are seconds since the epoch."""

    directory: Path
    end: float  # of the run, or the last change if its end is not known
    ended: bool
    files: tuple[Path, ...]  # run.json last: what was removed by half is a recording still
    size: int  # bytes

    def remove(self) -> bool:
        """Returns whether the recording is gone. Leaves files that are not its own, and their directories."""
        try:
            for file in self.files:
                file.unlink(missing_ok=True)
        except OSError:  # somebody else's
            return False
        for directory in (*{file.parent for file in self.files} - {self.directory}, self.directory):
            with suppress(OSError):  # not empty
                directory.rmdir()
        return True


def _recordings(root: Path) -> Iterator[_Recording]:
    for run_file in sorted(root.glob(f"*/{RUN_FILE}")):
        directory = run_file.parent
        if directory.is_symlink():
            continue
        with suppress(OSError, UserError, DamageError):  # not readable: left alone
            run, _ = RunFile.read(directory)
            files = [*_files(directory), run_file]
            states = [file.lstat() for file in files]
            changed = max(state.st_mtime for state in states)
            end = run.end if run else None
            size = sum(state.st_size for state in states)
            yield _Recording(directory, changed if end is None else end, end is not None, tuple(files), size)


def _files(directory: Path) -> Iterator[Path]:
    for pattern in REPORTS:
        yield from directory.glob(pattern)
    for node in directory.iterdir():
        if node.is_dir() and not node.is_symlink():
            yield from (file for file in node.iterdir() if PIECE.fullmatch(file.name))


@contextmanager
def _finished(recording: _Recording, now: float) -> Iterator[bool]:
    """Yields whether no process writes the recording; none can begin to until the end of the block."""
    held = [recording.directory, *(file for file in recording.files if file.name == ".lock")]
    with ExitStack() as opened:
        free = recording.ended or now - recording.end > ABANDONED_SECONDS
        for path in held:
            free = free and _lock(path, opened)
        yield free


def _lock(path: Path, opened: ExitStack) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        opened.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
