"""The hot path: the code that runs in the training process at each step.

A step with its components must cost about a microsecond. So the state is in the variables of one closure,
which are faster than attributes. Code that is not needed at each step has its own function. A finished
step stores its record in the ring (one `pack_into`), its bucket of the histogram, and last the count of
records. A reader trusts a record only once it is counted, so it may see `pack_into` half done.

Between the `pack_into` and the last store there is no call: no signal handler and no other thread runs in
between, so a record's index always matches its place in the ring. For the same reason at most one thread
has a step open: `owner` is checked and set without a call in between, and calls of other threads are
ignored.

Time counts for the innermost open component only. The components of a nested step never add up to more
than the step.
"""

from __future__ import annotations

import mmap
from _thread import get_ident
from bisect import bisect_left
from struct import Struct
from time import perf_counter

from trainwatch.training import layout
from trainwatch.training.layout import COMPONENTS, PHASES, STEP_BOUNDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class BeginStep(Protocol):
        def __call__(self, phase: str = "train") -> None: ...

    class RecordStep(Protocol):
        def __call__(
            self,
            phase: str,
            start: float,
            end: float,
            data_wait: float = 0.0,
            forward: float = 0.0,
            backward: float = 0.0,
            optimizer: float = 0.0,
            communication: float = 0.0,
            host_to_device: float = 0.0,
            checkpoint: float = 0.0,
            compile: float = 0.0,
            gc: float = 0.0,
        ) -> None: ...


COMPONENT_INDEX = {name: i for i, name in enumerate(COMPONENTS)}
PHASE_INDEX = {name: i for i, name in enumerate(PHASES)}

_RECORD = Struct("@7d9d")  # layout.RECORD in native order, which packs a little faster
_NOTHING = (0.0,) * len(COMPONENTS)

_CLOSED = 0  # owner: no step is open
_DETACHED = -1  # owner: there is no ledger (yet, any more, or in this process)
_BUSY = -2  # owner: a step that its caller timed is being written
_NEVER = float("inf")


def unknown_component(name: object) -> ValueError:
    return ValueError(f"unknown component {name!r}: use one of {', '.join(COMPONENTS)}")


def unknown_phase(name: object) -> ValueError:
    return ValueError(f"unknown phase {name!r}: use one of {', '.join(PHASES)}")


class Recorder:
    """The functions that share the state of one process's step recording."""

    __slots__ = (  # faster than a dictionary; looked up at each step
        "attach",
        "begin_component",
        "begin_step",
        "detach",
        "discard_step",
        "end_component",
        "end_step",
        "in_step",
        "mark",
        "record_step",
        "waited",
    )

    begin_step: BeginStep
    mark: Callable[[str], None]
    end_step: Callable[[], None]
    record_step: RecordStep
    discard_step: Callable[[], None]
    in_step: Callable[[], bool]
    begin_component: Callable[[str], None]
    end_component: Callable[[], None]
    waited: Callable[[float, float], None]
    attach: Callable[[mmap.mmap], None]
    detach: Callable[[bool], None]

    def __init__(self, **functions: Callable[..., Any]) -> None:
        for name, function in functions.items():
            setattr(self, name, function)


