"""The other threads of this process, and the tools that slow it, such as a tracer, a profiler or a debugger.

Threads have their CPU time, by what each of them was started to run.

A trace or profile function is of one thread. So the one that makes the steps is asked: before the first of
them, and after a step that follows each look of the line sampler. Some are on within steps only: so it is
asked in the next pass of a module, too. All else is of the whole process.
"""

from __future__ import annotations

import os
import sys
from types import FunctionType, MethodType

from stepscope.training.proc_files import read, thread_times

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from stepscope.training.main_stack import Frame

MOST = 32  # threads of one look, the oldest ones
LEAST_SECONDS = 0.01  # between two looks: a thread that ran less is not named
# Settings for debugging: the host waits for each kernel, or ranks compare each collective before it begins.
_FOR_DEBUGGING = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
}

noted: list[Frame | str] = []  # what was on when the thread was asked last
of_window: object = None  # the profile function of the latest profile window
ask_in_pass: Callable[[], object] = bool  # lets hooks of modules call `note_more` in the next pass


def note() -> None:
    """Asks the calling thread, between two steps, for its trace and profile functions."""
    noted.clear()
    note_more()
    ask_in_pass()


def note_more() -> None:
    """Asks the calling thread for those that were not noted between two steps."""
    on = [tool for tool in (sys.gettrace(), sys.getprofile()) if tool is not None and tool is not of_window]
    # "<class 'cProfile.Profile'>" for what is written in C, without asking the object.
    names = [frame_of(tool) or type.__repr__(type(tool))[8:-2] for tool in on]
    noted.extend(name for name in names if name not in noted)


def tools() -> Iterator[Frame | str]:
    """Yields what is on now: the function that Python calls, or a name."""
    import _tracemalloc  # of CPython alone, as the sampler that asks

    yield from noted
    if _tracemalloc.is_tracing():
        yield "tracemalloc"
    monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
    if monitoring is not None and (name := monitoring.get_tool(monitoring.PROFILER_ID)):
        yield str(name)
    for name, value in _FOR_DEBUGGING.items():
        if os.environ.get(name, "").upper() == value:
            yield f"{name}={value}"
    tracer = read("self/status").partition(b"TracerPid:\t")[2].partition(b"\n")[0].decode()
    if tracer not in ("", "0"):
        yield read(f"{tracer}/comm").decode("utf-8", "replace").strip() or "another process"


class OtherThreads:
    """Knows those that `threading` started, but the one that is sampled. It runs no code of theirs."""

    def __init__(self) -> None:
        self._ran: dict[int, float] = {}  # seconds with a core, by the kernel's number of the thread

    def ran(self, sampled: int) -> Iterator[tuple[Frame, float]]:
        """Yields what ran since the last call: the function that a thread runs, and its seconds with a core.

        The first call yields nothing.
        """
        before, self._ran = self._ran, {}
        threads = getattr(sys.modules.get("threading"), "_active", {})
        for thread in list(threads.values())[: MOST + 1]:
            known = getattr(thread, "__dict__", {})
            number, frame = known.get("_native_id"), _started(thread, known)
            if number in (None, os.getpid(), sampled) or frame is None:
                continue
            seconds = self._ran[number] = thread_times(number)[0]
            if seconds - before.get(number, seconds) > LEAST_SECONDS:
                yield frame, seconds - before[number]


def _started(thread: object, known: dict[str, Any]) -> Frame | None:
    """Returns the function that a thread runs, at its first line; None for one without Python code."""
    target: Any = known.get("_target")
    while type(target).__name__ == "partial" and type(target).__module__ == "functools":
        target = target.func
    if target is None:  # a subclass with its own method
        target = next((vars(each)["run"] for each in type(thread).__mro__ if "run" in vars(each)), None)
    return frame_of(target)


def frame_of(function: Any) -> Frame | None:
    """Returns a function at its first line; None for what is no function of Python."""
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is not FunctionType:
        return None
    code = function.__code__
    return code.co_filename, code.co_firstlineno, getattr(code, "co_qualname", code.co_name)
