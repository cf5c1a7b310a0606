"""Times fetches where they happen: in the workers of a data loader, or in the training process itself.

A worker locks one of the slots in the ledger of the process that it works for. The kernel drops the
lock when the worker dies. The next worker continues the slot's counters, so no count is ever lost. The locks
are on a file that no other user can open: everybody who can open a file can hold locks on it.
"""

from __future__ import annotations

import os
from _thread import _local, allocate_lock, get_native_id  # threading's own, without the time to import it
from bisect import bisect_left
from time import perf_counter, process_time, thread_time

from stepscope.common.shared_files import entries, lock_holder, try_lock
from stepscope.training import layout
from stepscope.training.layout import FETCH_BOUNDS
from stepscope.training.ledger import Ledger, join_ledger
from stepscope.training.proc_files import ProcFile, thread_times
from stepscope.training.session import WORKER_OF, complain, session, start_run
from stepscope.training.steps import wrap_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    Arguments = ParamSpec("Arguments")
    Result = TypeVar("Result")


MOST_LEDGERS = 10_000  # files of the directory
LOOK_AGAIN = 1.0  # seconds, if the run has ended and there is no other one yet
LOOK_AT_THREADS = 0.2  # seconds between two looks at the other threads of a worker
COMPUTES = 0.1  # of the time since the last look: threads that run for less are hardly waited for


class _Slot:
    """The worker slot of one process."""

    def __init__(self, ledger: Ledger | None, number: int | None, worked_for: str = "") -> None:
        self.pid = os.getpid()
        # The ledger of the process that this one works for: a worker may outlive its run, and serve the next.
        self.worked_for = worked_for
        self.look_again = perf_counter() + LOOK_AGAIN
        self.run = session.ledger  # None: this process works for another one, or its run has ended
        self.ledger = ledger  # kept, because closing it would drop the lock on the slot
        self.values: memoryview[float] | None = None
        if ledger is not None and number is not None:
            size = layout.WORKER_DOUBLES * 8
            at = layout.WORKERS_AT + number * size
            self.values = memoryview(ledger.memory)[at : at + size].cast("d")

    def is_over(self) -> bool:
        """Returns whether the run of the process that this one works for has ended, as far as to look now."""
        if not self.worked_for:
            return False
        if self.ledger is None:
            return perf_counter() >= self.look_again
        return bool(self.ledger.counters[layout.COUNTER_ENDED])

    def count(self, seconds: float, cpu_seconds: float, core_wait_seconds: float) -> None:
        """Counts a fetch. Threads share the slot: no call is between reading a sum and writing it.

        A lock would wait forever for a fetch that a signal handler has interrupted.
        """
        values = self.values
        if values is None:
            return
        values[layout.WORKER_SECONDS] += seconds
        values[layout.WORKER_CPU_SECONDS] += cpu_seconds
        values[layout.WORKER_CORE_WAIT_SECONDS] += core_wait_seconds
        values[layout.WORKER_COUNTS + bisect_left(FETCH_BOUNDS, seconds)] += 1.0


