"""The files of profile windows: a trace or a list of Python functions per window, and per process a list
of its windows.

They are in STEPSCOPE_PROFILE_DIR, which `stepscope run` sets to the folder `profiles` of its recording, and
otherwise in `stepscope-profiles/RUN` of the working directory. Each file appears whole.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from contextlib import suppress

from stepscope.common.shared_files import (
    Descriptor,
    create_file,
    entries,
    move,
    open_file,
    open_folder,
    remove,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

DIRECTORY, FOLDER, IN_RECORDING = "STEPSCOPE_PROFILE_DIR", "stepscope-profiles", "profiles"
TRACE, PYTHON = ".pt.trace.json.gz", ".python.json.gz"
ENDINGS = (TRACE, PYTHON)
MODULE = "nn_module"  # the category of a module's call in a trace
LINE = "python_line"  # the category of a moment in a trace: its name is the main thread's file:line
# The name of an event of JAX or TensorFlow, before its nanoseconds since the epoch.
ANCHOR = "stepscope began at "
LIST = ".windows.json"
MOST_TRACES, MOST_BYTES = 20, 512 << 20  # of a rank: the oldest go first
MOST_LISTED = 200  # windows of a process
FORMAT = 1
_HEAD, _CHUNK, _TAIL = 4 << 20, 1 << 20, 64 << 10
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')


def window_name(rank: int, first: int, last: int, pid: int, number: int) -> str:
    """Returns the name of a window's file, without its ending."""
    return f"rank-{rank}.steps-{first}-{last}.{pid}-{number}"


def traces_in(folder: int, rank: int, pid: int) -> list[tuple[int, int, str]]:
    """Returns first and last step and name of each trace of operators that this process wrote, in order.

    `folder` is a descriptor. Raises OSError.
    """
    wanted = re.compile(rf"rank-{rank}\.steps-(\d{{1,15}})-(\d{{1,15}})\.{pid}-\d+{re.escape(TRACE)}")
    found = [wanted.fullmatch(entry.name) for entry in entries(folder)]
    return sorted((int(match[1]), int(match[2]), match[0]) for match in found if match)


class WindowFolder:
    """The folder of the traces, which only this user can write to. Raises OSError."""

    def __init__(self, run: str) -> None:
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in run).lstrip(".")[:150] or "run"
        self.path = os.path.abspath(os.environ.get(DIRECTORY) or os.path.join(FOLDER, safe))
        os.makedirs(self.path, 0o755, exist_ok=True)
        self._fd = open_folder(self.path)
        self._ours = Descriptor(self._fd)
        status = os.fstat(self._fd)
        others = 0o002 if status.st_gid == os.getegid() else 0o022  # but the group of this process
        if status.st_uid != os.geteuid() or status.st_mode & others:
            os.close(self._fd)
            raise PermissionError(1, "others can write to it", self.path)

    def write_list(self, name: str, values: dict[str, Any]) -> None:
        """Replaces a list of windows. Raises OSError."""
        name, data = f"{name}{LIST}", json.dumps({"format": FORMAT, **values}, indent=1).encode()
        remove(_hidden(name), self._fd)
        with os.fdopen(create_file(_hidden(name), 0o644, os.O_WRONLY, self._fd), "wb") as file:
            file.write(data)
        move(_hidden(name), name, self._fd)

    def unfinished(self, name: str) -> str:
        """Returns the path of a new file for the profiler's text."""
        remove(_hidden(name), self._fd)
        os.close(create_file(_hidden(name), 0o600, folder=self._fd))
        return f"/proc/self/fd/{self._fd}/{_hidden(name)}"

    def finish(
        self, name: str, ending: str, marks: Sequence[dict[str, Any]], world: tuple[int, int] | None
    ) -> int:
        """Makes a trace of the profiler's text, with these events. Returns its bytes. Raises OSError.

        `world`: rank and world size, if the profiler does not know them.
        """
        part = _hidden(f"{name}{ending}")
        try:
            remove(part, self._fd)
            text = open_file(_hidden(name), {os.geteuid()}, folder=self._fd)
            packed = create_file(part, 0o644, os.O_WRONLY, self._fd)
            with os.fdopen(text, "rb") as source, os.fdopen(packed, "wb") as target:
                with gzip.GzipFile("", "wb", 1, target, 0) as file:
                    end = os.pread(text, _TAIL, max(os.fstat(text).st_size - _TAIL, 0))
                    file.write(_with_marks(source.read(_HEAD), end, marks, world))
                    while chunk := source.read(_CHUNK):
                        file.write(chunk)
                target.flush()
                size = os.fstat(target.fileno()).st_size
            move(part, f"{name}{ending}", self._fd)
        finally:
            remove(part, self._fd)
            self.forget(name)
        return size

    def forget(self, name: str) -> None:
        """Removes the profiler's text, also what PyTorch leaves of it on a full disk, and still has open."""
        part = f"{_hidden(name)}.tmp"
        with suppress(OSError):
            left = open_file(part, {os.geteuid()}, os.O_WRONLY, folder=self._fd)
            with os.fdopen(left, "wb") as file:
                file.truncate(0)
        for each in (_hidden(name), part):
            remove(each, self._fd)

    def remove_oldest(self, prefix: str) -> list[str]:
        """Removes the oldest traces of a rank until they are few and small enough. Returns their names."""
        found = []
        for entry in entries(self._fd):
            if entry.name.startswith(prefix) and entry.name.endswith(ENDINGS):
                with suppress(OSError):
                    status = os.stat(entry.name, dir_fd=self._fd, follow_symlinks=False)
                    found.append((status.st_mtime_ns, entry.name, status.st_size))
        removed, total = [], sum(size for _, _, size in found)
        left = len(found)
        for _, name, size in sorted(found)[:-1]:  # the newest stays
            if left <= MOST_TRACES and total <= MOST_BYTES:
                break
            remove(name, self._fd)
            removed.append(name)
            left, total = left - 1, total - size
        return removed

    def close(self) -> None:
        self._ours.close()


def _hidden(name: str) -> str:
    return f".{name}.unfinished"


def _with_marks(
    head: bytes, end: bytes, marks: Sequence[dict[str, Any]], world: tuple[int, int] | None
) -> bytes:
    """Returns the beginning of a trace with the rank and the events, whose times are in nanoseconds.

    What its times count from is before its events, or at its end (PyTorch 2.4 to 2.6), or the epoch.
    """
    begin = _EVENTS.search(head)
    if begin is None:
        return head
    bases = _BASE.findall(head, 0, begin.start()) or _BASE.findall(end)
    origin = int(bases[-1]) if bases else 0
    events = [{**mark, "ts": (mark["ts"] - origin) / 1000} for mark in marks]
    for event in events:
        if "dur" in event:
            event["dur"] /= 1000
    rank = b""
    if world is not None:
        rank = b'"distributedInfo": {"rank": %d, "world_size": %d}, ' % world
    text = b"".join(json.dumps(event).encode() + b",\n" for event in events)
    before, after = head[: begin.start()], head[begin.end() :]
    return before + rank + begin[0] + b"\n" + text + after
