"""The CPU time of the other Python threads of this process, by what each of them was started to run."""

from __future__ import annotations

import os
import sys
from types import FunctionType, MethodType

from stepscope.training.proc_files import thread_times

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from stepscope.training.main_stack import Frame

MOST = 32  # threads of one look, the oldest ones
LEAST_SECONDS = 0.01  # between two looks: a thread that ran less is not named


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
