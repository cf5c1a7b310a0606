"""Loads a trace of the PyTorch profiler and summarises its steps, idle time, operators and collectives.

The format is Chrome's; categories are those of libkineto's ActivityType (github.com/pytorch/kineto):
`cpu_op`, `user_annotation`, `cuda_runtime`, `cuda_driver`, `kernel`, `gpu_memcpy`, `gpu_memset`, and
`gpu_user_annotation` and `python_function`, which repeat other events and are left out. Times are
microseconds since `baseTimeNanoseconds`, or since the epoch if the trace does not contain it.

Slices of a step: each moment counts once, for the first of these that runs on any stream or thread: a
kernel, a memory copy, communication, a call of the CUDA runtime, data loading, another operator on the CPU,
other. So no kernel and no copy overlaps with communication, and the slices sum to the wall time. The order
is that of the PyTorch profiler's TensorBoard plugin (github.com/pytorch/kineto, tb_plugin).

A device is idle when none of its streams runs anything. Until the host begins to launch the work that ends
the gap, the device waits for the host; after that, for the launch. (HolisticTraceAnalysis does this per
stream, which counts a stream without work as idle.)
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwatch.errors import UserError

RUNTIME = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime"}
MEMORY_COPY = {"gpu_memcpy", "gpu_memset"}
REPEATED = {None, "Trace", "python_function", "gpu_user_annotation"}
DEVICE = MEMORY_COPY | {"kernel"}
# The profiler's own marker of a step, and of a wait on a torch DataLoader.
STEP = re.compile(r"ProfilerStep#(\d+)")
LOADER = "enumerate(DataLoader)#"
OPTIMIZER = "Optimizer.step#"
BACKWARD = "autograd::engine::evaluate_function"
# Collectives on a GPU are kernels of these libraries; on the CPU they are operators of these backends.
# An operator `c10d::` or `nccl:` only starts a collective.
DEVICE_COLLECTIVE = re.compile(r"(?:nccl|rccl)(?:Dev)?Kernel_?(?P<operation>[A-Za-z]+)", re.IGNORECASE)
CPU_COLLECTIVE = re.compile(r"(?:gloo|mpi|ucc):(?P<operation>\w+)")
SLICES = ("kernel", "memory copy", "communication", "runtime", "data loading", "other CPU", "other")
MICRO = 1e-6
Numbers = NDArray[np.float64]
_NAME = re.compile(r"(?P<host>.+?)_(?P<pid>\d+)\..*")


@dataclass(frozen=True)
class Event:
    """A timed event; microseconds since the trace's origin."""

    category: str
    name: str
    start: float
    end: float
    thread: tuple[Any, Any]  # process and thread, or device and stream
    args: dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """One file: one rank's events, in time order."""

    path: Path
    host: str
    pid: int
    rank: int | None  # None: the job was not distributed, or the trace does not contain it
    world_size: int | None
    origin: float  # seconds since the epoch of time 0
    devices: dict[int, str]  # name by index
    events: list[Event]

    def select(self, wanted: Callable[[Event], bool]) -> list[Event]:
        return [event for event in self.events if wanted(event)]


def collective(event: Event) -> str | None:
    """Returns the operation of an event that communicates, as "allreduce"; None for any other event."""
    on_device = event.category == "kernel"
    match = DEVICE_COLLECTIVE.match(event.name) if on_device else CPU_COLLECTIVE.fullmatch(event.name)
    if match is None:
        return None
    name = event.args.get("Collective name") if on_device else None
    return str(name or match["operation"]).replace("_", "").lower()


def load(path: Path) -> Trace:
    """Reads a trace. Raises UserError if the file is corrupt or not a trace of the PyTorch profiler."""
    document = _document(path)
    rows = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise UserError(f"{path} is no trace (no traceEvents in it): give what torch.profiler exported")
    try:
        timed = [row for row in rows if row.get("ph") == "X" and row.get("cat") not in REPEATED]
        zero = min((float(row["ts"]) for row in timed), default=0.0)
        events = sorted((_event(row, zero) for row in timed), key=lambda event: (event.start, -event.end))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: an event is not the profiler's ({error!r}); export it again") from error
    if not events:
        raise UserError(f"{path} holds no event: export the trace again, with a step that is active")
    about: dict[str, Any] = document if isinstance(document, dict) else {}
    job = about.get("distributedInfo") or {}
    match = _NAME.fullmatch(path.name)
    return Trace(
        path=path,
        host=str(about.get("host_name") or (match["host"] if match else "unknown")),
        pid=int(match["pid"]) if match else 0,
        rank=job.get("rank"),
        world_size=job.get("world_size"),
        origin=zero / 1e6 + float(about.get("baseTimeNanoseconds", 0)) / 1e9,
        devices={int(gpu["id"]): str(gpu.get("name", "")) for gpu in about.get("deviceProperties") or []},
        events=events,
    )


def _document(path: Path) -> Any:
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            return json.load(file)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {error.lineno}: not JSON; the trace is cut off, export it again"
        ) from error
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}); export the trace again") from error


def _event(row: dict[str, Any], zero: float) -> Event:
    start = float(row["ts"]) - zero
    end = start + float(row.get("dur", 0))
    thread = (row.get("pid"), row.get("tid"))
    return Event(str(row["cat"]).lower(), str(row["name"]), start, end, thread, row.get("args") or {})


