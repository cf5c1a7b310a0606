"""Samples the line of the user's code that the main thread is in, up to 20 times per second.

If another thread makes the steps, that one is sampled from its first step to its end.

A thread notes the whole stack, its innermost line of the user's own code, and the library function that this
called. It also notes the phase and component of the step, and whether that lasts twice as long as usual. The
state of the main thread says what it waits for. All that is counted in a file next to the ledgers.

Ticks are at an irregular place within each cell of a grid of time, so no rhythm of the program is in step
with them. While the main thread holds the interpreter lock, no sample can be taken: the ticks that pass count
for the line that held it. By default Python hands the lock over after 5 ms, and earlier if the main thread
gives it up: then that line would be blamed for the lines before it. So the sampler asks for it sooner.
After a sample that took much CPU time, ticks are skipped: they count for the next sample. What imports take
is not made up for later: their stacks are deep and new, and a script's work may be short.

The thread never touches a frame: main_stack.py has C code read the stack, of the main interpreter only. The
thread stops before a fork, and starts again after it in parent and child: Python 3.12 and later warn about a
fork of a process with threads. Nothing here raises into the program or prints: `stepscope run` says why
lines were not sampled.
"""

from __future__ import annotations

import atexit
import os
import sys
from _thread import _count, allocate_lock, get_native_id, start_new_thread
from resource import RUSAGE_THREAD, getrusage
from time import monotonic, perf_counter, sleep, thread_time, time

from stepscope.training import layout as ledger_layout
from stepscope.training import line_layout as layout
from stepscope.training.line_names import LineNames, clean, is_import
from stepscope.training.line_table import LineTable
from stepscope.training.main_stack import NotSafeError, is_main_interpreter, stack_of_this_thread
from stepscope.training.main_thread import RUNNING, MainThread
from stepscope.training.tools import OtherThreads, tools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stepscope.training.main_stack import Stack

FIRST_TICKS = 20  # a process that ends earlier leaves no file,
WORKER_FIRST_TICKS = 5  # a loader worker: it may live for a short epoch only
LOOK_TICKS = 20  # between two looks at the run, the role and the times of the main thread
ALLOWED = 0.0022 * layout.TICK_SECONDS  # seconds of CPU time per tick; looks and the start come on top
MOST_SKIPPED = 10  # ticks between two samples, unless samples usually take more
CREDIT = 400.0  # ticks, which a process may owe once: short programs have few samples
ON_CREDIT = 3.0  # times the allowed CPU time, at most, is spent until then: an import would spend all
MOST_OWED = 400.0  # ticks, what 100 frames of 100 threads take; what a sample took beyond it is forgotten
WEIGHT = 0.1  # of the latest sample in what one usually takes
MOST_STACKS = 1_000  # of which the text is remembered
OTHER_THREAD = 16 * layout.OTHER_THREAD
TOOL = OTHER_THREAD + layout.TOOL
SCRIPT, WORKER = layout.ROLES.index("script"), layout.ROLES.index("loader worker")
GOLDEN = 0.6180339887498949  # its multiples are spread evenly between two whole numbers
USUAL_OF = 32  # steps, at most, of which nine in ten take the usual time or less,
LEAST_USUAL = 8  # and at least: before them, no step is a long one
COMPETES = 0.05  # of the time: other threads that run for less hardly ask for the interpreter lock
MISSED = 4  # times that a waiting thread was woken in vain, before that is no chance
ENDED_WITHIN = 0.1  # seconds for the thread to end before a fork
TIMER_SLACK = b"1000"  # nanoseconds


