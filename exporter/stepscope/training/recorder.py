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

Hooks use the same state with functions of their own. `enter` and `leave` are their begin_component and
end_component; a component that the script opened by hand mutes them. While the script makes no steps,
hooks keep an automatic step open, whose `owner` is the negative of the thread: calls by hand take it for
no step of theirs. The first step by hand ends automatic steps for good. What hooks do in a usual step is
here as well, in one function per hook.
"""

from __future__ import annotations

import mmap
import os
from _thread import get_ident, get_native_id
from bisect import bisect_left
from struct import Struct
from time import perf_counter

from stepscope.training import layout
from stepscope.training.layout import COMPONENTS, PHASES, STEP_BOUNDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    class BeginStep(Protocol):
        def __call__(self, phase: str = "train") -> None: ...

    class Loop(Protocol):
        """The script's loop, as hooks see it: an AutomaticSteps."""

        asked: tuple[float, ...]
        compiled: object
        evaluated: bool
        failed: bool
        trained: bool
        undecided: list[Any]
        unusual: set[str]
        wait: tuple[float, float, int | None] | None
        waits: Any

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
_ALL = len(COMPONENTS)
_COMMUNICATION, _FORWARD = COMPONENT_INDEX["communication"], COMPONENT_INDEX["forward"]
_BACKWARD, _OPTIMIZER = COMPONENT_INDEX["backward"], COMPONENT_INDEX["optimizer"]
_WAIT = COMPONENT_INDEX["data_wait"] - _ALL  # as hooks open it
NOT_OPENED = -1  # what `enter` returns if it opened no component,
_NOT_COUNTED = -2  # and if it only says where training is

DEVICE_LOOKS = 100


def unknown_phase(name: object) -> ValueError:
    return ValueError(f"unknown phase {name!r}: use one of {', '.join(PHASES)}")


class Recorder:
    """The functions that share the state of one process's step recording."""

    begin_step: BeginStep
    mark: Callable[[str], None]
    end_step: Callable[[], None]
    record_step: RecordStep
    discard_step: Callable[[], None]
    in_step: Callable[[], bool]
    begin_component: Callable[[str], None]
    end_component: Callable[[], None]
    enter: Callable[..., int]
    leave: Callable[[int], None]
    turns_out: Callable[[int], None]
    adds: Callable[[int, float], None]
    begin_wait: Callable[[], tuple[float, ...] | None]
    is_waiting: Callable[[], bool]
    counts_here: Callable[[], bool]
    asks_here: Callable[[], bool]
    count_device_time: Callable[[int, float], None]
    in_automatic_step: Callable[..., bool]
    end_automatic_step: Callable[[int], bool]
    drop_automatic_step: Callable[[], None]
    so_far: Callable[[], tuple[float, ...] | None]
    open_step: Callable[[], tuple[tuple[float, ...], tuple[float, ...]] | None]
    first_batch_came: Callable[[], bool]
    show_phase: Callable[[str], None]
    take_step_out: Callable[[str, tuple[float, ...], tuple[float, ...]], float]
    waited: Callable[[float, float], None]
    waiting: Callable[[float], None]
    time_backward: Callable[..., Callable[..., Any]]
    time_batches: Callable[..., Callable[[Any], Any]]
    time_modules: Callable[..., Callable[..., Any]]
    time_steps: Callable[..., tuple[Callable[..., None], Callable[..., None]]]
    attach: Callable[[mmap.mmap], None]
    detach: Callable[[bool], None]

    def __init__(self, functions: Mapping[str, Any]) -> None:
        vars(self).update((name, functions[name]) for name in Recorder.__annotations__)


