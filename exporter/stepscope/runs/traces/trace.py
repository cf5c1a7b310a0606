"""Summarises a trace: its steps, what its devices did and waited for, operators and collectives.

Slices of a step: each moment counts once, for the first of these that runs on any stream or thread: a
kernel, a memory copy, communication, a call of the runtime, data loading, another operator on the CPU,
other. So no kernel and no copy overlaps with communication, and the slices sum to the wall time. The order
is that of the PyTorch profiler's TensorBoard plugin (github.com/pytorch/kineto, tb_plugin).

A device is idle when none of its streams runs anything. Until the host has launched the work that ends the
gap, the device waits for the host; after that, for the launch. (HolisticTraceAnalysis does this per
stream, which counts a stream without work as idle.) While it waits for the host, the first of these is the
reason: the profiler writes its own buffers, the host waits for data, it is in a collective, anything else.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.common.errors import UserError
from stepscope.runs.model import (
    COPIES,
    IDLE_REASONS,
    PICTURE,
    DeviceMemory,
    DeviceTime,
    PassTime,
    StepPicture,
    TransferTime,
    summed_transfers,
)
from stepscope.runs.traces.collectives import Collective
from stepscope.runs.traces.events import (
    ANNOTATION,
    COPY,
    KERNEL,
    MARKER,
    MICRO,
    NONE,
    OPERATOR,
    OVERHEAD,
    PYTHON,
    RUNTIME,
    Trace,
    launches,
)
from stepscope.runs.traces.host import calls_of, host_times, summed_host, synchronising, without_calls
from stepscope.runs.traces.intervals import Intervals, Numbers
from stepscope.runs.traces.moments import Places, held_over, memory_of, places_of
from stepscope.runs.traces.passes import NODE, UPDATE, passes_of
from stepscope.runs.traces.repetition import repetition
from stepscope.runs.traces.rows import DEVICE

# The profiler's own marker of a step, and of a wait on a torch DataLoader.
STEP = re.compile(rf"{MARKER}(\d{{1,18}})")
LOADER = ("enumerate(DataLoader)#", "IteratorGetNext")  # PyTorch, TensorFlow
MOST_SHAPES = 5  # of an operator: the sum of several traces has the most expensive one
SLICES = ("kernel", "memory copy", "communication", "runtime", "data loading", "other CPU", "other")
# Names of copies, by COPIES: "Memcpy HtoD (Pageable -> Device)" of PyTorch and Nsight, "MemcpyH2D" of XLA,
# "CopyHostToDevice" of ROCm, "zeCommandListAppendMemoryCopy(M2D)" of Level Zero, whose M is pageable memory.
_COPIES = {
    "fill": re.compile(r"mem_?set|fill", re.IGNORECASE),
    "pageable": re.compile(r"H(ost)?_?(to|2)_?D.*\(pageable ->|\(M2D", re.IGNORECASE),
    "to device": re.compile(r"H(ost)?_?(to|2)_?D", re.IGNORECASE),
    "to host": re.compile(r"D(evice)?_?(to|2)_?[HM]", re.IGNORECASE),
    "in device": re.compile(r"[DP](evice|eer)?_?(to|2)_?[DP]", re.IGNORECASE),
}
Rows = NDArray[np.bool_]


@dataclass(frozen=True)
class StepTime:
    """One step, or the whole trace if its steps are not known."""

    number: int
    start: float  # seconds since the epoch
    seconds: float
    launched: tuple[float, float]  # when its host began and ended it; seconds since the epoch
    slices: dict[str, float]  # seconds by SLICES; their sum is `seconds`
    components: dict[str, float]  # seconds; of the host whatever else ran; waits while no device works


class NamedTime(NamedTuple):
    """All events of one name; seconds."""

    device: str  # "cpu", "gpu0"
    name: str
    calls: int
    seconds: float
    self_seconds: float  # excluding operators that it called; for collectives: the exposed time


@dataclass(frozen=True)
class TraceSummary:
    steps: tuple[StepTime, ...]
    # "profiler", "optimizer", or the event that repeats. "": not known, `steps` is the whole trace.
    steps_from: str
    devices: tuple[DeviceTime, ...]
    operators: tuple[NamedTime, ...]  # on the CPU
    kernels: tuple[NamedTime, ...]
    collectives: tuple[NamedTime, ...]
    transfers: tuple[TransferTime, ...]
    loading: tuple[NamedTime, ...]
    places: Places  # of the operators on the CPU
    shapes: dict[str, dict[str, float]]  # self seconds by operator on the CPU and shapes of its inputs
    flops: float  # of the operators in the steps; NaN if shapes are not recorded, or not of all
    picture: StepPicture | None  # of the step in the middle, without its node and rank
    memory: tuple[DeviceMemory, ...]
    passes: tuple[PassTime, ...]
    overlap: float  # seconds that marks of steps had with the next ones; none is in `steps`

    @property
    def marked(self) -> bool:
        """Returns whether the steps are known."""
        return bool(self.steps_from)


def summarise(trace: Trace) -> TraceSummary:
    """Returns the summary, in time and memory linear in the events."""
    kernels = trace.of(KERNEL) & ~trace.is_collective
    loads = trace.named(lambda name: name.startswith(LOADER)) & ~trace.of(PYTHON)
    operators = trace.of(OPERATOR) & ~loads & ~trace.is_collective
    steps_from, marks = _marks(trace)
    done = _with_their_work(trace, marks, kernels)
    if done is None:
        steps_from, done = "", _whole(trace)
        marks = done
    chosen = np.flatnonzero(operators)
    calls = calls_of(trace.starts[chosen], trace.ends[chosen], trace.thread_ids[chosen])
    self_times = without_calls(calls.parents, calls.ends - trace.starts[chosen])
    return TraceSummary(
        steps=tuple(_steps(trace, marks, done, kernels, loads, operators)),
        steps_from=steps_from,
        devices=tuple(_devices(trace, loads)),
        operators=tuple(_named(trace, operators, self_times)),
        kernels=tuple(_named(trace, kernels)),
        collectives=tuple(_collectives(trace)),
        transfers=transfers(trace.collectives),
        loading=tuple(_named(trace, loads)),
        places=places_of(trace, operators),
        shapes=_shapes(trace, operators, self_times),
        flops=_flops(trace, marks),
        picture=_picture(trace, done, loads, operators) if steps_from else None,
        memory=_memory(trace, marks if steps_from else None, operators),
        passes=passes_of(trace, float(marks.ends[-1])),
        overlap=marks.overlap * MICRO,
    )


def intervals(trace: Trace, rows: Rows | NDArray[np.int64]) -> Intervals:
    """Returns the time in which at least one of the events runs."""
    return Intervals.union(trace.starts[rows], trace.ends[rows])


class _Marks(NamedTuple):
    """The steps of a trace; microseconds since its origin."""

    numbers: list[int]
    starts: Numbers
    ends: Numbers
    overlap: float = 0.0  # that marks had with the next ones
    by_host: bool = True  # which runs ahead of its devices


def _marks(trace: Trace) -> tuple[str, _Marks]:
    """Returns the steps, and what shows them: marks of the profiler, calls of the optimizer, or repetition.

    A step of an optimizer is from the end of one call to the end of the next.
    """
    host = trace.of(ANNOTATION, OPERATOR)
    rows = np.flatnonzero(host & trace.named(STEP.fullmatch))
    if len(rows):
        by_host = trace.threads[trace.thread_ids[rows[0]]].process != DEVICE
        return "profiler", _in_turn(trace, rows)._replace(by_host=by_host)
    calls = np.flatnonzero(host & trace.named(lambda name: name.startswith(UPDATE)))
    if len(calls):
        same = calls[trace.name_ids[calls] == trace.name_ids[calls[0]]]
        ends = intervals(trace, same).ends  # a call that contains others, as of its base class, is one
        if len(ends) > 1:
            return "optimizer", _Marks(list(range(1, len(ends))), ends[:-1], ends[1:])
    repeated = repetition(trace)
    if repeated is not None:
        moments, by_host = repeated.moments, bool(host.any())
        numbers = list(range(1, len(moments)))
        return repeated.name, _Marks(numbers, moments[:-1], moments[1:], by_host=by_host)
    return "", _whole(trace)


def _in_turn(trace: Trace, rows: NDArray[np.int64]) -> _Marks:
    """Returns marked steps of which none is twice, and of which each ends before the next one begins.

    Raises UserError if PyTorch's steps, which one profiler numbers, do not rise with time.
    """
    marks = zip(
        trace.name_ids[rows].tolist(), trace.starts[rows].tolist(), trace.ends[rows].tolist(), strict=True
    )
    names, starts, ends = zip(*dict.fromkeys(marks), strict=True)
    numbers = [int(trace.names[name].partition("#")[2]) for name in names]
    for number, following in pairwise(numbers):
        if following < number and trace.writer == "pytorch":
            raise UserError(
                f"{trace.path}: step {number} begins before step {following}, so the clock was set back "
                "meanwhile; record the trace again"
            )
    until = np.minimum(ends, np.append(starts[1:], np.inf))
    return _Marks(numbers, np.array(starts), until, float((np.array(ends) - until).sum()))


def _whole(trace: Trace) -> _Marks:
    ends = trace.ends[~trace.of(PYTHON)].max(initial=0.0, keepdims=True)
    return _Marks([0], np.zeros(1), ends, by_host=False)


def _picture(trace: Trace, marks: _Marks, loads: Rows, operators: Rows) -> StepPicture:
    middle = len(marks.numbers) // 2
    start, end = float(marks.starts[middle]), float(marks.ends[middle])
    edges = np.linspace(start, end, PICTURE + 1)
    on_host = (trace.device_of_thread == "cpu")[trace.thread_ids]
    backward, optimizer = _backward_and_optimizer(trace, operators)
    host = {
        "data_wait": loads,
        "communication": trace.is_collective & on_host,
        "backward": backward,
        "optimizer": optimizer,
        "operators": operators & on_host,
    }
    gpu = {
        "compute": trace.of(KERNEL) & ~trace.is_collective,
        "communication": trace.is_collective & ~on_host,
        "copy": trace.of(COPY),
    }
    lanes = {}
    for device, parts in (("cpu", host), ("gpu", gpu)):
        shown = slices((intervals(trace, rows) for rows in parts.values()), edges[:-1], edges[1:])[:-1]
        percents = np.rint(100 * shown / max(edges[1] - edges[0], MICRO)).astype(np.uint8)
        if percents.any():
            lanes[device] = {part: row.tobytes() for part, row in zip(parts, percents, strict=True)}
    return StepPicture("", 0, marks.numbers[middle], (end - start) * MICRO, lanes)


def _memory(trace: Trace, marks: _Marks | None, operators: Rows) -> tuple[DeviceMemory, ...]:
    found = memory_of(trace, operators, len(marks.numbers) if marks is not None else 0)
    if marks is None:
        return found
    start, end = float(marks.starts[0]), float(marks.ends[-1])
    edges = np.linspace(start, end, PICTURE + 1)
    backward, optimizer = (intervals(trace, rows) for rows in _backward_and_optimizer(trace, operators))
    parts = {"optimizer": optimizer, "backward": backward}
    places = 100 * (marks.starts - start) / max(end - start, MICRO)
    begins = tuple(zip(marks.numbers, places.tolist(), strict=True))
    return tuple(
        replace(each, held=held_over(trace.allocations, device, edges, parts), begins=begins)
        for device, each in enumerate(found)
    )


def _backward_and_optimizer(trace: Trace, operators: Rows) -> tuple[Rows, Rows]:
    backward = operators & trace.named(lambda name: name.startswith(NODE))
    return backward, trace.named(lambda name: name.startswith(UPDATE)) & ~trace.of(PYTHON)


def _steps(
    trace: Trace, marks: _Marks, done: _Marks, kernels: Rows, loads: Rows, operators: Rows
) -> Iterable[StepTime]:
    starts, ends = done.starts, done.ends
    launched = (trace.origin + np.column_stack((marks.starts, marks.ends)) * MICRO).tolist()
    waiting = intervals(trace, loads).minus(intervals(trace, trace.of(KERNEL, COPY)))
    groups = (kernels, trace.of(COPY), trace.is_collective, trace.of(RUNTIME), loads, operators)
    spent = slices((intervals(trace, rows) for rows in groups), starts, ends)
    backward, optimizer = (intervals(trace, rows) for rows in _backward_and_optimizer(trace, operators))
    components = {
        "data_wait": waiting.within(starts, ends),
        "backward": backward.within(starts, ends),
        "optimizer": optimizer.within(starts, ends),
        "communication": spent[SLICES.index("communication")],
    }
    for index, start in enumerate(starts.tolist()):
        yield StepTime(
            number=marks.numbers[index],
            start=trace.origin + start * MICRO,
            seconds=float(ends[index] - starts[index]) * MICRO,
            launched=tuple(launched[index]),
            slices=dict(zip(SLICES, (spent[:, index] * MICRO).tolist(), strict=True)),
            components={name: float(values[index]) * MICRO for name, values in components.items()},
        )


def slices(groups: Iterable[Intervals], starts: Numbers, ends: Numbers) -> Numbers:
    """Returns (groups + 1, windows): what each group adds to the previous ones, and the rest."""
    together = Intervals.union(np.empty(0), np.empty(0))
    covered = [np.zeros(len(starts))]
    for group in groups:
        together |= group
        covered.append(together.within(starts, ends))
    covered.append(ends - starts)
    return np.maximum(np.diff(np.array(covered), axis=0), 0.0)


def _devices(trace: Trace, loads: Rows) -> Iterable[DeviceTime]:
    """Yields what each device did, and what it waited for."""
    on_host = trace.device_of_thread[trace.thread_ids] == "cpu"
    causes = (
        intervals(trace, trace.of(OVERHEAD)),
        intervals(trace, loads),
        intervals(trace, trace.is_collective & on_host),
    )
    works = np.unique(trace.thread_ids[trace.of(KERNEL, COPY) & (trace.ends > trace.starts)])
    for device in sorted(set(trace.device_of_thread[works].tolist())):
        rows = _work_of(trace, device)
        busy = intervals(trace, rows)
        computing = intervals(trace, rows & trace.of(KERNEL) & ~trace.is_collective)
        span = busy.starts[:1], busy.ends[-1:]
        did = slices((computing, intervals(trace, rows & trace.of(COPY)), busy), *span)[:, 0]
        compute, copies, communication, idle = (did * MICRO).tolist()
        waits = _waits(trace, rows, busy.gaps())
        reasons = slices(causes, waits.host.starts, waits.host.ends).sum(axis=1)
        yield DeviceTime(
            device,
            compute,
            copies,
            communication,
            idle,
            dict(zip(IDLE_REASONS, (np.append(reasons, waits.others) * MICRO).tolist(), strict=True)),
            host=host_times(trace, _by_thread(waits, causes)),
            synchronising=summed_host(
                synchronising(trace, thread) for thread in np.unique(waits.threads).tolist()
            ),
            copies=_copies(trace, rows & trace.of(COPY)),
        )


def _copies(trace: Trace, rows: Rows) -> dict[str, float]:
    """Returns the seconds of copies by COPIES, which their names tell."""
    names, name = np.unique(trace.name_ids[rows], return_inverse=True)
    seconds = np.bincount(name, (trace.ends - trace.starts)[rows] * MICRO, minlength=len(names))
    found: dict[str, float] = {}
    for at, of_name in zip(names.tolist(), seconds.tolist(), strict=True):
        kind = next((kind for kind, named in _COPIES.items() if named.search(trace.names[at])), "unknown")
        found[kind] = found.get(kind, 0.0) + of_name
    return found


def _shapes(trace: Trace, operators: Rows, self_times: Numbers) -> dict[str, dict[str, float]]:
    """Returns the shapes with most self time of each operator."""
    if not len(trace.shape_ids):
        return {}
    shapes, names = trace.shape_ids[operators].astype(np.int64), trace.name_ids[operators]
    known = shapes != NONE
    keys, key = np.unique(names[known] * len(trace.shapes) + shapes[known], return_inverse=True)
    seconds = np.bincount(key, self_times[known] * MICRO, minlength=len(keys))
    found: dict[str, dict[str, float]] = {}
    for code, spent in sorted(zip(keys.tolist(), seconds.tolist(), strict=True), key=lambda pair: -pair[1]):
        of_operator = found.setdefault(trace.names[code // len(trace.shapes)], {})
        if len(of_operator) < MOST_SHAPES:
            of_operator[trace.shapes[code % len(trace.shapes)]] = spent
    return found


def flops_per_step(summaries: Iterable[TraceSummary]) -> float | None:
    """Returns the operations in a step of the traces that know them; None if none does."""
    known = [each for each in summaries if each.marked and each.flops > 0]
    steps = sum(len(each.steps) for each in known)
    return sum(each.flops for each in known) / steps if steps else None


def _flops(trace: Trace, marks: _Marks) -> float:
    """Returns the operations in the steps. An operator may call another one that is known: it counts once."""
    rows = np.flatnonzero(trace.flops)
    if not len(rows):
        return nan
    starts = trace.starts[rows]
    calls = calls_of(starts, trace.ends[rows], trace.thread_ids[rows])
    step = np.searchsorted(marks.starts, starts, "right") - 1
    counts = (calls.parents == NONE) & (step >= 0) & (starts < marks.ends[step])
    return float(trace.flops[rows[counts]].sum())


def total_of(captures: Sequence[DeviceTime]) -> DeviceTime:
    """Returns the sum of several captures of one device."""
    if len(captures) == 1:
        return captures[0]
    parts = ("compute", "copy", "communication", "idle")
    return replace(
        captures[0],
        **{part: sum(getattr(each, part) for each in captures) for part in parts},
        idle_for={reason: sum(each.idle_for[reason] for each in captures) for reason in IDLE_REASONS},
        host=summed_host(each.host for each in captures),
        synchronising=summed_host(each.synchronising for each in captures),
        copies={kind: sum(each.copies.get(kind, 0.0) for each in captures) for kind in COPIES},
    )


class _Waits(NamedTuple):
    """When a device waited for the host, and the thread that launched then."""

    host: Intervals
    threads: NDArray[np.int32]
    others: tuple[float, float]  # microseconds for which it waited for launches, and for what is not known


def _waits(trace: Trace, rows: Rows, gaps: Intervals) -> _Waits:
    events = np.flatnonzero(rows)
    enders = events[np.searchsorted(trace.starts[events], gaps.ends)]  # the first event after each gap
    calls = launches(trace, trace.correlations[enders])
    known = calls != NONE
    until = np.where(known, np.clip(trace.ends[calls], gaps.starts, gaps.ends), gaps.starts)
    lengths = gaps.ends - until
    others = float(lengths[known].sum()), float(lengths[~known].sum())
    waited = until > gaps.starts
    return _Waits(Intervals(gaps.starts[waited], until[waited]), trace.thread_ids[calls[waited]], others)


def _by_thread(waits: _Waits, causes: Iterable[Intervals]) -> dict[int, Intervals]:
    """Returns the waits for each thread, without the moments that have another cause."""
    found = {}
    for thread in np.unique(waits.threads).tolist():
        chosen = waits.threads == thread
        rest = Intervals(waits.host.starts[chosen], waits.host.ends[chosen])
        for cause in causes:
            rest = rest.minus(cause)
        found[thread] = rest
    return found


def _work_of(trace: Trace, device: str) -> Rows:
    on_device: Rows = (trace.device_of_thread == device)[trace.thread_ids]
    on_device &= trace.of(KERNEL, COPY)
    on_device &= trace.ends > trace.starts
    return on_device


def _collectives(trace: Trace) -> Iterable[NamedTime]:
    """Yields the time per device and operation; no kernel and no copy overlaps with `self_seconds`."""
    found: dict[tuple[str, str], list[Collective]] = {}
    for call in trace.collectives:
        found.setdefault((call.device, call.operation), []).append(call)
    busy = {
        device: intervals(trace, _work_of(trace, device) & ~trace.is_collective)
        for device in {device for device, _ in found}
    }
    for (device, operation), calls in sorted(found.items()):
        times = np.array([(call.start, call.end) for call in calls])
        exposed = Intervals.union(times[:, 0], times[:, 1]).minus(busy[device]).length
        total = float((times[:, 1] - times[:, 0]).sum())
        yield NamedTime(device, operation, len(calls), total * MICRO, exposed * MICRO)


def _named(trace: Trace, rows: Rows, self_times: Numbers | None = None) -> Iterable[NamedTime]:
    """Yields the sums by device and name, the longest first."""
    times = (trace.ends - trace.starts)[rows]
    own = times if self_times is None else self_times
    devices, device = np.unique(trace.device_of_thread, return_inverse=True)
    keys, key = np.unique(
        device[trace.thread_ids[rows]] * len(trace.names) + trace.name_ids[rows], return_inverse=True
    )
    calls, seconds, own_seconds = (
        np.bincount(key, weights, minlength=len(keys)) for weights in (None, times * MICRO, own * MICRO)
    )
    sums = zip(keys.tolist(), calls.tolist(), seconds.tolist(), own_seconds.tolist(), strict=True)
    found = (
        NamedTime(str(devices[code // len(trace.names)]), trace.names[code % len(trace.names)], *totals)
        for code, *totals in sums
    )
    return sorted(found, key=lambda item: (-item.self_seconds, item.device, item.name))


def _with_their_work(trace: Trace, marks: _Marks, kernels: Rows) -> _Marks | None:
    """Returns when the work was done that was launched before each step of a host, and until its end.

    The stream that computes longest has the work: others may run on into later steps. Returns None if the
    work ran on for longer than a step, and the trace does not say who launched it.
    """
    if not marks.by_host:
        return marks
    spent = np.bincount(trace.thread_ids[kernels], (trace.ends - trace.starts)[kernels], minlength=1)
    work = np.flatnonzero(trace.of(KERNEL, COPY) & (trace.thread_ids == spent.argmax()))
    calls = launches(trace, trace.correlations[work])
    known = calls != NONE
    if not known.any():
        works = work if trace.writer == "pytorch" else ~trace.of(PYTHON)
        late = trace.ends[works].max(initial=0.0) - marks.ends[-1]
        return None if late > (marks.ends[-1] - marks.starts[0]) / len(marks.ends) else marks
    launched, finished = trace.starts[calls[known]], trace.ends[work[known]]
    order = np.argsort(launched, kind="stable")
    latest = np.append(-np.inf, np.maximum.accumulate(finished[order]))
    starts, ends = (
        np.maximum(moments, latest[np.searchsorted(launched[order], moments)])
        for moments in (marks.starts, marks.ends)
    )
    return marks._replace(starts=starts, ends=ends)


def transfers(calls: Iterable[Collective]) -> tuple[TransferTime, ...]:
    """Returns the collectives of one rank. None and "" stand for what the trace lacks."""
    return summed_transfers(
        TransferTime(
            operation=call.operation,
            group=call.about.description or call.about.group,
            size=call.about.size or len(call.about.ranks) or None,
            dtype=call.about.dtype,
            bytes=call.about.bytes,
            calls=1,
            seconds=(call.end - call.start) * MICRO,
            shortest=(call.end - call.start) * MICRO,
        )
        for call in calls
    )