class Turns:
    """Python's switch interval: how soon a thread that waits for the interpreter lock asks for it.

    The default of 5 ms is too long for samples, see above. But a waiting thread asks again and again: while
    the main thread holds the lock for long, as in json.loads, short intervals cost much. The interval is the
    one at which a wait costs COST on average, in CPU time of this thread. How late it comes says nothing: on
    a busy machine it may only have waited for a core. An interval that the program has set stays.

    A thread that gives the lock up wakes the one that waits, but may have it again by then: the interval
    begins again. So if the main thread gives it up more often than that, as around operations of PyTorch,
    nobody asks for it: this thread wakes more often than the interval has passed, and a shorter one helps.
    """

    DEFAULT, ALONE, TOGETHER = 5000, 20, 500  # microseconds; together with threads that compute
    COST = 300e-6  # seconds
    WEIGHT = 0.1  # of the latest wait in the average

    def __init__(self) -> None:
        self._ours = self.DEFAULT
        self._affordable = float(self.DEFAULT)  # and less later: the first waits are for libraries that load

    def adjust(self, cost: float, late: float, woken: int, alone: bool) -> None:
        """Adjusts the interval after a wait.

        `cost`: its seconds of CPU time; `late`: seconds beyond the time that it was due; `woken`: how often
        this thread woke meanwhile.
        """
        if woken > MISSED and woken > 1e6 * late / self._ours:
            self._affordable /= 2
        else:
            self._affordable += self.WEIGHT * (self._ours * cost / self.COST - self._affordable)
        least = self.ALONE if alone else self.TOGETHER
        self._set(min(self.DEFAULT, max(least, int(self._affordable))))

    def restore(self) -> None:
        self._set(self.DEFAULT)

    def _set(self, microseconds: int) -> None:
        if round(sys.getswitchinterval() * 1e6) == self._ours != microseconds:
            sys.setswitchinterval(microseconds / 1e6)
            self._ours = round(sys.getswitchinterval() * 1e6)  # it may have lost one to rounding


