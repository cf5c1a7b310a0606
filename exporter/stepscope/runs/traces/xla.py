"""Turns profiles of JAX and TensorFlow into rows as the PyTorch profiler writes them.

The files are `plugins/profile/RUN/HOST.trace.json.gz`. XLA's xplane_to_trace_events.cc and
trace_events_to_json.cc (github.com/openxla/xla) write them. Processes are planes (`/host:CPU`,
`/device:GPU:0`, `/device:TPU:0`), threads are their lines. Events have no category, all arguments are texts.
Times count from the start of the profile. Streams are the lines of a GPU; its other lines repeat them.
A TPU has no streams but the line `XLA Ops`, whose control flow (`while`) contains what it runs.

In a profile window, rows of Stepscope are before them: the steps, and the lines of the main thread.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stepscope.runs.malformed import MALFORMED, finite
from stepscope.runs.traces.rows import DEVICE, HOST, Mark, step_rows
from stepscope.training.window_files import ANCHOR

MOST_EVENTS = 1_000_000  # that XLA writes; it leaves out all others
_DEVICE = re.compile(r"/device:(\w+):(\d+)")
_HOST = "/host:CPU"
STEPS, OPERATIONS = "Steps", "XLA Ops"
# Lines of a device that repeat other lines.
_REPEATED = {
    "XLA Modules",
    "Framework Ops",
    "Framework Name Scope",
    "TensorFlow Ops",
    "TensorFlow Name Scope",
    "Launch Stats",
    "Source code",
    "Source Code",
}
_CONTROL_FLOW = re.compile(r"(?:while|conditional|call)[.\d]*")
_COPY = re.compile(
    r"mem(?:cpy|set)|(?:copy-(?:start|done)|infeed|outfeed|host (?:send|recv))\b", re.IGNORECASE
)
_COLLECTIVE = re.compile(r"(?:ragged-)?all-|reduce-scatter|collective-|(?:send|recv)(?:-done)?$")
_DRIVER = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*")
_FRAME = re.compile(r"\$(.+\.py):(\d+) (.+)")
_WAIT = re.compile(r"\(wait for |Await\b|Wait for |np\.asarray\(jax\.Array\)")  # for what others compute
_NOISE = ("ThreadpoolListener::", "end: ")  # moments without a duration


class AsPyTorch:
    """Yields rows of the PyTorch profiler unchanged, and turns those of XLA into its form.

    None is a damaged row.
    """

    def __init__(self) -> None:
        self._profile: _Profile | None = None

    def rows(self, rows: Iterator[Any]) -> Iterator[Any]:
        thread = None  # of the window's steps
        for row in rows:
            if row is None:
                yield row
            elif row.get("ph") == "M" and _plane(row).startswith(("/device:", "/host:")):
                self._profile = _Profile(thread)
                self._profile.names(row)
                yield from self._profile.translated(rows)
            else:
                if row.get("cat"):
                    thread = row.get("pid"), row.get("tid")
                yield row

    @property
    def found(self) -> bool:
        """Returns whether XLA wrote the rows."""
        return self._profile is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns clauses about the file: what it does not contain."""
        if self._profile is None or self._profile.events < MOST_EVENTS:
            return ()
        return ("has a million events, the most that XLA writes; the rest is missing: profile fewer steps",)


def host_of(path: Path) -> str | None:
    """Returns the host of a profile, which only its place says: plugins/profile/RUN/HOST.trace.json.gz."""
    in_layout = path.absolute().parts[-4:-2] == ("plugins", "profile")
    return path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".trace") if in_layout else None


def _plane(row: Any) -> str:
    """Returns the name of a process, from the row that gives it."""
    return str(_arguments(row).get("name", "")) if row.get("name") == "process_name" else ""


def _arguments(row: Any) -> dict[str, Any]:
    found = row.get("args")
    return found if isinstance(found, dict) else {}