@dataclass(frozen=True)
class Intervals:
    """Intervals that do not overlap, in time order; (n,) starts and ends in any unit."""

    starts: Numbers
    ends: Numbers

    @classmethod
    def union(cls, starts: Numbers, ends: Numbers) -> Intervals:
        """Returns the time in which at least one interval runs; intervals without length are left out."""
        real = ends > starts
        order = np.argsort(starts[real], kind="stable")
        starts, ends = starts[real][order], np.maximum.accumulate(ends[real][order])
        first = np.append(True, starts[1:] > ends[:-1])[: len(starts)]
        return cls(starts[first], ends[np.append(first[1:], True)[: len(ends)]])

    @classmethod
    def of(cls, events: Iterable[Event]) -> Intervals:
        """Returns the time in which at least one of the events runs."""
        times = np.array([(event.start, event.end) for event in events], float).reshape(-1, 2)
        return cls.union(times[:, 0], times[:, 1])

    def __or__(self, other: Intervals) -> Intervals:
        starts = np.concatenate((self.starts, other.starts))
        return Intervals.union(starts, np.concatenate((self.ends, other.ends)))

    @property
    def length(self) -> float:
        return float((self.ends - self.starts).sum())

    def gaps(self) -> Intervals:
        """Returns the intervals between these."""
        return Intervals(self.ends[:-1], self.starts[1:])

    def within(self, starts: Numbers, ends: Numbers) -> Numbers:
        """Returns (n,) how long they run within each of n windows."""
        points = np.append(-np.inf, np.column_stack((self.starts, self.ends)).ravel())
        lengths = np.zeros(len(points))
        lengths[2::2] = self.ends - self.starts
        total = np.cumsum(lengths)
        return np.interp(ends, points, total) - np.interp(starts, points, total)


@dataclass(frozen=True)
class StepTime:
    """One step: the profiler's own (ProfilerStep#n), or the whole trace if it marks none."""

    number: int
    start: float  # seconds since the epoch
    seconds: float
    slices: dict[str, float]  # seconds by SLICES; their sum is `seconds`
    components: dict[str, float]  # seconds; those of the host whatever else ran, communication if exposed


@dataclass(frozen=True)
class DeviceTime:
    """One device between its first and last event, all streams together; seconds."""

    device: str  # "gpu0"
    busy: float
    idle: float
    host_wait: float  # the part of `idle` before the host began to launch the next work
    launch_wait: float  # the part from then until the work began
    not_known: float  # the part without a known launch


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
    marked: bool  # whether the trace marks steps; if not, `steps` is the whole trace
    devices: tuple[DeviceTime, ...]
    operators: tuple[NamedTime, ...]  # on the CPU
    kernels: tuple[NamedTime, ...]
    collectives: tuple[NamedTime, ...]
    loading: tuple[NamedTime, ...]


def summarise(trace: Trace) -> TraceSummary:
    """Returns the summary, in time and memory linear in the events."""
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
    loading = Intervals.of(loads)
    groups = (
        Intervals.of(kernels),
        Intervals.of(trace.select(lambda event: event.category in MEMORY_COPY)),
        Intervals.of(trace.select(lambda event: collective(event) is not None)),
        Intervals.of(trace.select(lambda event: event.category in RUNTIME)),
        loading,
        Intervals.of(operators),
    )
    slices = _slices(groups, starts, ends)
    backward = Intervals.of(event for event in operators if event.name.startswith(BACKWARD))
    optimizer = Intervals.of(trace.select(lambda event: event.name.startswith(OPTIMIZER)))
    components = {
        "data_wait": loading.within(starts, ends),
        "backward": backward.within(starts, ends),
        "optimizer": optimizer.within(starts, ends),
        "communication": slices[SLICES.index("communication")],
    }
    for index, start in enumerate(starts.tolist()):
        yield StepTime(
            number=marks[index][1] if marks else 0,
            start=trace.origin + start * MICRO,
            seconds=float(ends[index] - starts[index]) * MICRO,
            slices=dict(zip(SLICES, (slices[:, index] * MICRO).tolist(), strict=True)),
            components={name: float(values[index]) * MICRO for name, values in components.items()},
        )


def _slices(groups: tuple[Intervals, ...], starts: Numbers, ends: Numbers) -> Numbers:
    """Returns (slices, steps) in microseconds: what each group adds to the previous ones, and the rest."""
    together = Intervals.of(())
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
        busy = Intervals.of(events)
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
        times = (busy.length, gaps.length, host, launch, unknown)
        yield DeviceTime(device, *(time * MICRO for time in times))


def _by_device(trace: Trace) -> dict[str, list[Event]]:
    devices: dict[str, list[Event]] = {}
    for event in trace.events:
        if event.category in DEVICE and event.end > event.start:
            devices.setdefault(_device(event), []).append(event)
    return devices


def _device(event: Event) -> str:
    return f"gpu{event.args.get('device', event.thread[0])}" if event.category in DEVICE else "cpu"


def _collectives(trace: Trace) -> Iterable[NamedTime]:
    """Yields the time per device and operation; no kernel and no copy overlaps with `self_seconds`."""
    found: dict[tuple[str, str], list[Event]] = {}
    for event in trace.events:
        operation = collective(event)
        if operation is not None:
            found.setdefault((_device(event), operation), []).append(event)
    busy = {
        device: Intervals.of(event for event in events if collective(event) is None)
        for device, events in _by_device(trace).items()
    }
    for (device, operation), events in sorted(found.items()):
        other = busy.get(device, Intervals.of(()))
        exposed = (other | Intervals.of(events)).length - other.length
        seconds = sum(event.end - event.start for event in events)
        yield NamedTime(device, operation, len(events), seconds * MICRO, exposed * MICRO)


def _named(events: list[Event], self_times: list[float]) -> Iterable[NamedTime]:
    """Yields the sums by device and name, the longest first."""
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
    """Returns the microseconds of each event without the events that it called on its thread."""
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