class LineSampler:
    """The sampling thread of this process."""

    def __init__(self) -> None:
        self._names = LineNames()
        self._open_main = self._open_stack = stack_of_this_thread()
        self.sampled = os.getpid()  # the number of the thread that is sampled
        self._turns = Turns()
        self._begin(layout.SLOTS, layout.NODES, FIRST_TICKS)

    def _begin(self, slots: int, nodes: int, first_look: int) -> None:
        self._table = LineTable(slots, nodes)
        self._began = time()
        self._until_look = first_look
        self._ledger: Any = None  # of this process,
        self._counters: Any = None  # and its counters
        self._ring: Any = None  # and its latest steps
        # The samples of the step that is open now: ticks by code, names and state.
        self._open_step = dict[tuple[int, tuple[str, str], int], int]()
        self._recorded = 0.0  # steps before it
        # Seconds for which the main thread had waited for a core: at the latest sample, and when the open
        # step began or was last seen to be a long one.
        self._waits = self._counted_waits = 0.0
        self._ran, self._trains = 0.0, False  # at the latest sample: seconds with a core, and the phase
        self._own_cpu = 0.0  # of the threads before this one,
        # and when they began, how many ticks passed and are skipped, and when times were read, and which.
        self._before: tuple[float, int, int, float, tuple[float, float] | None] | None = None
        self._owed = -CREDIT  # ticks: CPU time beyond what is allowed,
        self._usual = 0.0  # and of a sample that is no import's, in ticks of ALLOWED
        self._failed = self._works_for_a_rank = False
        # The locks of the thread that samples: one stops it, and it releases the other at its end.
        self._running: tuple[Any, Any] | None = None
        self._task = ""

    def start(self) -> None:
        """Starts the thread, if the system has one left. Two threads may fork at once: only one starts it."""
        stop, ended = allocate_lock(), allocate_lock()
        stop.acquire()
        ended.acquire()
        if self._failed or self._running is not None:
            return
        self._running = stop, ended  # no call in between: no other thread has found none, too
        try:
            start_new_thread(self._run, (stop, ended))
        except RuntimeError:
            self._running = None

    def stop(self) -> None:
        """Ends the thread, and waits until the kernel has none either: that is what a fork counts.

        A second call, also of another thread at the same time, ends nothing and does not wait for it.
        """
        running, self._running = self._running, None
        if running is None:
            return
        stop, ended = running
        stop.release()
        ended.acquire(True, ENDED_WITHIN)
        task, deadline = self._task, monotonic() + ENDED_WITHIN
        while task and os.path.exists(task) and monotonic() < deadline:
            sleep(0.0001)

    def restart_in_child(self) -> None:
        """Starts again in a forked child, with counts of its own. Its only thread is its main thread."""
        self._open_main = self._open_stack = stack_of_this_thread()
        self.sampled = os.getpid()
        self._begin(layout.WORKER_SLOTS, layout.WORKER_NODES, WORKER_FIRST_TICKS)
        self.start()

    def follow(self) -> None:
        """Samples the thread that calls this, as long as it lives, if its stack can be read."""
        try:
            self._open_stack = stack_of_this_thread()
            self.sampled = get_native_id()
        except (NotSafeError, OSError):
            pass

    # The methods below run in the thread.

    def _run(self, stop: Any, ended: Any) -> None:
        try:
            self._task = f"/proc/self/task/{get_native_id()}"
            _wake_in_time()
            stopped = False
            while not stopped:
                main = MainThread(self.sampled)
                stack = self._open_stack()
                try:
                    stopped = self._sample(stop, main, stack)
                finally:
                    main.close()
                    stack.close()
        except Exception as error:  # noqa: BLE001 - the program continues without line samples
            self._failed = True
            _leave_word(error)
        finally:
            self._turns.restore()
            self._own_cpu += thread_time()
            ended.release()

    def _sample(self, stop: Any, main: MainThread, stack: Stack) -> bool:
        """Returns whether to stop: otherwise it continues with another thread."""
        table, named, threads = self._table, dict[int, tuple[str, str]](), OtherThreads()
        begin = looked = monotonic()
        tick = skipped = 0  # how many have passed, and are skipped now
        before = None
        if self._before is not None:  # what a fork took is of the first sample: its thread is still there
            begin, tick, skipped, looked, before = self._before
        times = before or main.times()
        if before is None:
            (self._ran, self._waits), self._counted_waits = times, times[1]
        jitter = begin % 1.0
        stopped, alone = False, _count() < 2  # the other one is this
        list(threads.ran(main.number))
        while not stopped and self.sampled == main.number:
            spent, slept = thread_time(), _switches()
            jitter = (jitter + GOLDEN) % 1.0
            due = begin + (tick + skipped + jitter) * layout.TICK_SECONDS
            stopped = stop.acquire(True, max(0.0, due - monotonic()))
            if not stopped:
                waited, woken, late = thread_time() - spent, _switches() - slept, monotonic() - due
                code = self._code()  # first: reading the stack gives the lock up
                seen = stack.read()
                if not seen and main.number != os.getpid():  # it has ended
                    self._open_stack, self.sampled = self._open_main, os.getpid()
                    break
                self._turns.adjust(waited, late, woken, alone)
                names = named.get(hash(seen))
                if names is None:
                    if len(named) >= MOST_STACKS:
                        named.clear()
                    frames = stack.frames(seen)
                    names = named[hash(seen)] = self._names.of(frames), self._names.whole(frames)
                passed = max(1 + skipped, int((monotonic() - begin) / layout.TICK_SECONDS) - tick)
                self._count(table, code, names, main, passed)
                tick += passed
                self._until_look -= passed
                took = (thread_time() - spent) / ALLOWED
                self._owe(took - passed)
                if is_import(names[0]):
                    self._owed = min(self._owed, 0.0)
                else:
                    self._usual += WEIGHT * (took - self._usual)
                    took = self._usual
                most = max(MOST_SKIPPED, int(2 * self._usual))
                skipped = min(max(int(self._owed), int(took / ON_CREDIT)), most)
            if stopped or self._until_look <= 0:
                previous, looked, ran = looked, monotonic(), times
                times = main.times()
                table.add(layout.SECONDS, looked - previous)
                table.add(layout.RAN_SECONDS, max(0.0, times[0] - ran[0]))
                table.add(layout.CORE_WAIT_SECONDS, max(0.0, times[1] - ran[1]))
                table.set(layout.OWN_CPU_SECONDS, self._own_cpu + thread_time())
                if main.shows():
                    table.add(layout.KNOWN_SECONDS, looked - previous)
                ran_meanwhile = list(threads.ran(main.number))
                alone = sum(seconds for _, seconds in ran_meanwhile) < COMPETES * (looked - previous)
                for frame, seconds in ran_meanwhile:
                    table.count(OTHER_THREAD, self._names.of([frame]), RUNNING, seconds / layout.TICK_SECONDS)
                for tool in tools():
                    text = f"\n\n{clean(tool)}\n\n" if isinstance(tool, str) else self._names.of([tool])
                    table.count(TOOL, text, RUNNING, (looked - previous) / layout.TICK_SECONDS)
                if self._counters is not None:  # the thread that makes the steps notes its own
                    self._counters[ledger_layout.COUNTER_LOOK_AT] = 0.0
                self._close_step(table)
                self._before = begin, tick, skipped, looked, times
            if self._until_look <= 0:
                self._until_look = LOOK_TICKS
                self._identify(table, tick)
                stack.check()
        if not stopped:
            self._before = begin, tick, skipped, looked, None
        return stopped

    def _owe(self, ticks: float) -> None:
        """Owes more, or fewer ticks. What was not spent is saved for no later time, but for the credit."""
        self._owed = min(max(min(self._owed, 0.0), self._owed + ticks), MOST_OWED)

    def _count(
        self, table: LineTable, code: int, names: tuple[str, str], main: MainThread, ticks: int
    ) -> None:
        (text, whole), state = names, main.state()
        table.count(code, text, state, ticks, whole)
        if self._counters is None:
            return
        before, ran = self._waits, self._ran
        self._ran, self._waits = main.times()
        trained, self._trains = self._trains, code % layout.LONG // 16 == layout.FIRST_PHASE
        if trained and self._trains:
            table.add(layout.TRAIN_RAN_SECONDS, max(0.0, self._ran - ran))
            table.add(layout.TRAIN_CORE_WAIT_SECONDS, max(0.0, self._waits - before))
        recorded = self._counters[ledger_layout.COUNTER_RECORDED]
        if recorded != self._recorded:
            self._open_step.clear()
            self._recorded = recorded
            self._counted_waits = before
            newest = ring_place(recorded)
            since = perf_counter() - self._ring[newest + 1] - self._ring[newest + 2]
            ticks = max(0, min(ticks, int(since / layout.TICK_SECONDS)))  # the others were in steps before
        key = code, names, state
        self._open_step[key] = self._open_step.get(key, 0) + ticks
        if code & layout.LONG:
            table.add(layout.LONG_CORE_WAIT_SECONDS, max(0.0, self._waits - self._counted_waits))
            self._counted_waits = self._waits

    def _close_step(self, table: LineTable) -> None:
        """Counts what a script did after its last step as that, not for a step that never came.

        A script that an exception or an interrupt ends was in that step, as far as is known.
        """
        if hasattr(sys, "last_value") or self._counters is None:
            return
        if self._counters[ledger_layout.COUNTER_ENDED]:
            if self._counters[ledger_layout.COUNTER_RECORDED] == self._recorded:
                for (code, (text, whole), state), ticks in self._open_step.items():
                    table.move(code, text, state, ticks, 16 * layout.FINALIZATION, whole)
            self._open_step.clear()

    def _code(self) -> int:
        """Returns the code of now."""
        session = sys.modules.get("stepscope.training.session")
        ledger = session.session.ledger if session is not None else None
        if ledger is not None and ledger is not self._ledger:  # what follows a run's end belongs to it
            self._ledger = ledger
            counters = memoryview(ledger.memory)[ledger_layout.COUNTERS_AT : ledger_layout.WORKERS_AT]
            self._counters = counters.cast("d")
            ring = memoryview(ledger.memory)[ledger_layout.RING_AT : ledger_layout.RING_END]
            self._ring = ring.cast("d")
        if self._counters is None:
            return 0
        long = layout.LONG if is_long(self._counters, self._ring, perf_counter()) else 0
        return code_of(self._counters) + long

    def _identify(self, table: LineTable, ticks: int) -> None:
        """Writes the run, rank and role, as far as they are known by now; first makes the file."""
        from stepscope.training.line_identity import Identity  # not in processes that end at once

        identity = Identity(self._ledger)
        if identity.role == SCRIPT and self._works_for_a_rank:
            return  # the process that started this one is dead
        self._works_for_a_rank = identity.role != SCRIPT
        table.name_run(identity.run)
        table.set(layout.ROLE, float(identity.role))
        table.set(layout.RANK, float(identity.rank))
        if not table.path and (ticks >= FIRST_TICKS or identity.role == WORKER):
            table.publish(identity.directory, self._began)