class CoreWait(ProcFile):
    """The calling thread's time in the run queue: it distinguishes a busy machine from slow storage.

    Each thread has its own; after a fork, when `pid` differs, the child needs a new one.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        super().__init__("thread-self/schedstat")

    def seconds(self) -> float:
        """Seconds since the thread began."""
        return self.times()[1]


class _Helpers:
    """The other threads of a worker, such as those of OpenMP, OpenCV or tokenizers.

    To the kernel, the thread that fetches sleeps while it waits for them. They compute, or wait for a core.
    """

    def __init__(self) -> None:
        self._times: dict[str, tuple[float, float]] = {}
        self._looked = 0.0
        self._waiting = 0.0  # of the time for which they were ready to run, they had no core
        self._look()

    def _look(self) -> int:
        """Returns how many have computed since the last look.

        One that only hands batches over runs for a moment, and on full cores waits long for it. What it waits
        for a core does not count.
        """
        before, since = self._times, perf_counter() - self._looked
        self._looked += since
        try:
            self._times = {number: thread_times(number) for number in os.listdir("/proc/self/task")}
        except OSError:  # hidden, or there is no descriptor left
            return 0
        self._times.pop(str(get_native_id()), None)
        pairs = [(times, before.get(number, (0.0, 0.0))) for number, times in self._times.items()]
        ran, waited = (sum(now[at] - then[at] for now, then in pairs) for at in (0, 1))
        self._waiting = waited / (ran + waited) if ran + waited > 0.0 else 0.0
        return sum(now[0] - then[0] > COMPUTES * max(since - now[1] + then[1], 0.0) for now, then in pairs)

    def core_wait(self, slept: float, ran: float) -> float:
        """Returns for how many of the seconds that a fetch slept they had no core.

        They ran for `ran` seconds meanwhile.
        """
        if ran <= 0.0:
            return 0.0
        if perf_counter() - self._looked > LOOK_AT_THREADS and (computed := self._look()):
            values = _own_slot().values
            if values is not None:
                values[layout.WORKER_THREADS] = max(values[layout.WORKER_THREADS], computed + 1.0)
        ready = min(max(slept, 0.0), ran / max(1.0 - self._waiting, 0.01))
        return self._waiting * ready


class _Thread(_local):
    """The fetch that one thread is in: only the outermost of nested fetches counts."""

    depth = 0
    began = 0.0
    cpu_began = own_cpu_began = 0.0
    core_wait_began = 0.0
    core_wait: CoreWait | None = None


_thread = _Thread()
os.register_at_fork(after_in_child=lambda: setattr(_thread, "depth", 0))  # the fetch is the parent's
_slot: _Slot | None = None
_claiming = allocate_lock()


class _Fetch:
    """`@fetch` on a function or method, or `with fetch:`. Times wall, CPU and core wait of the thread.

    A fetch left by an exception is not counted. A fetch inside a fetch belongs to the outer one.
    """

    __slots__ = ("_cpu_time", "_helpers")

    def __init__(self) -> None:
        self._cpu_time = thread_time
        self._helpers: _Helpers | None = None

    def count_all_threads(self) -> None:
        """Counts the CPU time of the whole process from now on: a worker's own threads are no waiting."""
        self._cpu_time = process_time
        self._helpers = _Helpers()

    def say_threads(self, threads: int) -> None:
        """Stores how many threads PyTorch uses in this worker; more, once more are seen to compute."""
        if (values := _own_slot().values) is not None:
            values[layout.WORKER_THREADS] = float(threads)

    def __enter__(self) -> None:
        _thread.depth += 1
        if _thread.depth == 1:
            if _thread.core_wait is None or _thread.core_wait.pid != os.getpid():
                _thread.core_wait = CoreWait()
            # In this order, each contains the next one. Linux notices in `_cpu_time` that the thread has had
            # its turn, and lets others run as that returns: that is a wait for a core, in the fetch.
            _thread.began = perf_counter()
            _thread.core_wait_began = _thread.core_wait.seconds()
            _thread.cpu_began = self._cpu_time()
            if self._helpers is not None:
                _thread.own_cpu_began = thread_time()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if not _thread.depth:  # this process was forked within the fetch
            return
        _thread.depth -= 1
        if _thread.depth == 0 and error is None:
            assert _thread.core_wait is not None
            cpu_seconds = self._cpu_time() - _thread.cpu_began
            core_wait_seconds = _thread.core_wait.seconds() - _thread.core_wait_began
            seconds = perf_counter() - _thread.began
            if self._helpers is not None:
                own_seconds = thread_time() - _thread.own_cpu_began
                slept = seconds - own_seconds - core_wait_seconds
                core_wait_seconds += self._helpers.core_wait(slept, cpu_seconds - own_seconds)
            _own_slot().count(seconds, cpu_seconds, core_wait_seconds)

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        return wrap_call(function, lambda: self)


fetch = _Fetch()


def _own_slot() -> _Slot:
    global _slot, _claiming
    slot = _slot
    # The first fetch of this process, or of another run of it.
    if slot is None or slot.pid != os.getpid() or slot.run is not session.ledger or slot.is_over():
        if slot is not None and slot.pid != os.getpid():
            _claiming = allocate_lock()  # another thread of the parent may have held it at the fork
        with _claiming:
            if _slot is slot:
                _slot = _claim()
    assert _slot is not None
    return _slot


def _claim() -> _Slot:
    """Claims a slot. Returns a slot that counts nothing if none can be claimed."""
    worked_for = _slot.worked_for if _slot is not None and _slot.pid == os.getpid() else ""
    try:
        ledger = _next_ledger(worked_for) if worked_for else _ledger_to_count_in()
        if ledger is None:
            return _Slot(None, None, worked_for)
        if ledger is not session.ledger:
            worked_for = ledger.path
        for number in range(layout.WORKER_SLOTS):
            if try_lock(ledger.slots, number):
                return _Slot(ledger, number, worked_for)
        complain("slots", f"more than {layout.WORKER_SLOTS} loader workers at once: the rest are not timed")
    except Exception as error:  # noqa: BLE001 - nothing may raise into training
        complain("slots", f"fetches are not timed: {getattr(error, 'strerror', None) or error}")
    return _Slot(None, None)


def _next_ledger(path: str) -> Ledger | None:
    """Returns the ledger of the later run of the process that made this one. Raises OSError."""
    folder, name = os.path.split(path)
    process = f".{name.rsplit('.', 3)[1]}."  # as in RUN.RANK.PID.KEY.ledger
    for entry in entries(folder, MOST_LEDGERS):
        if entry.name != name and process in entry.name and entry.name.endswith(layout.SUFFIX):
            try:
                ledger = join_ledger(os.path.join(folder, entry.name))
                if _opens_slots(ledger):
                    return ledger
            except OSError:
                continue
    return None


def _ledger_to_count_in() -> Ledger | None:
    """Returns the ledger of this process, of the one it was forked from or started by, or a new ledger."""
    if session.ledger is not None:
        return session.ledger
    if session.parents_ledger is not None:
        return session.parents_ledger
    path = os.environ.get(WORKER_OF)
    if path and not session.settled:
        try:
            ledger = join_ledger(path)
        except OSError:
            pass  # that run has ended and its ledger is removed
        else:
            if _opens_slots(ledger):
                return ledger
    return session.ledger if start_run() else None


def _opens_slots(ledger: Ledger) -> bool:
    """Opens the locks of the slots if the process of the ledger lives, or closes it. Raises OSError."""
    try:
        holder = lock_holder(ledger.fd, layout.LOCK_ALIVE)
        if holder is not None:
            ledger.open_slots(holder)
        return holder is not None
    finally:
        if ledger.slots < 0:
            os.close(ledger.fd)
