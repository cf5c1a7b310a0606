"""What a trace tells: where each step's time went, what devices waited for, operators, collectives.

Slices of a step: each moment counts once, for the first of these that runs at it, whatever the stream or
thread: a kernel, a memory copy, communication, a call of the CUDA runtime, data loading, another operator
on the CPU, other. So communication is what no kernel and no copy hides, and the slices sum to the wall
time. The order is that of the PyTorch profiler's TensorBoard plugin (github.com/pytorch/kineto, tb_plugin).

Idle time of a device: no stream of it runs anything. Until the host begins to launch what ends the gap,
the device waits for the host; from then on it waits for the launch to arrive. (HolisticTraceAnalysis asks the
same of each stream by itself, which counts a stream that has nothing to do as idle.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trainwatch.runs.traces.intervals import Intervals, Numbers, empty
from trainwatch.runs.traces.trace import (
    BACKWARD,
    DEVICE,
    LOADER,
    MEMORY_COPY,
    OPTIMIZER,
    RUNTIME,
    STEP,
    Event,
    Trace,
    collective,
    union,
)

SLICES = ("kernel", "memory copy", "communication", "runtime", "data loading", "other CPU", "other")
MICRO = 1e-6


@dataclass(frozen=True)
class StepTime:
    """One step: the profiler's own (ProfilerStep#n), or the whole trace where it marked none."""

    number: int
    start: float  # seconds since the epoch
    seconds: float
    slices: dict[str, float]  # seconds by SLICES; their sum is `seconds`
    data_wait: float  # seconds in which the loader was asked, whatever else ran
    backward: float
    optimizer: float


@dataclass(frozen=True)
class DeviceTime:
    """One device from the first to the last thing that it ran, all streams together; seconds."""

    device: str  # "gpu0"
    busy: float
    idle: float
    host_wait: float  # of it: the host had not begun to launch what came next
    launch_wait: float  # of it: launched, but not yet running
    not_known: float  # of it: the trace does not tell who launched what came next


@dataclass(frozen=True)
class NamedTime:
    """All events of one name; seconds."""

    device: str  # "cpu", "gpu0"
    name: str
    calls: int
    seconds: float
    self_seconds: float  # without the operators that it called; for collectives: while nothing hid them


@dataclass(frozen=True)
class TraceSummary:
    steps: tuple[StepTime, ...]
    marked: bool  # whether the trace marks steps; if not, `steps` is the whole trace
    devices: tuple[DeviceTime, ...]
    operators: tuple[NamedTime, ...]  # on the CPU
    kernels: tuple[NamedTime, ...]
    collectives: tuple[NamedTime, ...]
    loading: tuple[NamedTime, ...]


def summarise(trace: Trace) -> TraceSummary:
    """All of it; takes time and memory linear in the events."""
    kernels = trace.select(lambda event: event.category == "kernel" and collective(event) is None)
    loads = trace.select(lambda event: event.name.startswith(LOADER))
    operators = trace.select(lambda event: event.category == "cpu_op" and not _is_special(event))
    return TraceSummary(
        steps=tuple(_steps(trace, kernels, loads, operators)),
        marked=any(_step_number(event) is not None for event in trace.events),
        devices=tuple(_devices(trace)),
        operators=tuple(_named(operators, _self_times(operators))),
        kernels=tuple(_named(kernels, [event.end - event.start for event in kernels])),
        collectives=tuple(_collectives(trace)),
        loading=tuple(_named(loads, [event.end - event.start for event in loads])),
    )


def _is_special(event: Event) -> bool:
    return event.name.startswith(LOADER) or collective(event) is not None


def _step_number(event: Event) -> int | None:
    match = STEP.fullmatch(event.name) if event.category in ("user_annotation", "cpu_op") else None
    return int(match[1]) if match else None


