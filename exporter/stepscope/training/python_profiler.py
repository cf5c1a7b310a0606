"""Records the Python functions of a profile window, for scripts with and without a framework.

Up to Python 3.11, cProfile counts in C. From 3.12 on, cProfile takes the only place for profilers of
sys.monitoring, and a script that starts its own one would fail: so a function of `sys.setprofile` counts.
Both see the thread that makes the steps, and neither runs next to a profiler of the script. Neither knows
which functions called which in turn, so another thread samples the whole stacks of the main thread.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from time import clock_gettime_ns, perf_counter, perf_counter_ns, pthread_getcpuclockid, thread_time

from stepscope.common.shared_files import open_file
from stepscope.training import tools
from stepscope.training.line_layout import SEPARATOR
from stepscope.training.window_files import PYTHON
from stepscope.training.window_lines import WindowLines, sample_lines
from stepscope.training.window_plans import OFF_CPU, ON_CPU
from stepscope.training.window_plans import PYTHON as WALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType
    from typing import Any, Protocol

    class Calls(Protocol):
        """Counts calls. The thread's profiler is `hook` while it does."""

        hook: Any

        def start(self) -> None: ...

        def stop(self) -> None: ...

        def counted(self) -> Iterator[tuple[Any, int, float, float, int]]:
            """Yields code or the name of a built-in function, calls, total and own seconds, primitive calls.

            A primitive call is not made while another one of the same function is open.
            """


MOST_FUNCTIONS, MOST_STACKS = 1000, 300  # with the most time of their own
ASK_EVERY = 1_000_000  # calls, which take a second or more, before it is asked whether training pauses
ANOTHER = "another Python profiler is active"
TAKEN = "the script used its own Python profiler in the window"
_OURS = os.path.dirname(__file__) + os.sep
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


CLOCKS: dict[str, Callable[[], float]] = {  # of the thread that makes the steps
    WALL: perf_counter,
    ON_CPU: thread_time,
    OFF_CPU: lambda: perf_counter() - thread_time(),
}


def _clock_for_others(kind: str) -> Callable[[], int]:
    """Returns the same clock of this thread, in nanoseconds, for another thread."""
    if kind == WALL:
        return perf_counter_ns
    of_this = pthread_getcpuclockid(get_ident())
    if kind == ON_CPU:
        return lambda: clock_gettime_ns(of_this)
    return lambda: perf_counter_ns() - clock_gettime_ns(of_this)


_lost: list[Calls] = []  # kept: the end of a cProfile would switch off the script's own one


class PythonProfiler:
    """The profiler of a window with `python`. The only instance is `python_profiler`."""

    ending = PYTHON

    def __init__(self) -> None:
        self.makes: Callable[[Callable[[], float]], Calls] = _InC if sys.version_info < (3, 12) else _InPython
        self._calls: Calls | None = None
        self._stacks: WindowLines | None = None
        self._began = 0  # nanoseconds of their clock
        self._kind = WALL
        self._watches_forks = False
        self.end_if_idle: Callable[[], None] = lambda: None  # of the windows

    def why_not(self) -> str:
        monitoring = getattr(sys, "monitoring", None)
        taken = monitoring is not None and monitoring.get_tool(monitoring.PROFILER_ID) is not None
        return ANOTHER if taken or sys.getprofile() is not None else ""

    def start(self, kind: str = WALL) -> None:
        if not self._watches_forks:
            self._watches_forks = True
            os.register_at_fork(after_in_child=self._forked)
        self._kind = kind
        clock = _clock_for_others(kind)
        self._began = clock()
        self._stacks = sample_lines(clock, whole=True)
        self._calls = self.makes(CLOCKS[kind])
        tools.of_window = self._calls.hook
        self._calls.start()

    def wait(self) -> None:
        pass  # functions return when they have ended

    def stop(self) -> None:
        """Raises ValueError if the script's own profiler has taken over."""
        calls = self._calls
        assert calls is not None
        taken = sys.getprofile() is not calls.hook
        try:
            if not taken:
                calls.stop()
        finally:
            if self._stacks is not None:
                self._stacks.stop()
        if taken:
            _lost.append(calls)
            self.forget()
            raise ValueError(TAKEN)

    def forget(self) -> None:
        self._calls = self._stacks = None

    def write(self, path: str) -> list[dict[str, Any]]:
        """Writes a list of functions: name, calls, total and own seconds, primitive calls.

        Then one of stacks: seconds by samples, and the functions, outermost first.
        """
        import json

        calls, stacks = self._calls, self._seconds_of_stacks()
        self.forget()
        assert calls is not None
        sums: dict[str, list[float]] = {}
        for called, *numbers in calls.counted():
            name = _name(called)
            if name:
                known = sums.setdefault(name, [0, 0.0, 0.0, 0])
                for at, value in enumerate(numbers):
                    known[at] += value
        most_first = sorted(sums.items(), key=lambda each: -each[1][2])[:MOST_FUNCTIONS]
        functions = [[name, *numbers] for name, numbers in most_first]
        text = json.dumps({"kind": self._kind, "functions": functions, "stacks": stacks})
        with os.fdopen(open_file(path, {os.geteuid()}, os.O_WRONLY), "w") as file:
            file.write(text)
        return []

    def knows_rank(self) -> bool:
        return True  # the list of windows says it

    def _seconds_of_stacks(self) -> list[list[Any]]:
        """Returns the stacks with most seconds. A sample has those since the one before."""
        sums, before = dict[str, int](), self._began
        for now, stack in self._stacks.samples if self._stacks is not None else ():
            sums[stack] = sums.get(stack, 0) + now - before
            before = now
        most_first = sorted(sums.items(), key=lambda each: -each[1])[:MOST_STACKS]
        return [[taken / 1e9, *stack.split(SEPARATOR)] for stack, taken in most_first if taken > 0]

    def _forked(self) -> None:
        """Ends the window in a process that was forked from it: it belongs to the parent."""
        calls = self._calls
        self.forget()
        if calls is not None and sys.getprofile() is calls.hook:
            calls.stop()