def code_of(counters: Any) -> int:
    """Returns 16 x phase + component from the counters of a ledger."""
    if counters[ledger_layout.COUNTER_ENDED]:
        return 16 * layout.FINALIZATION
    waits = counters[ledger_layout.COUNTER_WAIT_SINCE]
    component = 1 if waits else int(counters[ledger_layout.COUNTER_COMPONENT])
    in_step = counters[ledger_layout.COUNTER_STEP_SINCE] and component != 1  # the first begins with its batch
    if not (in_step or counters[ledger_layout.COUNTER_RECORDED]):
        before = component if component in layout.BEFORE_STEPS else 0
        return 16 * layout.PHASES.index("initialization") + before
    phase = layout.FIRST_PHASE + int(counters[ledger_layout.COUNTER_STEP_PHASE])
    in_any = counters[ledger_layout.COUNTER_STEP_SINCE]  # 0: a framework says that its loop has ended
    if not component and in_any and counters[ledger_layout.COUNTER_COMPONENT_SINCE]:
        component = layout.HOST
    return 16 * phase + component


def ring_place(index: float) -> int:
    """Returns where the record of a step is in the ring, in doubles; `index` counts from 1."""
    return ledger_layout.RECORD_BYTES // 8 * ((int(index) - 1) % ledger_layout.RING_RECORDS)