def _steps(
    trace: Trace, kernels: list[Event], loads: list[Event], operators: list[Event]
) -> Iterable[StepTime]:
    marks = [(event, number) for event in trace.events if (number := _step_number(event)) is not None]
    starts = np.array([event.start for event, _ in marks] or [0.0])
    ends = np.array([event.end for event, _ in marks] or [max(event.end for event in trace.events)])
    loading = union(loads)
    groups = (
        union(kernels),
        union(trace.select(lambda event: event.category in MEMORY_COPY)),
        union(trace.select(lambda event: collective(event) is not None)),
        union(trace.select(lambda event: event.category in RUNTIME)),
        loading,
        union(operators),
    )
    slices = _slices(groups, starts, ends)
    waits = loading.within(starts, ends)
    backward = union([event for event in operators if event.name.startswith(BACKWARD)]).within(starts, ends)
    optimizer = union(trace.select(lambda event: event.name.startswith(OPTIMIZER))).within(starts, ends)
    for index, start in enumerate(starts.tolist()):
        yield StepTime(
            number=marks[index][1] if marks else 0,
            start=trace.origin + start * MICRO,
            seconds=float(ends[index] - starts[index]) * MICRO,
            slices=dict(zip(SLICES, (slices[:, index] * MICRO).tolist(), strict=True)),
            data_wait=float(waits[index]) * MICRO,
            backward=float(backward[index]) * MICRO,
            optimizer=float(optimizer[index]) * MICRO,
        )


def _slices(groups: tuple[Intervals, ...], starts: Numbers, ends: Numbers) -> Numbers:
    """(slices, steps) in microseconds: what each group adds to those before it, and the rest."""
    together = empty()
    covered = [np.zeros(len(starts))]
    for group in groups:
        together |= group
        covered.append(together.within(starts, ends))
    covered.append(ends - starts)
    return np.maximum(np.diff(np.array(covered), axis=0), 0.0)


def _devices(trace: Trace) -> Iterable[DeviceTime]:
    launches = {
        event.args["correlation"]: event.start
        for event in trace.events
        if event.category in RUNTIME and "correlation" in event.args
    }
    for device, events in sorted(_by_device(trace).items()):
        busy = union(events)
        gaps = busy.gaps()
        first = {event.start: event for event in reversed(events)}  # the event that ends a gap
        host = launch = unknown = 0.0
        for start, end in zip(gaps.starts.tolist(), gaps.ends.tolist(), strict=True):
            launched = launches.get(first[end].args.get("correlation"))
            if launched is None:
                unknown += end - start
            else:
                waited = min(max(launched - start, 0.0), end - start)
                host += waited
                launch += end - start - waited
        yield DeviceTime(
            device,
            busy.length * MICRO,
            gaps.length * MICRO,
            host * MICRO,
            launch * MICRO,
            unknown * MICRO,
        )


def _by_device(trace: Trace) -> dict[str, list[Event]]:
    devices: dict[str, list[Event]] = {}
    for event in trace.events:
        if event.category in DEVICE and event.end > event.start:
            devices.setdefault(_device(event), []).append(event)
    return devices


def _device(event: Event) -> str:
    return f"gpu{event.args.get('device', event.thread[0])}" if event.category in DEVICE else "cpu"


def _collectives(trace: Trace) -> Iterable[NamedTime]:
    """By device and operation; `self_seconds` is what no kernel and no copy of the same device hid."""
    found: dict[tuple[str, str], list[Event]] = {}
    for event in trace.events:
        operation = collective(event)
        if operation is not None:
            found.setdefault((_device(event), operation), []).append(event)
    busy = {
        device: union([event for event in events if collective(event) is None])
        for device, events in _by_device(trace).items()
    }
    for (device, operation), events in sorted(found.items()):
        hidden = busy.get(device, empty())
        exposed = (hidden | union(events)).length - hidden.length
        seconds = sum(event.end - event.start for event in events)
        yield NamedTime(device, operation, len(events), seconds * MICRO, exposed * MICRO)


def _named(events: list[Event], self_times: list[float]) -> Iterable[NamedTime]:
    """Events summed by device and name, those that took longest first."""
    sums: dict[tuple[str, str], list[float]] = {}
    for event, self_time in zip(events, self_times, strict=True):
        total = sums.setdefault((_device(event), event.name), [0, 0.0, 0.0])
        total[0] += 1
        total[1] += event.end - event.start
        total[2] += self_time
    longest_first = sorted(sums.items(), key=lambda item: (-item[1][2], item[0]))
    for (device, name), (calls, seconds, own) in longest_first:
        yield NamedTime(device, name, int(calls), seconds * MICRO, own * MICRO)


def _self_times(events: list[Event]) -> list[float]:
    """Microseconds of each event without those that it called: those within it on its thread."""
    own = [event.end - event.start for event in events]
    callers: dict[object, list[int]] = {}  # by thread, the outermost first
    for index, event in enumerate(events):
        stack = callers.setdefault(event.thread, [])
        while stack and events[stack[-1]].end <= event.start:
            stack.pop()
        if stack:
            own[stack[-1]] -= event.end - event.start
        stack.append(index)
    return own
