"""The profilers of JAX and TensorFlow for the windows of training/windows.py.

Both write a folder for TensorBoard. The times in a trace count from the start of the profile. So a window
begins with an event whose name says when that was (`ANCHOR`).

The script's own profiler goes first: while it runs, no window begins. An open window ends before it starts.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from contextlib import suppress
from socket import gethostname
from time import perf_counter, sleep, time_ns

from stepscope.common.shared_files import open_file
from stepscope.training.frameworks.around import around
from stepscope.training.session import session
from stepscope.training.window_files import ANCHOR, TRACE
from stepscope.training.window_plans import MEMORY, OPERATORS, SHAPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO, Any

_CHUNK = 1 << 20  # bytes of a trace that are copied at once
_LONGEST_WAIT = 1.0  # seconds: what other ranks are late for may never end while this one waits
_LOOK_EVERY = 0.0002  # seconds
_LONGEST = 1000  # bytes of the event with the anchor, at most
_ANCHOR = ANCHOR.encode()
_MOMENT = re.compile(rb'"ts":([\d.]+)[^{}]*"name":"%s(\d+)"' % _ANCHOR)


class _XlaProfiler:
    """The profiler of a window. A subclass per framework names its functions."""

    ending = TRACE
    framework = ""

    def __init__(self) -> None:
        self._folder = ""
        self._began = 0  # nanoseconds since the epoch
        self._start: Callable[..., None] | None = None  # the functions of the framework, without hooks
        self._stop: Callable[..., None] | None = None

    # -- what differs ----------------------------------------------------------------------------------

    _is_active: Callable[[], bool]  # whether the script's own profiler records
    _begin: Callable[[str], None]  # into a folder; raises any exception, after which the script can use it
    _end: Callable[[], None]  # writes into the folder; raises as `_begin`
    _annotation: Callable[[str], Any]  # the context manager of an event with this name

    # -- windows ---------------------------------------------------------------------------------------

    def use(self) -> None:
        """Makes it the profiler of this process: its framework makes the steps."""
        session.profiler = self

    def _watch(self, owners: list[Any], start: str, stop: str) -> None:
        """Makes the profiler available, and ends the open window before the script calls these functions."""
        self._start, self._stop = getattr(owners[0], start, None), getattr(owners[0], stop, None)
        for owner in owners:
            for name in (start, stop):
                around(owner, name, _by_the_script)
        if session.profiler is None:
            self.use()

    def why_not(self) -> str:
        if self._start is None or self._stop is None:
            return f"this version of {self.framework} has no profiler that is known"
        return f"the script's own profiler of {self.framework} is active" if self._is_active() else ""

    def start(self, kind: str = OPERATORS) -> None:
        """Raises ValueError for a window of memory or shapes, and what the framework raises."""
        if kind in (MEMORY, SHAPES):
            what = "what operators allocate" if kind == MEMORY else "the shapes of their inputs"
            raise ValueError(f"{self.framework}'s profiler does not say {what}")
        from secrets import token_hex  # few processes have windows
        from tempfile import gettempdir

        self._folder = os.path.join(gettempdir(), f"stepscope-{token_hex(16)}")
        self.wait()
        self._began = time_ns()
        self._begin(self._folder)
        with suppress(Exception), self._annotation(f"{ANCHOR}{time_ns()}"):
            pass

    def wait(self) -> None:
        """Waits until all arrays of the steps are computed, so that the window has whole steps."""

    def stop(self) -> None:
        with suppress(OSError):  # which the framework will raise, too
            os.mkdir(self._folder, 0o700)  # not before, so a process that is killed leaves none
        try:
            self._end()
        except BaseException:
            self.forget()
            raise

    def forget(self) -> None:
        from shutil import rmtree

        rmtree(self._folder, ignore_errors=True)

    def write(self, path: str) -> list[dict[str, Any]]:
        """Writes the trace, with its host and when it began."""
        try:
            with os.fdopen(open_file(path, {os.geteuid()}, os.O_WRONLY), "wb") as text:
                _copy(self._text(), text, self._began)
            return []
        finally:
            self.forget()

    def _text(self) -> Iterator[bytes]:
        """Yields the trace."""
        found = list(_files(self._folder, ".trace.json.gz"))
        if not found:
            raise ValueError(f"this version of {self.framework} writes no trace that is known")
        with gzip.open(found[0]) as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def knows_rank(self) -> bool:
        return False


class JaxProfiler(_XlaProfiler):
    """The only instance is `jax_profiler`."""

    framework = "JAX"

    def install(self) -> None:
        owners = [sys.modules.get("jax.profiler"), sys.modules.get("jax._src.profiler")]
        self._watch(owners, "start_trace", "stop_trace")

    def wait(self) -> None:
        until = perf_counter() + _LONGEST_WAIT
        for array in getattr(sys.modules["jax"], "live_arrays", list)():
            with suppress(Exception):  # another function has got its memory
                while not array.is_ready() and perf_counter() < until:
                    sleep(_LOOK_EVERY)

    def _is_active(self) -> bool:
        return getattr(self._state(), "profile_session", None) is not None

    def _state(self) -> Any:
        return getattr(sys.modules.get("jax._src.profiler"), "_profile_state", None)

    def _begin(self, folder: str) -> None:
        assert self._start is not None
        options_of = getattr(sys.modules["jax.profiler"], "ProfileOptions", None)
        if options_of is None:
            self._start(folder)
            return
        options = options_of()
        options.python_tracer_level = 0  # each call of a Python function would be an event
        self._start(folder, profiler_options=options)

    def _end(self) -> None:
        assert self._stop is not None
        try:
            self._stop()
        except BaseException:
            if self._is_active():
                self._state().reset()
            raise

    def _annotation(self, name: str) -> Any:
        return sys.modules["jax.profiler"].TraceAnnotation(name)


class TensorFlowProfiler(_XlaProfiler):
    """The only instance is `tensorflow_profiler`."""

    framework = "TensorFlow"

    def install(self) -> None:
        names = [name for name in sys.modules if name.startswith("tensorflow.")]
        public = [sys.modules[name] for name in names if name.endswith(".profiler.experimental")]
        self._watch([self._module(), *public], "start", "stop")

    def _module(self) -> Any:
        return sys.modules.get("tensorflow.python.profiler.profiler_v2")

    def _is_active(self) -> bool:
        return getattr(self._module(), "_profiler", None) is not None

    def _begin(self, folder: str) -> None:
        assert self._start is not None
        assert self._stop is not None
        try:
            self._start(folder)
        except BaseException:
            if self._is_active():
                self._stop(save=False)
            raise

    def _end(self) -> None:
        assert self._stop is not None
        self._stop()

    def _annotation(self, name: str) -> Any:
        return sys.modules["tensorflow"].profiler.experimental.Trace(name)

    def _text(self) -> Iterator[bytes]:
        """Yields the trace. Some versions write another format only, and convert it for TensorBoard."""
        planes = list(_files(self._folder, ".xplane.pb"))
        try:
            from tensorflow.python.profiler.internal import _pywrap_profiler_plugin as plugin
            from tensorflow.tsl.profiler.protobuf.trace_events_pb2 import Trace
        except ImportError:
            planes = []
        if planes and not any(_files(self._folder, ".trace.json.gz")):
            return _json_of(Trace.FromString(plugin.xspace_to_tools_data(planes, "trace_viewer")[0]))
        return super()._text()


def _by_the_script(*_: object, **__: object) -> None:
    if session.windows is not None:
        session.windows.by_the_script()


def _files(folder: str, ending: str) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        yield from (os.path.join(place, name) for name in names if name.endswith(ending))


def _json_of(trace: Any) -> Iterator[bytes]:
    """Yields a trace of TensorFlow's TensorBoard as JSON, as JAX writes it."""
    yield b'{"displayTimeUnit": "ns", "traceEvents": [\n'
    for plane in trace.devices.values():
        about = {"ph": "M", "pid": plane.device_id}
        yield _row({**about, "name": "process_name", "args": {"name": plane.name}})
        for line in plane.resources.values():
            thread = {"tid": line.resource_id, "name": "thread_name", "args": {"name": line.name}}
            yield _row({**about, **thread})
    for event in trace.trace_events:
        about = {"ph": "X", "pid": event.device_id, "tid": event.resource_id}
        times = {"ts": event.timestamp_ps / 1e6, "dur": event.duration_ps / 1e6}
        yield _row({**about, **times, "name": event.name, "args": dict(event.args)})
    yield b"{}]}"


def _row(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b",\n"


def _copy(chunks: Iterator[bytes], target: IO[bytes], began: int) -> None:
    """Copies a trace, with the host and the time of its start; `began`: about when that was.

    The time is known once all of it is copied: JSON allows spaces before a number.
    """
    target.write(_head(began))
    text = b""
    for chunk in chunks:
        target.write(chunk if text else chunk.removeprefix(b"{"))
        text = text[-_LONGEST:] + chunk
        if _ANCHOR in text and (moment := _MOMENT.search(text, max(0, text.index(_ANCHOR) - _LONGEST))):
            began = int(moment[2]) - round(float(moment[1]) * 1000)
    target.seek(0)
    target.write(_head(began))


def _head(began: int) -> bytes:
    return f'{{"host_name": {json.dumps(gethostname())}, "baseTimeNanoseconds": {began:20d}, '.encode()


jax_profiler, tensorflow_profiler = JaxProfiler(), TensorFlowProfiler()