def is_long(counters: Any, ring: Any, now: float) -> bool:
    """Returns whether the open step, or the wait for its batch, lasts more than TOO_LONG times the usual.

    `counters` and `ring` are those of a ledger, `now` is of its writer's clock. Nine in ten of the latest
    steps of this phase take the usual time or less. A record that is just being written may be misread once.
    """
    recorded = int(counters[ledger_layout.COUNTER_RECORDED])
    if recorded < LEAST_USUAL or counters[ledger_layout.COUNTER_ENDED]:
        return False
    newest = ring_place(recorded)
    began = counters[ledger_layout.COUNTER_STEP_SINCE]
    if began < ring[newest + 1] + ring[newest + 2]:  # no step is open
        began = counters[ledger_layout.COUNTER_WAIT_SINCE] or now
    phase = counters[ledger_layout.COUNTER_STEP_PHASE]
    kept = min(recorded, USUAL_OF, ledger_layout.RING_RECORDS)
    latest = [ring_place(recorded - back) for back in range(kept)]
    durations = sorted(ring[at + 2] for at in latest if ring[at + 3] == phase)
    enough = len(durations) >= LEAST_USUAL
    return enough and now - began > layout.TOO_LONG * durations[9 * len(durations) // 10]


def _switches() -> int:
    """Returns how often this thread has gone to sleep."""
    return getrusage(RUSAGE_THREAD).ru_nvcsw


def _wake_in_time() -> None:
    """Has the kernel wake this thread when its time is over. By default it may be 50 us late.

    Lines that take less before the main thread gives the interpreter lock up would never be seen.
    """
    try:
        fd = os.open(f"/proc/{get_native_id()}/timerslack_ns", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:  # before Linux 4.6, or hidden
        return
    try:
        os.write(fd, TIMER_SLACK)
    except OSError:
        pass
    finally:
        os.close(fd)


_sampler: LineSampler | None = None


def start() -> None:
    """Samples this process's lines from now on, and those of the processes that it forks."""
    global _sampler
    if _sampler is not None or not is_main_interpreter():
        return
    try:
        _sampler = LineSampler()
    except OSError:  # the working directory is gone
        return
    except NotSafeError as error:
        _leave_word(error)
        return
    os.register_at_fork(
        before=_sampler.stop, after_in_parent=_sampler.start, after_in_child=_sampler.restart_in_child
    )
    atexit.register(_sampler.stop)
    _sampler.start()


def follow() -> None:
    """Samples the thread that calls this from now on, because it makes the steps."""
    if _sampler is not None and _sampler.sampled != get_native_id():
        _sampler.follow()


def _leave_word(error: Exception) -> None:
    try:
        import stepscope_startup  # outside this package, because it must load without it

        stepscope_startup.leave_word(stepscope_startup.NO_LINES, f"of process {os.getpid()}: {error}")
    except Exception:  # noqa: BLE001 - then nobody is told, and the program continues
        pass
