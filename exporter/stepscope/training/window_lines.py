"""Samples the main thread during a profile window: its line for operators, its stack for Python functions.

PyTorch's own `with_stack` names the function only, not the line. Steps took 1.3 to 1.6 times as long with it,
and it is known to crash or hang with some versions of Python. A sample takes 0.1 ms of another thread.

A thread reads the stack as line_sampler.py does, but every 2 ms, and later less often. It ends with the
window, and before a fork. Nothing here raises into the program: without samples, operators have no line.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, get_native_id, start_new_thread
from time import perf_counter, time_ns

from stepscope.training.line_names import LineNames
from stepscope.training.main_stack import NotSafeError, is_main_interpreter, stack_of_this_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.training.main_stack import Stack

VARIABLE = "STEPSCOPE_LINES"  # as in stepscope_startup.py: "0" switches samples off
EVERY = 0.002  # seconds between two samples of a short window
MOST_PER_LENGTH = 1000  # of a long one, a sample is due after its length so far over this: 4,400 in 60 s
ENDED_WITHIN = 0.1  # seconds for the thread to end
_sampling: list[WindowLines] = []  # at most one
_watches_forks = False


class WindowLines:
    """The samples of one window: nanoseconds of a clock, and `file:line` or the whole stack."""

    def __init__(self, open_stack: Callable[[], Stack], clock: Callable[[], int], whole: bool) -> None:
        self.samples: list[tuple[int, str]] = []
        self._open_stack, self._clock, names = open_stack, clock, LineNames()
        self._describe = names.whole if whole else lambda frames: names.of(frames).partition("\n")[0]
        self._stop, self._ended = allocate_lock(), allocate_lock()
        self._stop.acquire()
        self._ended.acquire()
        _sampling[:] = [self]
        start_new_thread(self._run, ())

    def stop(self) -> list[tuple[int, str]]:
        """Ends the thread. Returns the samples, the first ones first."""
        if self in _sampling:
            _sampling.clear()
            self._stop.release()
            self._ended.acquire(True, ENDED_WITHIN)
        return list(self.samples)

    def _run(self) -> None:
        try:
            stack = self._open_stack()
            try:
                self._sample(stack)
            finally:
                stack.close()
        except Exception:  # noqa: BLE001 - the window goes on without more samples
            pass
        finally:
            self._ended.release()

    def _sample(self, stack: Stack) -> None:
        began, named = perf_counter(), dict[int, str]()
        wait = EVERY
        while not self._stop.acquire(True, wait):
            now, seen = self._clock(), stack.read()
            place = named.get(hash(seen))
            if place is None:
                place = named[hash(seen)] = self._describe(stack.frames(seen))
            if place:
                self.samples.append((now, place))
            wait = max(EVERY, (perf_counter() - began) / MOST_PER_LENGTH)


def sample_lines(clock: Callable[[], int] = time_ns, whole: bool = False) -> WindowLines | None:
    """Samples the lines of this thread from now on, or its whole stacks.

    Returns None if that is switched off, or not safe.
    """
    global _watches_forks
    try:
        switched_off = os.environ.get(VARIABLE) == "0"
        if switched_off or get_native_id() != os.getpid() or not is_main_interpreter():
            return None
        _stop()  # of a window whose begin Ctrl-C interrupted
        if not _watches_forks:
            _watches_forks = True
            os.register_at_fork(before=_stop)
        return WindowLines(stack_of_this_thread(), clock, whole)
    except (NotSafeError, OSError, RuntimeError):  # the working directory is gone, there is no thread left
        _sampling.clear()
        return None


def _stop() -> None:
    if _sampling:
        _sampling[0].stop()