class _InC:
    """cProfile."""

    def __init__(self, clock: Callable[[], float]) -> None:
        from cProfile import Profile

        self.hook = Profile() if clock is perf_counter else Profile(clock)

    def start(self) -> None:
        self.hook.enable()

    def stop(self) -> None:
        self.hook.disable()

    def counted(self) -> Iterator[tuple[Any, int, float, float, int]]:
        for each in self.hook.getstats():
            primitive = each.callcount - each.reccallcount
            yield each.code, each.callcount, each.totaltime, each.inlinetime, primitive


class _InPython:
    """A function for `sys.setprofile`, which never raises."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._sums: dict[CodeType | tuple[str | None, str], list[Any]] = {}
        self.hook, self._close = _counting(self._sums, clock)

    def start(self) -> None:
        sys.setprofile(self.hook)

    def stop(self) -> None:
        sys.setprofile(None)
        self._close()

    def counted(self) -> Iterator[tuple[Any, int, float, float, int]]:
        for called, (calls, total, own, _, primitive) in self._sums.items():
            name = ".".join(filter(None, called)) if isinstance(called, tuple) else called
            yield name, calls, total, own, primitive


def _counting(
    sums: dict[CodeType | tuple[str | None, str], list[Any]], clock: Callable[[], float]
) -> tuple[Callable[[FrameType, str, Any], None], Callable[[], None]]:
    """Returns a function that counts a call or a return in `sums`, and one that ends all open calls.

    `sums` has, per function: calls, total and own seconds, how many of its calls are open, and
    how many were made while none was.
    """
    calls: list[list[Any]] = []  # that are open: the sums of each, its start, and the seconds of calls in it
    push, pop = calls.append, calls.pop
    made = 0

    def returned() -> None:
        known, start, inside = pop()
        seconds = clock() - start
        known[0] += 1
        known[2] += seconds - inside
        known[3] -= 1
        if not known[3]:  # otherwise the total of a recursion would count twice
            known[1] += seconds
            known[4] += 1
        if calls:
            calls[-1][2] += seconds

    def hook(frame: FrameType, event: str, function: Any) -> None:
        nonlocal made
        try:
            if event == "call":
                key: CodeType | tuple[str | None, str] = frame.f_code
            elif event == "c_call":
                key = getattr(function, "__module__", None), function.__qualname__
            else:
                if calls:
                    returned()
                return
            known = sums.get(key)
            if known is None:
                known = sums[key] = [0, 0.0, 0.0, 0, 0]
            known[3] += 1
            push([known, clock(), 0.0])
            made += 1
            if not made % ASK_EVERY:
                python_profiler.end_if_idle()
        except Exception:  # noqa: BLE001 - nothing may raise into training
            sys.setprofile(None)

    def close() -> None:
        while calls:
            returned()

    return hook, close


def _name(called: CodeType | str) -> str:
    """Returns "load, data.py:14", or the name of a built-in function; "" for Stepscope's own."""
    if isinstance(called, str):
        name = called.strip("<>").removeprefix("built-in method ").removeprefix("builtins.")
        return "" if "_lsprof" in name or name == "sys.setprofile" else name
    if called.co_filename.startswith(_OURS):
        return ""
    return f"{called.co_name}, {_place(called.co_filename)}:{called.co_firstlineno}"


def _place(file: str) -> str:
    """Returns a path relative to the working directory or to its package; elsewhere its last two parts."""
    here = os.getcwd().rstrip(os.sep) + os.sep
    if file.startswith(here) and not any(part in file for part in _PACKAGES):
        return file[len(here) :]
    for part in _PACKAGES:
        if part in file:
            return file.rpartition(part)[2]
    return os.sep.join(file.split(os.sep)[-2:])


python_profiler = PythonProfiler()