class _Profile:
    """The planes and lines of a profile, and the steps in it, unless a window has marked them.

    `thread`: the process and the thread that made the steps of the window; None: there was no window.
    """

    def __init__(self, thread: tuple[Any, Any] | None) -> None:
        self.thread = thread
        self.threads: dict[Any, Any] = {}  # of the window's process, by XLA's own numbers
        self.planes: dict[Any, str] = {}
        self.lines: dict[tuple[Any, Any], str] = {}
        self.with_streams: set[Any] = set()  # planes
        self.events = 0
        self.marks: dict[str, list[Mark]] = {}  # by plane

    def names(self, row: Any) -> None:
        """Notes the name of a plane or a line."""
        name = str(_arguments(row).get("name", ""))
        if row.get("name") == "process_name":
            self.planes[row.get("pid")] = name
        elif row.get("name") == "thread_name":
            self.lines[row.get("pid"), row.get("tid")] = name
            if name.lower().startswith("stream"):
                self.with_streams.add(row.get("pid"))

    def translated(self, rows: Iterable[Any]) -> Iterator[Any]:
        for row in rows:
            try:
                if row.get("ph") == "M":
                    self.names(row)
                elif row.get("ph") == "X":
                    self.events += 1
                    yield from self._event(row)
            except MALFORMED:
                yield None
        if self.marks and self.thread is None:
            yield from self._steps()

    def _steps(self) -> Iterator[Any]:
        """Yields the steps: those of a TPU are exact, those of a GPU leave out the waits between them."""
        by_host = _HOST in self.marks and (self.with_streams or len(self.marks) == 1)
        plane = _HOST if by_host else min(self.marks.keys() - {_HOST})
        return step_rows(self.marks[plane], HOST if by_host else DEVICE)

    def _event(self, row: Any) -> Iterator[Any]:
        plane = self.planes.get(row.get("pid"), "")
        line = self.lines.get((row.get("pid"), row.get("tid")), "")
        name, arguments = str(row.get("name", "")), _arguments(row)
        device = _DEVICE.fullmatch(plane)
        if device is None and plane != _HOST:
            yield {**row, "cat": f"{plane or 'unnamed plane'}, {line}"}
        elif device is None:
            if "step_num" in arguments:
                self._mark(plane, row, arguments["step_num"])
            elif name.startswith(ANCHOR) and self.thread is not None:
                self.threads[row.get("tid")] = self.thread[1]
            elif not name.startswith(_NOISE):
                yield _on_host(self._numbered(row), name, arguments)
        elif line == STEPS:
            self._mark(plane, row, name)
        elif line.lower().startswith("stream") or (
            line == OPERATIONS and row.get("pid") not in self.with_streams
        ):
            yield from _on_device(row, name, arguments, device[1].lower(), int(device[2]))
        elif line not in _REPEATED and line != OPERATIONS:
            yield {**row, "cat": f"{plane}, {line}"}

    def _numbered(self, row: Any) -> Any:
        """Returns an event of the host with the numbers of its process and thread instead of XLA's own."""
        thread = row.get("tid")
        process = HOST if self.thread is None else self.thread[0]
        return {**row, "pid": process, "tid": self.threads.get(thread, thread)}

    def _mark(self, plane: str, row: Any, number: Any) -> None:
        start = finite(row["ts"])
        known = int(number) if re.fullmatch(r"\d{1,18}", str(number)) else None
        self.marks.setdefault(plane, []).append(Mark(start, start + float(row.get("dur") or 0), known))


def _on_host(row: Any, name: str, arguments: Any) -> Any:
    """Returns an event of the host."""
    category = "cpu_op"
    if name.startswith("$"):
        frame = _FRAME.fullmatch(name)
        name = f"{frame[1]}({frame[2]}): {frame[3]}" if frame is not None else name
        category = "python_function"
    elif "correlation_id" in arguments or _DRIVER.fullmatch(name):
        category = "cuda_driver"
    elif _WAIT.search(name):
        category = "cuda_event"
    told = {"correlation": arguments["correlation_id"]} if "correlation_id" in arguments else {}
    return {**row, "cat": category, "name": name, "args": told}


def _on_device(row: Any, name: str, arguments: Any, kind: str, index: int) -> Iterator[Any]:
    """Yields the event of a device, unless it is control flow, which contains the events that it runs."""
    about = str(arguments.get("hlo_category", ""))
    if _CONTROL_FLOW.fullmatch(about) or _CONTROL_FLOW.fullmatch(name):
        return
    if _COLLECTIVE.match(about) and not _COLLECTIVE.match(name):
        name = about  # a fusion that communicates
    details = any(key.lower() in ("memcpy_details", "memset_details") for key in arguments)
    copies = details or _COPY.match(name) or _COPY.match(about)
    told = {"device": index, "accelerator": kind}
    if "correlation_id" in arguments:
        told["correlation"] = arguments["correlation_id"]
    yield {**row, "cat": "gpu_memcpy" if copies else "kernel", "name": name, "args": told}