def make_recorder(start_run: Callable[[], bool]) -> Recorder:
    """Returns a recorder. Its first use calls `start_run`, which attaches a ledger or returns False."""
    clock = perf_counter
    pack = _RECORD.pack_into
    component_index = COMPONENT_INDEX
    first_place, ring_end, record_bytes = layout.RING_AT, layout.FILE_BYTES, layout.RECORD_BYTES

    memory: mmap.mmap  # the ledger's, from attach() on
    counters: memoryview[float]
    owner = _DETACHED  # the thread whose step is open, or one of the constants above
    trainer = 0  # the thread that began the latest step; 0: none yet
    asked = wait = 0.0  # when the coming step's batch was requested (0: was not), and how long it took
    began = last = 0.0  # the open step's begin; the moment up to which components have their time
    parts = [0.0] * len(COMPONENTS)  # seconds of each component since the last record
    opened: list[int] = []  # open components, innermost last

    phase_name = ""
    phase_number = 0.0
    recorded = others = 0.0  # records written; how many of them are of other phases
    seconds = squares = 0.0  # running totals of this phase
    t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = t8 = 0.0  # running seconds of each component within steps
    low = high = _NEVER  # the bucket of the step before: most steps fall into the same bucket
    bucket = 0
    in_bucket = 0.0
    place = first_place  # of the next record

    # -- at each step ----------------------------------------------------------------------------------

    def record_step(
        phase: str,
        start: float,
        end: float,
        data_wait: float = 0.0,
        forward: float = 0.0,
        backward: float = 0.0,
        optimizer: float = 0.0,
        communication: float = 0.0,
        host_to_device: float = 0.0,
        checkpoint: float = 0.0,
        compile: float = 0.0,
        gc: float = 0.0,
    ) -> None:
        """Records a step that the caller timed: two moments of `time.perf_counter()`, component seconds.

        This is the fastest form; all others call it. Raises ValueError for an unknown phase or an end
        before the start. Component seconds that are not positive count as 0.
        """
        nonlocal owner, seconds, squares, in_bucket, recorded, place
        nonlocal t0, t1, t2, t3, t4, t5, t6, t7, t8
        duration = end - start
        if not 0.0 <= duration < _NEVER:
            raise ValueError(f"a step cannot start at {start} and end at {end}")
        if (owner or opened or asked or phase is not phase_name) and not prepare(phase, data_wait):
            return
        owner = _BUSY
        try:
            if not low < duration <= high:
                find_bucket(start, duration)
            if data_wait > 0.0:
                t0 += data_wait
            if forward > 0.0:
                t1 += forward
            if backward > 0.0:
                t2 += backward
            if optimizer > 0.0:
                t3 += optimizer
            if communication > 0.0:
                t4 += communication
            if host_to_device > 0.0:
                t5 += host_to_device
            if checkpoint > 0.0:
                t6 += checkpoint
            if compile > 0.0:
                t7 += compile
            if gc > 0.0:
                t8 += gc
            index = recorded + 1.0
            total = seconds + duration
            square = squares + duration * duration
            # fmt: off
            pack(
                memory, place, index, start, duration, phase_number, others, total, square,
                t0, t1, t2, t3, t4, t5, t6, t7, t8,
            )
            # fmt: on
            counters[bucket] = in_bucket = in_bucket + 1.0
            counters[0] = recorded = index  # from here on a reader trusts the record
            seconds = total
            squares = square
            place += record_bytes
            if place == ring_end:
                place = first_place
        finally:
            owner = _CLOSED

    def begin_step(phase: str = "train") -> None:
        """Begins a step: at the time when its batch was requested, or now if no batch was.

        A step that this thread began and never ended is dropped. While another thread's step is
        open the call is ignored. Raises ValueError for an unknown phase.
        """
        nonlocal owner, trainer, asked, began, last
        me = get_ident()
        if (owner or opened or phase is not phase_name) and not prepare(phase):
            return
        owner = trainer = me
        began = last = clock()
        if asked:
            parts[0] += wait
            began = asked
            asked = 0.0

    def mark(component: str) -> None:
        """Adds the time since the last mark, or the step's begin, to a component; ignored outside a step.

        Raises ValueError for an unknown component.
        """
        nonlocal last
        try:
            i = component_index[component]
        except KeyError:
            raise unknown_component(component) from None
        if get_ident() != owner:
            return
        now = clock()
        parts[i] += now - last
        last = now

    def end_step() -> None:
        """Ends this thread's step and its open components. Does nothing without a step."""
        nonlocal owner
        if get_ident() != owner:
            return
        now = clock()
        if opened:
            close_components(now)
        a, b, c, d, e, f, g, h, i = parts  # named: *parts would take twice as long
        parts[:] = _NOTHING
        owner = _CLOSED
        record_step(phase_name, began, now, a, b, c, d, e, f, g, h, i)

    # -- components and waits --------------------------------------------------------------------------

    def begin_component(component: str) -> None:
        """Opens a component and pauses the outer component. Raises ValueError for an unknown component.

        Outside a step, as in a checkpoint between two steps, its time counts for the component but for
        no step.
        """
        nonlocal last
        try:
            i = component_index[component]
        except KeyError:
            raise unknown_component(component) from None
        if get_ident() != owner and not may_count_outside():
            return
        now = clock()
        if opened:
            parts[opened[-1]] += now - last
        last = now
        opened.append(i)

    def end_component() -> None:
        """Closes the innermost open component. Does nothing without a component."""
        nonlocal last
        if not opened or (get_ident() != owner and not may_count_outside()):
            return
        now = clock()
        parts[opened.pop()] += now - last
        last = now
        if owner == _CLOSED and not opened and not asked:
            settle()

    def waited(asked_at: float, got_at: float) -> None:
        """Counts a batch of a watched loader: the wait belongs to the open step, or to the coming step."""
        nonlocal asked, wait, last
        if get_ident() == owner:
            if opened:
                parts[opened[-1]] += asked_at - last
            parts[0] += got_at - asked_at
            last = got_at
        elif may_count_outside():
            if asked:  # the batch before had no step
                drop_wait()
            asked, wait = asked_at, got_at - asked_at

    # -- once in a while -------------------------------------------------------------------------------

    def may_count_outside() -> bool:
        """Returns whether this is the training thread between two steps. Starts the run at the first use."""
        if owner == _DETACHED and not start_run():
            return False
        return owner == _CLOSED and trainer in (0, get_ident())

    def in_step() -> bool:
        """Returns whether this thread has a step open."""
        return get_ident() == owner

    def discard_step() -> None:
        """Drops this thread's open step: its components count as time outside a step."""
        nonlocal owner
        if get_ident() != owner:
            return
        if opened:
            close_components(clock())
        settle()
        owner = _CLOSED

    def prepare(phase: str, timed_wait: float | None = None) -> bool:
        """Prepares a step of this phase and excludes other threads. Returns whether it can be recorded.

        `timed_wait` is the data_wait of a step that its caller timed.
        """
        nonlocal owner
        if phase not in PHASE_INDEX:
            raise unknown_phase(phase)
        if owner == _DETACHED and not start_run():
            return False
        if owner == get_ident():  # begun and never ended
            discard_step()
        if owner != _CLOSED:  # another thread's step is open
            return False
        owner = _BUSY
        try:
            if opened:  # a component around the step: counts its time so far
                close_components(clock())
                if not asked:
                    settle()
            if asked and timed_wait is not None:
                place_wait(timed_wait)
            if phase != phase_name:
                enter_phase(phase)
        except BaseException:  # Ctrl-C, at this very moment
            owner = _CLOSED
            raise
        return True

    def enter_phase(name: str) -> None:
        """Stores the totals of the phase so far and loads the totals of this phase."""
        nonlocal phase_name, phase_number, others, seconds, squares, low, high
        if phase_name:
            at = PHASE_INDEX[phase_name]
            counters[layout.COUNTER_PHASE_STEPS + at] = recorded - others
            counters[layout.COUNTER_PHASE_SECONDS + at] = seconds
            counters[layout.COUNTER_PHASE_SQUARES + at] = squares
        at = PHASE_INDEX[name]
        others = recorded - counters[layout.COUNTER_PHASE_STEPS + at]
        seconds = counters[layout.COUNTER_PHASE_SECONDS + at]
        squares = counters[layout.COUNTER_PHASE_SQUARES + at]
        phase_name, phase_number = name, float(at)
        low = high = _NEVER

    def find_bucket(start: float, duration: float) -> None:
        nonlocal low, high, bucket, in_bucket
        if not recorded:
            counters[layout.COUNTER_FIRST_STEP] = start
        i = bisect_left(STEP_BOUNDS, duration)
        low = STEP_BOUNDS[i - 1] if i else -1.0
        high = STEP_BOUNDS[i] if i < len(STEP_BOUNDS) else _NEVER
        bucket = layout.COUNTER_STEP_HISTOGRAM + int(phase_number) * layout.STEP_BUCKETS + i
        in_bucket = counters[bucket]

    def close_components(now: float) -> None:
        nonlocal last
        parts[opened[-1]] += now - last
        last = now
        opened.clear()

    def settle() -> None:
        """Moves the component time so far to the counters of time outside a step."""
        for i, part in enumerate(parts, layout.COUNTER_OUTSIDE):
            if part:
                counters[i] += part
        parts[:] = _NOTHING

    def drop_wait() -> None:
        """Counts a wait without a following step as data_wait outside a step."""
        nonlocal asked
        counters[layout.COUNTER_OUTSIDE] += wait
        asked = 0.0
        settle()

    def place_wait(data_wait: float) -> None:
        """Drops a watched wait if the step that follows has its own data_wait, so it counts once."""
        nonlocal asked
        if data_wait > 0.0:
            asked = 0.0
            settle()
        else:
            drop_wait()

    def attach(ledger: mmap.mmap) -> None:
        """Records into this (new) ledger from now on."""
        nonlocal memory, counters, owner, trainer, asked, phase_name, recorded, place
        nonlocal t0, t1, t2, t3, t4, t5, t6, t7, t8
        memory = ledger
        counters = memoryview(ledger)[layout.COUNTERS_AT : layout.WORKERS_AT].cast("d")
        opened.clear()
        parts[:] = _NOTHING
        t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = t8 = 0.0
        asked = recorded = 0.0
        trainer = 0
        phase_name = ""
        place = first_place
        owner = _CLOSED

    def detach(settling: bool) -> None:
        """Records nothing from now on. `settling` first counts the time that belongs to no step."""
        nonlocal owner
        if settling and owner != _DETACHED:
            if opened:
                close_components(clock())
            if asked:
                drop_wait()
            settle()
        owner = _DETACHED

    return Recorder(
        begin_step=begin_step,
        mark=mark,
        end_step=end_step,
        record_step=record_step,
        discard_step=discard_step,
        in_step=in_step,
        begin_component=begin_component,
        end_component=end_component,
        waited=waited,
        attach=attach,
        detach=detach,
    )