def make_recorder(
    start_run: Callable[[], bool],
    first_step: Callable[[], None] = lambda: None,
    name_devices: Callable[[], bool] = lambda: True,
    unknown_component: Callable[[object], None] = lambda _: None,
    look_around: Callable[[str, float, float], float] = lambda *_: layout.NEVER,
) -> Recorder:
    """Returns a recorder. Its first use calls `start_run`, which attaches a ledger or returns False.

    `first_step` is called before the first step of a ledger. `name_devices` is called after the first step,
    and after later ones that take another time or are of another phase, until it returns True: DEVICE_LOOKS
    times at most. `unknown_component` is called with each name that is no component. `look_around` is
    called after a step with its phase, the steps of this phase so far, and all steps so far. It returns at
    how many steps to call it again.
    """
    clock = perf_counter
    pack = _RECORD.pack_into
    component_index = COMPONENT_INDEX
    since = layout.COUNTER_STEP_SINCE
    where, where_since = layout.COUNTER_COMPONENT, layout.COUNTER_COMPONENT_SINCE
    operation_at, wait_since = layout.COUNTER_OPERATION, layout.COUNTER_WAIT_SINCE
    first_place, ring_end, record_bytes = layout.RING_AT, layout.RING_END, layout.RECORD_BYTES

    memory: mmap.mmap  # the ledger's, from attach() on
    counters: memoryview[float]
    owner = _DETACHED  # the thread whose step is open, or one of the constants above
    trainer = 0  # the thread that began the latest step; 0: none yet
    task = ""  # of that thread, in /proc, if its step is automatic
    asked = wait = 0.0  # when the coming step's batch was requested (0: was not), and how long it took
    began = last = 0.0  # the open step's begin; the moment up to which components have their time
    parts = [0.0] * len(COMPONENTS)  # seconds of each component since the last record
    opened: list[int] = []  # open components, innermost last; those of hooks minus the number of components
    unknown: list[int] = []  # for each open component with an unknown name: how many were opened around it
    ending = False  # whether a step is being recorded that this recorder timed
    by_hand = False  # whether the script makes steps itself,
    marked = timed = False  # and in them marks, or times the components itself
    passing = False  # whether the training thread is in a module

    phase_name = ""
    phase_number = 0.0
    looks = 0  # that are left for the devices
    recorded = others = 0.0  # records written; how many of them are of other phases
    seconds = squares = 0.0  # running totals of this phase
    t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = t8 = 0.0  # running seconds of each component within steps
    at_entry = _NOTHING  # the running seconds of each component when this phase was entered
    own_seconds = own_squares = 0.0  # running totals without communication: of training, or of the rest
    own_at = layout.COUNTER_OWN  # where they are
    low = high = _NEVER  # the bucket of the step before: most steps fall into the same bucket
    bucket = 0
    in_bucket = 0.0
    ring_place = first_place  # of the next record

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

        This is the fastest form; all others call it. Raises ValueError for an unknown phase, an end
        before the start, or seconds without end. Component seconds that are not positive count as 0.
        """
        nonlocal owner, seconds, squares, own_seconds, own_squares, in_bucket, recorded, ring_place
        nonlocal t0, t1, t2, t3, t4, t5, t6, t7, t8
        duration = end - start
        if owner or opened or asked or phase is not phase_name or not low < duration <= high:
            check(start, end)
            if not prepare(phase, data_wait):
                return
            if not low < duration <= high:
                find_bucket(start, duration)
        owner = _BUSY
        try:
            if data_wait > 0.0:
                if data_wait >= 1e9:  # layout.LONGEST_STEP; a constant is faster
                    reject(data_wait)
                t0 += data_wait
            if forward > 0.0:
                if forward >= 1e9:
                    reject(forward)
                t1 += forward
            if backward > 0.0:
                if backward >= 1e9:
                    reject(backward)
                t2 += backward
            if optimizer > 0.0:
                if optimizer >= 1e9:
                    reject(optimizer)
                t3 += optimizer
            if communication > 0.0:
                if communication >= 1e9:
                    reject(communication)
                t4 += communication
                own = duration - communication if communication < duration else 0.0
            else:
                own = duration
            if host_to_device > 0.0:
                if host_to_device >= 1e9:
                    reject(host_to_device)
                t5 += host_to_device
            if checkpoint > 0.0:
                if checkpoint >= 1e9:
                    reject(checkpoint)
                t6 += checkpoint
            if compile > 0.0:
                if compile >= 1e9:
                    reject(compile)
                t7 += compile
            if gc > 0.0:
                if gc >= 1e9:
                    reject(gc)
                t8 += gc
            index = recorded + 1.0
            total = seconds + duration
            square = squares + duration * duration
            # fmt: off
            pack(
                memory, ring_place, index, start, duration, phase_number, others, total, square,
                t0, t1, t2, t3, t4, t5, t6, t7, t8,
            )
            # fmt: on
            counters[bucket] = in_bucket = in_bucket + 1.0
            counters[own_at] = own_seconds = own_seconds + own
            counters[own_at + 1] = own_squares = own_squares + own * own
            counters[0] = recorded = index  # from here on a reader trusts the record
            seconds = total
            squares = square
            ring_place += record_bytes
            if ring_place == ring_end:
                ring_place = first_place
        finally:
            owner = _CLOSED
        if not ending and index >= counters[46]:  # layout.COUNTER_LOOK_AT; the same below
            look()

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
        counters[since] = began

    def mark(component: str) -> None:
        """Adds the time since the last mark, or the step's begin, to a component; ignored outside a step.

        For an unknown component the time counts as other code of the step.
        """
        nonlocal last, marked
        i = component_index.get(component)
        if i is None:
            unknown_component(component)
        if get_ident() != owner:
            return
        now = clock()
        if i is not None:
            parts[i] += now - last
        last = now
        marked = True

    def end_step() -> None:
        """Ends this thread's step and its open components. Does nothing without a step."""
        nonlocal owner, ending
        if get_ident() != owner:
            return
        now = clock()
        if opened:
            close_components(now)
        a, b, c, d, e, f, g, h, i = parts  # named: *parts would take twice as long
        parts[:] = _NOTHING
        owner = _CLOSED
        ending = True
        try:
            record_step(phase_name, began, now, a, b, c, d, e, f, g, h, i)
        finally:  # also after Ctrl-C
            ending = False
        if recorded >= counters[46]:
            look()

    # -- components and waits --------------------------------------------------------------------------

    def begin_component(component: str) -> None:
        """Opens a component and pauses the outer component.

        Outside a step, as in a checkpoint between two steps, its time counts for the component but for
        no step. The time of an unknown component counts as other code of the step.
        """
        nonlocal last
        i = component_index.get(component)
        if i is None:
            unknown_component(component)
        if get_ident() != owner and not may_count_outside():
            return
        now = clock()
        if opened:
            parts[opened[-1]] += now - last
        last = now
        if i is None:
            unknown.append(len(opened))
            return
        opened.append(i)
        counters[where] = i + 1.0
        counters[where_since] = now

    def end_component() -> None:
        """Closes the innermost open component. Does nothing without a component."""
        nonlocal last
        if unknown and unknown[-1] >= len(opened):
            if get_ident() == owner or may_count_outside():
                unknown.pop()
                last = clock()
            return
        if not opened or (get_ident() != owner and not may_count_outside()):
            return
        now = clock()
        parts[opened.pop()] += now - last
        last = now
        counters[where] = opened[-1] % _ALL + 1.0 if opened else 0.0
        counters[where_since] = now
        if owner == _CLOSED and not opened and not asked:
            settle()

    def waited(asked_at: float, got_at: float) -> None:
        """Counts a batch of a watched loader: the wait belongs to the open step, or to the coming step.

        The first step begins with its batch, as in `first_batch_came`.
        """
        nonlocal asked, wait, last
        if owner in ((me := get_ident()), -me):
            if opened:
                parts[opened[-1]] += asked_at - last
            parts[0] += got_at - asked_at
            last = got_at
        elif may_count_outside():
            if asked:  # the batch before had no step
                drop_wait()
            asked, wait = (asked_at, got_at - asked_at) if recorded else (got_at, 0.0)

    def waiting(asked_at: float) -> None:
        """Says since when training has waited for a batch; 0: it no longer does."""
        if owner != _DETACHED:
            counters[wait_since] = asked_at
            counters[where] = 1.0 if asked_at else opened[-1] % _ALL + 1.0 if opened else 0.0
            counters[where_since] = asked_at or clock()

    def is_waiting() -> bool:
        """Returns whether training waits for a batch."""
        return owner != _DETACHED and (counters[wait_since] != 0.0 or (bool(opened) and opened[-1] == _WAIT))

    # -- hooks -----------------------------------------------------------------------------------------

    def enter(component: int, operation: float = 0.0, thread: int = 0) -> int:
        """Opens a component for a hook, by its index, and pauses the outer one. Returns a place for `leave`.

        `thread` is on whose behalf; this thread if not given. Does nothing before the run's start, in other
        threads, and inside a component that the script opened by hand. Only communication counts there,
        too, because nobody can mark all of it by hand.
        """
        nonlocal last
        if opened or operation or owner != -get_ident():
            return enter_anywhere(component, operation, thread)
        last = now = clock()
        opened.append(component - 9)  # _ALL; a constant is faster
        counters[29] = component + 1.0  # layout.COUNTER_COMPONENT
        counters[30] = now
        return 0

    def enter_anywhere(component: int, operation: float, thread: int) -> int:
        """Does what `enter` does, also inside another component or without an automatic step.

        A backward pass begins an automatic step.
        """
        nonlocal last
        if component == _BACKWARD:
            in_automatic_step()
        me = thread or get_ident()
        if owner != -me and owner != me and (owner != _CLOSED or trainer not in (0, me)):
            return NOT_OPENED
        now = clock()
        if by_hand and (timed or marked) and (timed or component != _COMMUNICATION):
            if opened:
                return NOT_OPENED
            counters[where], counters[where_since] = component + 1.0, now
            return _NOT_COUNTED
        if opened:
            outer = opened[-1]
            if outer >= 0 and (component != _COMMUNICATION or outer == component):
                return NOT_OPENED
            if outer == _WAIT and component == _FORWARD:  # modules that transform data
                return NOT_OPENED
            parts[outer] += now - last
        last = now
        opened.append(component - _ALL)
        counters[where] = component + 1.0
        counters[where_since] = now
        if operation:
            counters[operation_at] = operation
        return len(opened) - 1

    def leave(place: int) -> None:
        """Closes the component that `enter` opened, with all components inside it that are still open."""
        nonlocal last
        if place or not opened or owner >= _DETACHED:
            leave_anywhere(place)
            return
        now = clock()
        parts[opened[-1]] += now - last
        last = now
        opened.clear()
        counters[29] = 0.0
        counters[30] = now

    def leave_anywhere(place: int) -> None:
        """Does what `leave` does, also inside another component or without an automatic step."""
        nonlocal last
        if place >= len(opened) or place == NOT_OPENED or owner == _DETACHED:
            return
        now = clock()
        if place >= 0:
            parts[opened[-1]] += now - last
            last = now
            del opened[place:]
        counters[where] = opened[-1] % _ALL + 1.0 if opened else 0.0
        counters[where_since] = now
        if owner == _CLOSED and not opened and not asked:
            settle()

    def turns_out(component: int) -> None:
        """Counts the time since the last change for another component than the one that a hook opened."""
        if opened and opened[-1] < 0 and get_ident() in (owner, -owner):
            opened[-1] = component - _ALL

    def adds(component: int, seconds: float) -> None:
        """Counts seconds of the open step, which no hook counted, for a component; below 0: fewer."""
        if get_ident() in (owner, -owner):
            parts[component] += seconds

    def begin_wait() -> tuple[float, ...] | None:
        """Opens data_wait in an automatic step, at place 0. Returns what `so_far` returns.

        Returns None, and opens nothing, inside another component or wait, or without such a step.
        """
        nonlocal last
        if opened or owner != -get_ident() or counters[26]:  # layout.COUNTER_WAIT_SINCE
            return None
        last = now = clock()
        opened.append(-9)  # _WAIT
        counters[29] = 1.0
        counters[30] = now
        return (now, *parts)

    def counts_here() -> bool:
        """Returns whether components of this thread count, in a step or outside."""
        return get_ident() == owner or may_count_outside()

    def asks_here() -> bool:
        """Returns whether a request for data counts in this thread.

        Before training begins, threads other than the main one may read ahead for those that train.
        """
        return counts_here() and (trainer != 0 or get_native_id() == os.getpid())

    def count_device_time(component: int, seconds: float) -> None:
        """Counts seconds of a component on the device."""
        if owner != _DETACHED:
            counters[layout.COUNTER_DEVICE + component] += seconds

    def in_automatic_step(moment: float = 0.0) -> bool:
        """Returns whether this thread has an automatic step. Begins one, unless the script makes steps.

        It begins at the request for its batch, or at `moment` (0: now). Starts the run at its first use.
        """
        nonlocal owner, trainer, task, asked, began, last
        me = get_ident()
        if owner == -me:
            return True
        if by_hand or (owner == _DETACHED and not start_run()):
            return False
        if owner != _CLOSED or trainer not in (0, me):
            return False
        if not asked:
            settle()
        trainer, task = me, f"/proc/self/task/{get_native_id()}"
        if not os.path.exists(task):
            task = ""
        if phase_name != "train":
            enter_phase("train")
        owner = -me
        began = moment or clock()
        if asked:
            parts[0] += wait
            began = asked
            asked = 0.0
        if not opened:
            last = began
        counters[since] = began
        return True

    def so_far() -> tuple[float, ...] | None:
        """Returns the moment and the seconds of each component of the automatic step; None without one."""
        nonlocal last
        if owner != -get_ident():
            return None
        now = clock()
        if opened:
            parts[opened[-1]] += now - last
            last = now
        return (now, *parts)

    def open_step() -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Returns the begin of the automatic step and the end of its latest component, as `so_far` does."""
        return ((began, *_NOTHING), (last, *parts)) if owner == -get_ident() else None

    def first_batch_came() -> bool:
        """Begins this thread's automatic step again, if it is the first: it begins with its batch.

        The wait for that batch also starts workers and fills queues, so it is time before the first step.
        Returns whether it is.
        """
        nonlocal began, last
        if recorded or owner != -get_ident():
            return False
        parts[0] = 0.0
        settle()
        began = last = clock()
        counters[since] = began
        return True

    def end_automatic_step(place: int = NOT_OPENED) -> bool:
        """Closes a component as `leave` does, records the automatic step and begins the next one.

        Returns False without an automatic step.
        """
        nonlocal began, last
        if owner != -get_ident():
            leave(place)
            return False
        now = clock()
        if opened:
            parts[opened[-1]] += now - last
            last = now
            if place >= 0:
                del opened[place:]
                counters[where] = opened[-1] % _ALL + 1.0 if opened else 0.0
                counters[where_since] = now
        components = parts[:]
        parts[:] = _NOTHING
        record_automatic("train", began, now, *components)
        began = now
        counters[since] = now
        if recorded >= counters[46]:
            look()
        return True

    def drop_automatic_step() -> None:
        """Drops this thread's automatic step, because training pauses: its components count outside steps.

        Any thread may train next.
        """
        nonlocal trainer
        if owner == -get_ident():
            drop_step()
            trainer = 0

    def take_step_out(phase: str, begin: tuple[float, ...], end: tuple[float, ...]) -> float:
        """Records the time between two answers of `so_far` as a step of this phase; "": as outside a step.

        An empty `begin` is that of the open step. Returns for how many seconds it looked around.
        """
        nonlocal began
        begin = begin or (began, *_NOTHING)
        if owner != -get_ident() or not begin[0] < end[0]:
            return 0.0
        seconds, *components = (after - before for before, after in zip(begin, end, strict=True))
        for i, part in enumerate(components):
            parts[i] -= part
            if not phase:
                counters[layout.COUNTER_OUTSIDE + i] += part
        if phase:
            record_automatic(phase, begin[0], end[0], *components)
        began += seconds
        counters[since] = taken_out = began
        if recorded >= counters[46]:
            look()
        return began - taken_out

    def show_phase(phase: str) -> None:
        """Says which phase the open automatic step seems to be of, until it is decided."""
        if owner == -get_ident():
            counters[layout.COUNTER_STEP_PHASE] = float(PHASE_INDEX[phase])

    def record_automatic(phase: str, start: float, end: float, *components: float) -> None:
        """Records an automatic step within which components may be open."""
        nonlocal owner, ending
        still_open = opened[:]
        opened.clear()
        thread, owner, ending = owner, _CLOSED, True
        try:
            record_step(phase, start, end, *components)
        finally:  # also after Ctrl-C
            owner, ending = thread, False
            opened.extend(still_open)

    # -- hooks of a usual step -------------------------------------------------------------------------
    #
    # PyTorch leaves cold caches to each of them, so each is one function that does its part of the step at
    # once. Whatever is not usual it leaves to `careful`, the hook's function that knows all cases.

    def time_modules(
        original: Callable[..., Any],
        careful: Callable[..., Any],
        gradients: Callable[[], bool],
        loop: Loop,
        tracing: Callable[[], bool],
        is_known: bool,
    ) -> Callable[..., Any]:
        """Returns `Module.__call__` with forward passes counted: calls of modules outside any other module.

        Inside another module it does what `original` does, if that `is_known`: a call more would cost more.
        PyTorch's profiler reads the module from the variable `self`, and crashes without it.
        """

        def timed(self: Any, /, *arguments: Any, **keywords: Any) -> Any:
            nonlocal last, passing
            if not tracing() and not passing:
                if not (opened or owner != -get_ident() or loop.unusual or counters[26]) and gradients():
                    last = now = clock()
                    opened.append(-8)  # _FORWARD - _ALL
                    counters[29] = 2.0
                    counters[30] = now
                    try:
                        passing = True
                        return original(self, *arguments, **keywords)
                    except BaseException:
                        loop.failed = True
                        raise
                    finally:
                        passing = False
                        if opened and owner < _DETACHED:
                            now = clock()
                            parts[opened[-1]] += now - last
                            last = now
                            opened.clear()
                            counters[29] = 0.0
                            counters[30] = now
                        else:
                            leave_anywhere(0)
                if begins_pass():
                    try:
                        passing = True
                        return careful(self, *arguments, **keywords)
                    except BaseException:
                        loop.failed = True
                        raise
                    finally:
                        passing = False
            if is_known:
                if self._compiled_call_impl is not None:
                    return self._compiled_call_impl(*arguments, **keywords)
                return self._call_impl(*arguments, **keywords)
            return original(self, *arguments, **keywords)

        return timed

    def begins_pass() -> bool:
        """Returns whether a module that is called now begins a forward pass.

        It does not in other threads, in what transforms data, and in a backward pass that computes it again.
        """
        me = get_ident()
        if owner not in (-me, me) and (owner != _CLOSED or trainer not in (0, me)):
            return False
        if counters[wait_since]:
            return False
        return not opened or opened[-1] >= 0 or opened[-1] == _OPTIMIZER - _ALL

    def time_backward(
        original: Callable[..., Any],
        careful: Callable[..., Any],
        is_usual: Callable[[], bool],
        loop: Loop,
        tracing: Callable[[], bool],
    ) -> Callable[..., Any]:
        """Returns `original` with its calls counted as backward passes."""

        def timed(*arguments: Any, **keywords: Any) -> Any:
            nonlocal last
            if tracing():
                return original(*arguments, **keywords)
            if opened or owner != -get_ident() or loop.unusual or not is_usual():
                return careful(*arguments, **keywords)
            last = now = clock()
            opened.append(-7)  # _BACKWARD - _ALL
            counters[29] = 3.0
            counters[30] = now
            try:
                return original(*arguments, **keywords)
            finally:
                if opened and owner < _DETACHED:
                    now = clock()
                    parts[opened[-1]] += now - last
                    last = now
                    opened.clear()
                    counters[29] = 0.0
                    counters[30] = now
                else:
                    leave_anywhere(0)

        return timed

    def time_batches(
        original: Callable[[Any], Any],
        careful: Callable[[Any], Any],
        stopped: Callable[[], None],
        gradients: Callable[[], bool],
        loop: Loop,
        tracing: Callable[[], bool],
    ) -> Callable[[Any], Any]:
        """Returns the `__next__` of iterators with its waits timed: usual is the first batch of a step."""

        def timed(iterator: Any) -> Any:
            nonlocal last
            if tracing():
                return original(iterator)
            waits = iterator.__dict__.get("_stepscope")
            if (
                opened
                or waits is None
                or not waits.is_usual
                or loop.waits is not None
                or owner != -get_ident()
                or loop.unusual
                or loop.compiled is not None
                or counters[26]  # layout.COUNTER_WAIT_SINCE
            ):
                return careful(iterator)
            last = asked = clock()
            loop.waits, loop.asked, loop.evaluated = waits, (asked, *parts), not gradients()
            loop.trained = loop.failed = False
            opened.append(-9)  # _WAIT
            counters[29] = 1.0
            counters[30] = asked
            try:
                batch = original(iterator)
            except BaseException:
                stopped()
                raise
            if opened and owner < _DETACHED:
                got = clock()
                parts[opened[-1]] += got - last
                last = got
                opened.clear()
                counters[29] = 0.0
                counters[30] = got
                loop.wait = (asked, got, None)
            else:
                leave_anywhere(0)
            return batch

        return timed

    def time_steps(
        before_carefully: Callable[..., Any],
        after_carefully: Callable[[Any], None],
        steps: Any,
        careful_every: int,
        loop: Loop,
        tracing: Callable[[], bool],
    ) -> tuple[Callable[..., Any], Callable[..., None]]:
        """Returns what an optimizer calls before and after its step: usual is that of the elected one."""
        begun, code = _OPTIMIZER - _ALL, _OPTIMIZER + 1.0

        def before(optimizer: Any, arguments: Any = (), keywords: Any = None) -> Any:
            nonlocal last
            if tracing():
                return None
            if (
                opened
                or keywords  # a closure
                or len(arguments) > 1
                or owner != -get_ident()
                or loop.unusual
                or steps.place != NOT_OPENED
                or steps.elected() is not optimizer
            ):
                return before_carefully(optimizer, arguments, keywords)
            steps.place = 0
            last = now = clock()
            opened.append(begun)
            counters[29] = code
            counters[30] = now
            return None

        def after(optimizer: Any, *_: object) -> None:
            nonlocal owner, began, last, seconds, squares, own_seconds, own_squares, in_bucket, recorded
            nonlocal ring_place, t0, t1, t2, t3, t4, t5, t6, t7, t8
            if tracing():
                after_carefully(optimizer)
                return
            waits, ended, me = loop.waits, steps.ended + 1, -get_ident()
            counts = waits.get("train") if waits is not None else None
            now = clock()
            duration = now - began
            if (
                owner != me
                or (waits is not None and (counts is None or loop.wait is None))
                or loop.undecided
                or loop.unusual
                or steps.place
                or steps.inner
                or steps.others
                or steps.rivals
                or steps.elected() is not optimizer
                or not ended % careful_every
                or len(opened) != 1
                or phase_name != "train"
                or not low < duration <= high
            ):
                after_carefully(optimizer)
                return
            if counts is not None and loop.wait is not None:
                counts.count(*loop.wait)
                loop.waits = loop.wait = None
            steps.ended, steps.place = ended, NOT_OPENED
            parts[opened[-1]] += now - last  # from here on as record_step, without its checks
            a, b, c, d, e, f, g, h, i = parts
            owner = _BUSY
            try:
                opened.clear()
                parts[0] = parts[1] = parts[2] = parts[3] = 0.0  # faster than a slice
                t0 += a
                t1 += b
                t2 += c
                t3 += d
                own = duration
                if e or f or g or h or i:  # in few steps
                    parts[4:] = _NOTHING[4:]
                    t4 += e
                    t5 += f
                    t6 += g
                    t7 += h
                    t8 += i
                    own = duration - e if e < duration else 0.0
                index = recorded + 1.0
                total = seconds + duration
                square = squares + duration * duration
                # fmt: off
                pack(
                    memory, ring_place, index, began, duration, phase_number, others, total, square,
                    t0, t1, t2, t3, t4, t5, t6, t7, t8,
                )
                # fmt: on
                counters[bucket] = in_bucket = in_bucket + 1.0
                counters[41] = own_seconds = own_seconds + own  # layout.COUNTER_OWN
                counters[42] = own_squares = own_squares + own * own
                counters[0] = recorded = index
                seconds = total
                squares = square
                ring_place += record_bytes
                if ring_place == ring_end:
                    ring_place = first_place
                began = last = now
                counters[29] = 0.0  # no component is open,
                counters[30] = counters[3] = now  # and the next step has begun
            finally:
                owner = me
            if index >= counters[46]:
                look()

        return before, after

    # -- once in a while -------------------------------------------------------------------------------

    def look() -> None:
        """Looks around. The time that it takes is in no step: an automatic step begins later by it."""
        nonlocal began, last
        before = clock()
        if opened:
            parts[opened[-1]] += before - last
        counters[layout.COUNTER_LOOK_AT] = look_around(phase_name, recorded - others, recorded)
        last = clock()
        if owner == -get_ident():
            began += last - before
            counters[since] = began

    def may_count_outside() -> bool:
        """Returns whether this is the training thread between two steps, or in an automatic one.

        Starts the run at the first use.
        """
        if owner == _DETACHED and not start_run():
            return False
        me = get_ident()
        return owner == -me or (owner == _CLOSED and trainer in (0, me)) or trainer_has_ended()

    def trainer_has_ended() -> bool:
        """Forgets a thread that trained and has ended, with its open step: another one may train now."""
        nonlocal trainer, task
        if by_hand or owner not in (_CLOSED, -trainer) or not task or os.path.exists(task):
            return False
        drop_step()
        trainer, task = 0, ""
        return True

    def in_step() -> bool:
        """Returns whether this thread has a step open."""
        return get_ident() == owner

    def drop_step() -> None:
        """Drops the open step, of this or another thread."""
        nonlocal owner
        if opened:
            close_components(clock())
        settle()
        counters[since] = 0.0
        owner = _CLOSED

    def discard_step() -> None:
        """Drops this thread's open step: its components count as time outside a step."""
        if get_ident() == owner:
            drop_step()

    def check(start: float, end: float) -> None:
        """Raises ValueError for a step that a reader would refuse."""
        if not 0.0 <= end - start < layout.LONGEST_STEP or not abs(start) <= layout.LATEST:
            raise ValueError(f"a step cannot start at {start} and end at {end}")

    def reject(component: float) -> None:
        """Raises ValueError for a component, after the totals are again those of the last record."""
        nonlocal t0, t1, t2, t3, t4, t5, t6, t7, t8
        t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = t8 = 0.0
        if recorded:
            last = (ring_place if ring_place > first_place else ring_end) - record_bytes
            t0, t1, t2, t3, t4, t5, t6, t7, t8 = _RECORD.unpack_from(memory, last)[7:]
        raise ValueError(
            f"{component} seconds in a component of a step: use less than {layout.LONGEST_STEP:g}"
        )

    def prepare(phase: str, timed_wait: float | None = None) -> bool:
        """Prepares a step of this phase and excludes other threads. Returns whether it can be recorded.

        `timed_wait` is the data_wait of a step that its caller timed.
        """
        nonlocal owner, by_hand, timed, asked
        if phase not in PHASE_INDEX:
            raise unknown_phase(phase)
        if owner == _DETACHED and not start_run():
            return False
        if not ending:
            by_hand = True
            timed = timed or timed_wait is not None
        if owner == get_ident():  # begun and never ended
            discard_step()
        elif owner < _BUSY:  # automatic
            drop_step()
        if owner != _CLOSED:  # another thread's step is open
            return False
        owner = _BUSY
        try:
            if opened:  # a component around the step: counts its time so far
                close_components(clock())
                if not asked:
                    settle()
            if asked and timed_wait is not None and timed_wait > 0.0:  # instead of the wait that was watched
                asked = 0.0
                settle()
            elif asked and timed_wait is not None:
                drop_wait()
            if phase != phase_name:
                enter_phase(phase)
        except BaseException:  # Ctrl-C, at this very moment
            owner = _CLOSED
            raise
        return True

    def enter_phase(name: str) -> None:
        """Stores the totals of the phase so far and loads the totals of this phase."""
        nonlocal phase_name, phase_number, others, seconds, squares, low, high
        nonlocal own_at, own_seconds, own_squares, at_entry
        if phase_name:
            at = PHASE_INDEX[phase_name]
            totals = t0, t1, t2, t3, t4, t5, t6, t7, t8
            for i, total in enumerate(totals):
                counters[layout.COUNTER_PHASE_COMPONENTS + at * _ALL + i] += total - at_entry[i]
            at_entry = totals
            counters[layout.COUNTER_PHASE_STEPS + at] = recorded - others
            counters[layout.COUNTER_PHASE_SECONDS + at] = seconds
            counters[layout.COUNTER_PHASE_SQUARES + at] = squares
        else:
            first_step()
        at = PHASE_INDEX[name]
        others = recorded - counters[layout.COUNTER_PHASE_STEPS + at]
        seconds = counters[layout.COUNTER_PHASE_SECONDS + at]
        squares = counters[layout.COUNTER_PHASE_SQUARES + at]
        own_at = layout.COUNTER_OWN if name == "train" else layout.COUNTER_OWN_OTHERS
        own_seconds, own_squares = counters[own_at], counters[own_at + 1]
        phase_name, phase_number = name, float(at)
        counters[layout.COUNTER_STEP_PHASE] = phase_number
        low = high = _NEVER

    def find_bucket(start: float, duration: float) -> None:
        nonlocal low, high, bucket, in_bucket, looks
        if looks:
            looks = 0 if name_devices() else looks - 1
        if not recorded:
            counters[layout.COUNTER_FIRST_STEP] = start
        i = bisect_left(STEP_BOUNDS, duration)
        low = STEP_BOUNDS[i - 1] if i else 0.0
        high = STEP_BOUNDS[i] if i < len(STEP_BOUNDS) else layout.LONGEST_STEP
        bucket = layout.COUNTER_STEP_HISTOGRAM + int(phase_number) * layout.STEP_BUCKETS + i
        in_bucket = counters[bucket]

    def close_components(now: float) -> None:
        nonlocal last
        parts[opened[-1]] += now - last
        last = now
        opened.clear()
        unknown.clear()
        counters[where] = 0.0
        counters[where_since] = now

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

    def attach(ledger: mmap.mmap) -> None:
        """Records into this (new) ledger from now on."""
        nonlocal memory, counters, owner, trainer, task, asked, phase_name, recorded, ring_place, looks
        nonlocal by_hand, marked, timed, passing, at_entry
        nonlocal t0, t1, t2, t3, t4, t5, t6, t7, t8
        memory = ledger
        counters = memoryview(ledger)[layout.COUNTERS_AT : layout.WORKERS_AT].cast("d")
        opened.clear()
        unknown.clear()
        parts[:] = _NOTHING
        t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = t8 = 0.0
        at_entry = _NOTHING
        by_hand = marked = timed = passing = False
        asked = recorded = 0.0
        trainer, task = 0, ""
        looks = DEVICE_LOOKS
        phase_name = ""
        ring_place = first_place
        counters[layout.COUNTER_LOOK_AT] = layout.NEVER
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

    return Recorder(locals())
