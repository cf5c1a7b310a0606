"""Removes finished recordings in `stepscope-runs/`, oldest first, if the user set a limit.

Only what Stepscope wrote for this user is removed. A recording that is still written, and every other file,
stays.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.common.shared_files import entries, remove, try_hold
from stepscope.runs.malformed import DamageError
from stepscope.runs.recording.files import (
    IGNORED,
    LOCK,
    MOST_PIECES,
    RUN_FILE,
    RUNS,
    RunFile,
    folders,
    open_lock,
)
from stepscope.runs.recording.lines import NAME as LINES
from stepscope.runs.recording.schema import TABLES

REPORTS = re.compile(r"report\.(html|json|md)")
RULE_REPORTS = "profiler-reports"  # a folder of JSON files
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
    """Removes the recording of a command that never started, and `stepscope-runs/` if it is empty then."""
    _Recording(directory, 0.0, True, _files(directory), 0).remove()
    if RUNS.is_symlink() or not RUNS.is_dir():
        return
    if {entry.name for entry in entries(RUNS)} <= {IGNORED}:
        remove(RUNS / IGNORED)
        remove(RUNS)


@dataclass(frozen=True)
class _Recording:
    """A recording and its files. Times are seconds since the epoch."""

    directory: Path
    end: float  # of the run, or the last change if its end is not known
    ended: bool
    files: tuple[Path, ...]  # run.json, then its lock: what was removed by half is a recording still
    size: int  # bytes

    def remove(self) -> bool:
        """Returns whether the recording is gone. Leaves files that are not its own, and their directories."""
        if any(map(remove, self.files)):  # somebody else's
            return False
        for directory in (*{file.parent for file in self.files} - {self.directory}, self.directory):
            remove(directory)  # unless it is not empty
        return True


def _recordings(root: Path) -> Iterator[_Recording]:
    for directory in folders(root):
        with suppress(OSError, UserError, DamageError):  # not readable: left alone
            status = directory.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():  # others could change it
                continue
            run = RunFile.read(directory)
            if run is None:
                continue
            files = _files(directory)
            states = [file.lstat() for file in files if file.name != LOCK or os.path.lexists(file)]
            changed = max(state.st_mtime for state in states)
            size = sum(state.st_size for state in states)
            ended = run.end is not None
            yield _Recording(directory, changed if run.end is None else run.end, ended, files, size)


def _files(directory: Path) -> tuple[Path, ...]:
    found = [directory / each.name for each in entries(directory) if REPORTS.fullmatch(each.name)]
    for folder in folders(directory):
        if not folder.is_symlink():
            names = [entry.name for entry in entries(folder, MOST_PIECES)]
            if folder.name == RULE_REPORTS:
                names = [name for name in names if name.endswith(".json")]
            else:
                names = [name for name in names if PIECE.fullmatch(name)]
            found += [folder / name for name in names]
    return *found, directory / RUN_FILE, directory / LOCK


@contextmanager
def _finished(recording: _Recording, now: float) -> Iterator[bool]:
    """Yields whether no process writes the recording; none can begin to until the end of the block."""
    held = [file.parent for file in recording.files if file.name == LOCK]
    with ExitStack() as opened:
        free = recording.ended or now - recording.end > ABANDONED_SECONDS
        for folder in held:
            free = free and _lock(folder, opened)
        yield free


def _lock(folder: Path, opened: ExitStack) -> bool:
    try:
        descriptor = open_lock(folder)
        opened.callback(os.close, descriptor)
        return try_hold(descriptor)
    except OSError:
        return False
