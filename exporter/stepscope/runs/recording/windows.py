"""The profile windows of a recording: their lists, which the training processes write, and their traces."""

import gzip
import json
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from stepscope.common.errors import UserError
from stepscope.common.shared_files import entries, read_file
from stepscope.runs.malformed import MALFORMED, finite, naming
from stepscope.runs.model import PYTHON as OF_PYTHON
from stepscope.runs.model import PYTHON_TIMES, FunctionTime, ProfileWindow, PythonWindow, StackTime
from stepscope.training.window_files import ENDINGS, FORMAT, IN_RECORDING, LIST, PYTHON, TRACE

MOST_BYTES, MOST_FILES = 1 << 20, 10_000
MOST_TEXT = 16 << 20  # bytes of a list of functions
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


def read_python_windows(directory: Path) -> Iterator[PythonWindow | UserError]:
    """Yields what windows of Python functions recorded, or why one cannot be read."""
    for window in read_windows(directory):
        if window.state == "written" and window.trace.endswith(PYTHON):
            try:
                yield _functions(window, directory / window.trace)
            except UserError as error:
                yield error


def _functions(window: ProfileWindow, path: Path) -> PythonWindow:
    """Raises UserError."""
    with naming(path, "a list of Python functions", "record the window again"):
        try:
            with gzip.GzipFile(fileobj=BytesIO(read_file(path, MOST_TEXT))) as file:
                values = json.loads(file.read(MOST_TEXT))
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path}: cannot be read ({error})") from error
        device = PYTHON_TIMES[values.get("kind", OF_PYTHON)]
        place = (window.node, window.rank, device)
        functions = tuple(_function(place, *row) for row in values["functions"])
        assert window.last is not None
        return PythonWindow(
            window.node,
            window.rank,
            window.first,
            window.start,
            window.last - window.first + 1,
            window.step_seconds,
            functions,
            device,
            tuple(_stack(*row) for row in values.get("stacks", [])),
        )


def _function(
    place: tuple[str, int, str], name: Any, calls: Any, total: Any, own: Any, primitive: Any = None
) -> FunctionTime:
    """Raises MALFORMED."""
    numbers = int(calls), finite(total), finite(own)
    primitive = None if primitive is None else int(primitive)
    if not str(name).isprintable() or min(*numbers, primitive or 0) < 0:
        raise ValueError("a function that cannot be")
    return FunctionTime(*place, str(name), *numbers, primitive_calls=primitive)


def _stack(seconds: Any, *functions: Any) -> StackTime:
    """Raises MALFORMED."""
    names = tuple(map(str, functions))
    if not "".join(names).isprintable() or finite(seconds) < 0:
        raise ValueError("a stack that cannot be")
    return StackTime("train", "", names, finite(seconds))


def _windows(values: dict[str, Any], folder: Path) -> Iterator[ProfileWindow]:
    """Raises MALFORMED."""
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']!r}")
    for each in values["windows"]:
        state, trace = str(each["state"]), str(each["trace"])
        if state not in STATES or not (trace.isprintable() and str(each["reason"]).isprintable()):
            raise ValueError(f"a window in the state {state!r}")
        last = None if each["last"] is None else int(each["last"])
        if state == "written" and (last is None or last < int(each["first"])):
            raise ValueError("a written window of no step")
        if "/" in trace or (trace and not trace.endswith(ENDINGS)):
            raise ValueError(f"a trace {trace!r}")
        yield ProfileWindow(
            node=str(values["node"]),
            rank=int(values["rank"]),
            pid=int(values["pid"]),
            first=int(each["first"]),
            last=last,
            start=finite(each["start"]),
            pause_seconds=max(0.0, finite(each["pause_seconds"])),
            step_seconds=max(0.0, finite(each.get("step_seconds", 0.0))),
            state="lost" if state == "written" and not (folder / trace).is_file() else state,
            reason=str(each["reason"]),
            trace=f"{IN_RECORDING}/{trace}" if trace else "",
        )
