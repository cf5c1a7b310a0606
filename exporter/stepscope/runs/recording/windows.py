"""The profile windows of a recording: their lists, which the training processes write, and their traces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.common.shared_files import entries, read_file
from stepscope.runs.malformed import MALFORMED, finite
from stepscope.runs.model import ProfileWindow
from stepscope.training.window_files import FORMAT, IN_RECORDING, LIST, TRACE

MOST_BYTES, MOST_FILES = 1 << 20, 10_000
STATES = ("open", "written", "failed", "skipped", "removed")


def read_windows(directory: Path) -> tuple[ProfileWindow, ...]:
    """Returns the windows of all ranks in the order in which they began. A damaged list is left out."""
    folder = directory / IN_RECORDING
    found: list[ProfileWindow] = []
    try:
        names = [entry.name for entry in entries(folder, MOST_FILES) if entry.name.endswith(LIST)]
    except OSError:
        return ()
    for name in sorted(names):
        try:
            found += _windows(json.loads(read_file(folder / name, MOST_BYTES)), folder)
        except (OSError, *MALFORMED):
            continue
    return tuple(sorted(found, key=lambda window: (window.start, window.rank)))


def holds_traces(directory: Path) -> bool:
    """Returns whether the recording has the trace of a window."""
    try:
        return any(entry.name.endswith(TRACE) for entry in entries(directory / IN_RECORDING, MOST_FILES))
    except OSError:
        return False


def _windows(values: dict[str, Any], folder: Path) -> Iterator[ProfileWindow]:
    """Raises MALFORMED."""
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']!r}")
    for each in values["windows"]:
        state, trace = str(each["state"]), str(each["trace"])
        if state not in STATES or not (trace.isprintable() and str(each["reason"]).isprintable()):
            raise ValueError(f"a window in the state {state!r}")
        if "/" in trace or (trace and not trace.endswith(TRACE)):
            raise ValueError(f"a trace {trace!r}")
        yield ProfileWindow(
            node=str(values["node"]),
            rank=int(values["rank"]),
            pid=int(values["pid"]),
            first=int(each["first"]),
            last=None if each["last"] is None else int(each["last"]),
            start=finite(each["start"]),
            pause_seconds=max(0.0, finite(each["pause_seconds"])),
            state="lost" if state == "written" and not (folder / trace).is_file() else state,
            reason=str(each["reason"]),
            trace=f"{IN_RECORDING}/{trace}" if trace else "",
        )
