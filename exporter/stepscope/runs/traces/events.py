"""Loads the events of one rank from a trace of the PyTorch profiler into columns.

The format is Chrome's; categories are those of libkineto's ActivityType (github.com/pytorch/kineto), and
those of PyTorch before 1.11 (`Operator`, `Kernel`, `Memcpy`, `Memset`, `Runtime`). Times are microseconds
since `baseTimeNanoseconds`, or since the epoch if the trace does not contain it.

`load(path)` returns a `Trace`. Its events are rows of equally long columns, in time order; callers first,
then what they call:

    trace.kinds[i]         one of OPERATOR, ANNOTATION, RUNTIME, KERNEL, COPY, PYTHON, OVERHEAD, WAIT, MODULE
    trace.names[trace.name_ids[i]]
    trace.starts[i], trace.ends[i]   microseconds since `trace.origin`, which is seconds since the epoch
    trace.threads[trace.thread_ids[i]]   a Thread: of the host, or a stream of a device
    trace.correlations[i]  joins the call that launched work (RUNTIME) with the work (KERNEL, COPY); NONE

`trace.collectives` are the calls of collectives that ran: kernels on a device, operators of gloo and the like
on the host. Each knows its group, sequence number, operation, size and bytes as far as the trace does, and
`launched`: when the host called it. A row of about 40 bytes stands for about 350 bytes of JSON.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.common.errors import UserError
from stepscope.common.words import duration, listing, number
from stepscope.runs.malformed import EARLIEST, LATEST, LONGEST, MALFORMED, finite, moment, naming, whole
from stepscope.runs.traces.collectives import Collective, Described, described, operation_of, sequence_of
from stepscope.runs.traces.flops import flops_of
from stepscope.runs.traces.json_stream import JsonTrace
from stepscope.runs.traces.nsight import REMEDY, is_export, processes
from stepscope.runs.traces.rows import Pairs, categorised
from stepscope.runs.traces.xla import AsPyTorch, host_of
from stepscope.training.window_files import LINE
from stepscope.training.window_files import MODULE as OF_MODULE

OPERATOR, ANNOTATION, RUNTIME, KERNEL, COPY, PYTHON, OVERHEAD, WAIT, MODULE, UNKNOWN = range(10)
KINDS = {
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
    "user_annotation": ANNOTATION,
    "runtime": RUNTIME,
    "hpu_op": RUNTIME,  # of the host, in spite of its name
    "kernel": KERNEL,
    "concurrent_kernel": KERNEL,
    "mtia_ccp_events": KERNEL,
    "collective_comm": KERNEL,
    "memcpy": COPY,
    "memset": COPY,
    "python_function": PYTHON,
    "python": PYTHON,
    "overhead": OVERHEAD,
    "cuda_event": WAIT,
    OF_MODULE: MODULE,
}
# Kinds of device name these after themselves: cuda_runtime, gpu_memcpy, hip_runtime, xpu_driver, mlu_memset.
ENDINGS = {
    "_runtime": RUNTIME,
    "_driver": RUNTIME,
    "_memcpy": COPY,
    "_memset": COPY,
    "_sync": WAIT,  # a stream waits for an event: no work
}
# What repeats other events, or is the profiler's own frame around them.
REPEATED = {"Trace", "trace", "ac2g", "async_cpu_to_gpu", "external_correlation"}
WITHOUT = "without a category"  # instead of one
DAMAGED = "damaged events"  # the category of what no profiler can have meant
FAR = "events at an impossible time"
REPEATED_ENDING = "_user_annotation"  # of a device: gpu_user_annotation
ON_DEVICE = (KERNEL, COPY)
NONE = -1  # no correlation
MICRO = 1e-6
MARKER = "ProfilerStep#"  # the profiler's own marker of a step, and the step's number
SEQUENCE = "Sequence number"  # the argument of an operator: of the node of the graph that it makes or runs
SHAPES = "Input Dims"  # the argument of an operator, if the profiler records them
MOST_SHAPES, SHAPE = 5000, 80  # different ones in a trace, and characters of one
LARGE = 1 << 20  # bytes: of a smaller file, reading finds the line where it is damaged
MOST_FAR = 0.01  # of the events; if more are at an impossible time, no time of the trace is certain
SOME = 10_000  # events, whose median is a time of the trace
MOST_LINES, MOST_ALLOCATIONS = 20_000, 500_000  # of a trace, the first ones
SIGN = 1 << 63  # of an address: some profilers write it with a sign, some without
MEMORY, TOTAL = "[memory]", "Total Allocated"  # of an allocation; before PyTorch 1.10 without its total
Numbers = NDArray[np.float64]


class Thread(NamedTuple):
    """A thread of the host, or a stream of a device."""

    process: Any
    thread: Any  # or the stream
    device: str  # "cpu", "gpu0"


class Line(NamedTuple):
    """The line of the user's code in which a thread of the host was at a moment."""

    process: Any
    thread: Any
    time: float  # microseconds since the trace's origin
    place: str  # file:line


class Allocations(NamedTuple):
    """The allocations, and what was freed, in columns of one length."""

    threads: NDArray[np.int32]  # as in Trace.thread_ids
    times: Numbers  # microseconds since the trace's origin
    devices: NDArray[np.int32]  # place in `names`
    sizes: NDArray[np.int64]  # bytes; below 0: freed
    totals: NDArray[np.int64]  # bytes that are allocated on the device
    addresses: NDArray[np.int64]  # 0: not known
    names: list[str]  # of devices


@dataclass(frozen=True)
class Trace:
    """One file: one rank's events, in time order. See the module for the columns."""

    path: Path
    writer: str  # "pytorch", "xla" (JAX or TensorFlow) or "nsight"
    notes: tuple[str, ...]  # clauses about the file: what it does not contain
    host: str | None  # None: the trace does not contain it
    pid: int  # the process, from its events; 0: there are none of the host
    rank: int | None  # None: the job was not distributed, or the trace does not contain it
    world_size: int | None
    origin: float  # seconds since the epoch of time 0
    devices: dict[int, str]  # name by index
    groups: dict[str, Described]  # process groups by name, as `distributedInfo` lists them
    unknown: dict[str, int]  # events of categories that nobody here knows; they count nowhere
    names: list[str]
    threads: list[Thread]
    kinds: NDArray[np.uint8]
    name_ids: NDArray[np.int32]
    thread_ids: NDArray[np.int32]
    starts: Numbers
    ends: Numbers
    correlations: NDArray[np.int64]
    collectives: list[Collective]
    is_collective: NDArray[np.bool_]  # rows of `collectives`
    lines: list[Line]  # in the order of the file
    allocations: Allocations
    shapes: list[str]  # of inputs: "32×64, 64"
    shape_ids: NDArray[np.int32]  # place in `shapes`, or NONE; empty if no shapes were recorded
    flops: Numbers  # of operators, NaN if not known; empty if no shapes were recorded
    sequences: dict[int, int]  # number of the graph's node by row; only of a trace that has modules

    def __len__(self) -> int:
        return len(self.kinds)

    def named(self, wanted: Callable[[str], object]) -> NDArray[np.bool_]:
        """Returns (n,) which events have a name that `wanted` says yes to."""
        return np.array([bool(wanted(name)) for name in self.names], bool)[self.name_ids]

    def of(self, *kinds: int) -> NDArray[np.bool_]:
        """Returns (n,) which events are of one of these kinds."""
        return np.isin(self.kinds, kinds)

    @cached_property
    def device_of_thread(self) -> NDArray[np.str_]:
        """Returns the device by thread id."""
        return np.array([thread.device for thread in self.threads])

    @property
    def start(self) -> float:
        """Returns when the first event began, in seconds since the epoch."""
        return self.origin + float(np.min(self.starts[self.kinds != PYTHON], initial=self.ends.max())) * MICRO

    @property
    def end(self) -> float:
        """Returns when the last event ended, in seconds since the epoch."""
        return moment(self.origin + float(self.ends.max()) * MICRO)


@lru_cache
def _kind(category: str) -> int | None:
    """Returns the kind of a category in small letters, UNKNOWN, or None if it repeats other events."""
    if category.endswith(REPEATED_ENDING):
        return None
    endings = (kind for ending, kind in ENDINGS.items() if category.endswith(ending))
    return KINDS.get(category, next(endings, UNKNOWN))


class _Call(NamedTuple):
    """The row of a collective, and what its event says about it."""

    row: int
    operation: str
    about: Described
    sequence: int | None
    external: Any  # the id of its operator


@dataclass
class _Columns:
    """The rows as they are read."""

    kinds: array[int] = field(default_factory=lambda: array("B"))
    names: array[int] = field(default_factory=lambda: array("i"))
    threads: array[int] = field(default_factory=lambda: array("i"))
    starts: array[float] = field(default_factory=lambda: array("d"))
    durations: array[float] = field(default_factory=lambda: array("d"))
    correlations: array[int] = field(default_factory=lambda: array("q"))
    name_ids: dict[str, int] = field(default_factory=dict)
    thread_ids: dict[tuple[Any, Any, str], int] = field(default_factory=dict)
    operations: list[tuple[str | None, str | None]] = field(default_factory=list)  # by name: device, host
    unknown: dict[str, int] = field(default_factory=dict)
    collective: list[_Call] = field(default_factory=list)
    described: dict[Any, tuple[Described, int | None]] = field(default_factory=dict)  # by External id
    lines: list[Line] = field(default_factory=list)  # times as in the file
    allocations: list[tuple[int, float, int, int, int, int]] = field(default_factory=list)
    devices: dict[str, int] = field(default_factory=dict)  # of allocations
    shapes: dict[str, int] = field(default_factory=dict)
    shaped: list[tuple[int, int]] = field(default_factory=list)  # row and place in `shapes`
    flops: list[tuple[int, float]] = field(default_factory=list)  # row and operations
    sequences: list[tuple[int, int]] = field(default_factory=list)  # row, number of the graph's node
    has_modules: bool = False  # which are its first events
    stepping: set[int] = field(default_factory=set)  # processes that mark steps

    def add_intact(self, row: Any) -> None:
        """Adds an event, unless it is damaged, as None is."""
        try:
            self.add(row)
        except MALFORMED:
            self._count(DAMAGED)
            for items in self._about_rows:
                while items and items[-1][0] == len(self.kinds):
                    items.pop()

    def _count(self, category: str, events: int = 1) -> None:
        self.unknown[category] = self.unknown.get(category, 0) + events

    def leave_out(self, rows: NDArray[np.bool_], category: str) -> None:
        """Leaves out events that are in the columns already."""
        self._count(category, int(rows.sum()))
        np.frombuffer(self.kinds, np.uint8)[rows] = UNKNOWN
        np.frombuffer(self.durations, np.float64)[rows] = 0
        for items in self._about_rows:
            items[:] = [item for item in items if not rows[item[0]]]

    @property
    def _about_rows(self) -> tuple[list[Any], ...]:
        """Returns what no column holds about rows. Each item begins with its row."""
        return self.collective, self.shaped, self.flops, self.sequences

    def add(self, row: Any) -> None:
        """Adds a complete event; leaves out all others, and what repeats them.

        Raises one of MALFORMED before anything is in the columns.
        """
        category = row.get("cat")
        if category == LINE and len(self.lines) < MOST_LINES:
            line = Line(row.get("pid"), row.get("tid"), finite(row["ts"]), str(row["name"]))
            hash(line)  # or TypeError
            self.lines.append(line)
        if row["name"] == MEMORY and len(self.allocations) < MOST_ALLOCATIONS:
            self._add_allocation(row)
        if row.get("ph") != "X" or category in REPEATED:
            return
        category = WITHOUT if category is None else str(category).lower()
        kind = _kind(category)
        if kind is None:
            return
        length = math.nan if row.get("dur") is None else float(row["dur"])
        if not 0 <= length <= LONGEST:
            how = "with an impossible" if length > 0 else "with a negative" if length < 0 else "without a"
            self._count(f"{category} {how} duration")
            return
        start = finite(row["ts"])
        arguments = row.get("args") or {}
        name = str(row["name"])
        name_id = self.name_ids.get(name)
        if name_id is None:
            name_id = self.name_ids[name] = len(self.name_ids)
            self.operations.append((operation_of(name, on_device=True), operation_of(name, on_device=False)))
        device = "cpu"
        correlation = NONE
        if kind in ON_DEVICE:
            kind_of_device = arguments.get("accelerator", "gpu")
            number_of_device = whole(arguments["device"]) if "device" in arguments else row.get("pid")
            device = f"{kind_of_device}{number_of_device}"
            operation = self.operations[name_id][0] if kind == KERNEL else None
            correlation = _correlation(arguments)
        else:
            operation = self.operations[name_id][1] if kind != PYTHON else None
            if kind == RUNTIME:
                correlation = _correlation(arguments)
            elif name == "record_param_comms":
                about = described(arguments), sequence_of(arguments)
                self.described[arguments.get("External id")] = about
            if kind == OPERATOR and SHAPES in arguments:
                shapes = _shapes(arguments[SHAPES])
                if shapes and (shapes in self.shapes or len(self.shapes) < MOST_SHAPES):
                    self.shaped.append((len(self.kinds), self.shapes.setdefault(shapes, len(self.shapes))))
                flops = flops_of(name, arguments[SHAPES], arguments)
                if flops is not None:
                    self.flops.append((len(self.kinds), flops))
            if self.has_modules and kind == OPERATOR and SEQUENCE in arguments:
                self.sequences.append((len(self.kinds), whole(arguments[SEQUENCE])))
            self.has_modules |= kind == MODULE
        if operation is not None:
            about, external = (described(arguments), sequence_of(arguments)), arguments.get("External id")
            hash(external)  # or TypeError
            self.collective.append(_Call(len(self.kinds), operation, *about, external))
        if kind == ANNOTATION and name.startswith(MARKER) and isinstance(row.get("pid"), int):
            self.stepping.add(row["pid"])
        thread = self.thread_ids.setdefault((row.get("pid"), row.get("tid"), device), len(self.thread_ids))
        if kind == UNKNOWN:
            self._count(category)
        self.kinds.append(kind)
        self.names.append(name_id)
        self.threads.append(thread)
        self.starts.append(start)
        self.durations.append(length)
        self.correlations.append(correlation)

    def _add_allocation(self, row: Any) -> None:
        about, time = row["args"], finite(row["ts"])
        name = f"gpu{whole(about['Device Id'])}" if about["Device Type"] else "cpu"
        address = (int(about.get("Addr", 0)) + SIGN) % (2 * SIGN) - SIGN
        numbers = whole(about["Bytes"]), whole(about.get(TOTAL, 0)), address
        if TOTAL not in about:
            return
        thread = self.thread_ids.setdefault((row.get("pid"), row.get("tid"), "cpu"), len(self.thread_ids))
        device = self.devices.setdefault(name, len(self.devices))
        self.allocations.append((thread, time, device, *numbers))


def _correlation(arguments: Any) -> int:
    """Returns what joins a call and its work. 0 stands for none: CUPTI_CORRELATION_ID_UNKNOWN."""
    return whole(arguments.get("correlation", NONE)) or NONE


def _shapes(dimensions: Any) -> str:
    """Returns "32×64, 64" for [[32, 64], [64], []]: inputs with no dimension are numbers."""
    if not isinstance(dimensions, list):
        return ""
    tensors = (each for each in dimensions if isinstance(each, list) and each)
    known = (each for each in tensors if all(isinstance(length, int) for length in each))
    return ", ".join("×".join(map(str, each)) for each in known)[:SHAPE]


def traces_of(path: Path, progress: Callable[[int], None] | None = None) -> Iterator[Trace]:
    """Yields the traces in a file: one of a profiler's JSON, one per process of an export of Nsight Systems.

    Calls `progress` with the bytes read since the last call. Raises UserError if the file is corrupt.
    """
    if not is_export(path):
        yield load(path, progress)
        return
    with naming(path, "an export of Nsight Systems", REMEDY):
        empty = True
        for about, notes, rows in processes(path):
            columns = _Columns()
            with closing(rows):
                for row in rows:
                    columns.add(row)
            if len(columns.kinds):
                empty = False
                yield _trace(path, "nsight", notes, about, columns)
        if empty:
            raise UserError(f"{path} holds no event: record again, while steps run")


def load(path: Path, progress: Callable[[int], None] | None = None) -> Trace:
    """Reads a trace; calls `progress` with the bytes read since the last call.

    Raises UserError if the file is corrupt or not a trace of the PyTorch profiler, JAX or TensorFlow.
    """
    stream, columns = JsonTrace(path, progress), _Columns()
    xla = AsPyTorch()
    if path.stat().st_size > LARGE and stream.is_cut_off:
        raise UserError(f"{path}: not JSON to its end; the trace is cut off, export it again")
    with naming(path, "a trace of the profiler", "export it again"):
        pairs = Pairs()
        for row in categorised(xla.rows(pairs.rows(stream.rows()))):
            columns.add_intact(row)
            if len(columns.kinds) == 1 and columns.starts[0] * MICRO >= LATEST:
                raise ValueError("its times are not in microseconds")
            if len(columns.stepping) > 1:
                raise UserError(
                    f"{path} holds the steps of several processes together: give a folder with one trace per "
                    "process"
                )
        has_any = stream.has_events
        if columns.unknown.keys() == {DAMAGED}:  # any list may be a document of JSON
            has_any = any(isinstance(row, dict) and "ph" in row for row in JsonTrace(path).rows())
        if not has_any:
            raise UserError(
                f"{path} is no trace (no traceEvents in it): give what torch.profiler exported, or what "
                "`nsys export --type sqlite` wrote"
            )
        columns.unknown |= pairs.without_partner()
        if not len(columns.kinds):
            if others := pairs.others() | columns.unknown:
                only = listing([f"{number(count)} {kind}" for kind, count in others.items()])
                raise UserError(
                    f"{path} holds no event with a duration, only {only}: give a trace with complete events"
                )
            raise UserError(f"{path} holds no event: export the trace again, with a step that is active")
        if xla.found and "host_name" not in stream.about:
            stream.about["host_name"] = host_of(path)
        more = ("continues after its end, and that part counts nowhere: give each trace as one file",)
        notes = xla.notes + more * stream.has_more
        return _trace(path, "xla" if xla.found else "pytorch", notes, stream.about, columns)


def _trace(
    path: Path, writer: str, notes: tuple[str, ...], about: dict[str, Any], columns: _Columns
) -> Trace:
    starts, ends = np.frombuffer(columns.starts, np.float64), np.frombuffer(columns.durations, np.float64)
    kinds = np.frombuffer(columns.kinds, np.uint8)
    middle = float(np.median(starts[:: len(starts) // SOME + 1]))
    far = np.abs(starts - middle) > LONGEST
    if far.sum() > max(1, MOST_FAR * len(far)):
        apart = duration((starts.max() - starts.min()) * MICRO)
        raise ValueError(f"its events are {apart} apart: the clock of some was wrong")
    if far.any():
        columns.leave_out(far, FAR)
        starts[far] = middle
    zero = finite(np.min(starts[kinds != PYTHON], initial=starts.max()))
    starts -= zero  # in place: the columns of a large trace are never in memory twice
    ends += starts
    order = np.lexsort((-ends, starts))
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    threads = [Thread(*thread) for thread in columns.thread_ids]
    trace = Trace(
        path=path,
        writer=writer,
        notes=notes,
        host=None if about.get("host_name") is None else str(about["host_name"]),
        pid=next(
            (each.process for each in threads if each.device == "cpu" and isinstance(each.process, int)), 0
        ),
        rank=_whole(_job(about).get("rank")),
        world_size=_whole(_job(about).get("world_size")),
        origin=_origin(zero / 1e6 + finite(about.get("baseTimeNanoseconds", 0)) / 1e9),
        devices={int(gpu["id"]): str(gpu.get("name", "")) for gpu in about.get("deviceProperties") or []},
        groups={
            str(group.get("pg_name")): described(
                {
                    "Process Group Name": group.get("pg_name"),
                    "Process Group Description": group.get("pg_desc"),
                    "Process Group Ranks": group.get("ranks"),
                    "Group size": group.get("pg_size"),
                }
            )
            for group in _job(about).get("pg_config") or []
            if isinstance(group, dict)
        },
        unknown=columns.unknown,
        names=list(columns.name_ids),
        threads=threads,
        kinds=_reordered(columns.kinds, order),
        name_ids=_reordered(columns.names, order),
        thread_ids=_reordered(columns.threads, order),
        starts=_reordered(columns.starts, order),
        ends=_reordered(columns.durations, order),
        correlations=_reordered(columns.correlations, order),
        collectives=[],
        is_collective=np.zeros(len(order), bool),
        lines=[
            line._replace(time=line.time - zero)
            for line in columns.lines
            if abs(line.time - middle) <= LONGEST
        ],
        allocations=_allocations(columns, zero, middle),
        shapes=list(columns.shapes),
        shape_ids=_by_row(columns.shaped, place, np.full(len(place), NONE, np.int32)),
        flops=_by_row(columns.flops, place, np.zeros(len(place))),
        sequences={int(place[row]): number for row, number in columns.sequences},
    )
    _add_collectives(trace, columns, place)
    return trace


def _allocations(columns: _Columns, zero: float, middle: float) -> Allocations:
    rows = [row for row in columns.allocations if abs(row[1] - middle) <= LONGEST]
    threads, times, devices, *numbers = zip(*rows, strict=True) if rows else [()] * 6
    sizes, totals, addresses = (np.array(each, np.int64) for each in numbers)
    return Allocations(
        np.array(threads, np.int32),
        np.array(times, float) - zero,
        np.array(devices, np.int32),
        *(sizes, totals, addresses),
        list(columns.devices),
    )


def _by_row(values: list[tuple[int, Any]], place: NDArray[np.int32], found: NDArray[Any]) -> NDArray[Any]:
    """Returns `found` with these values by row; empty if there are none."""
    if not values:
        return found[:0]
    rows, of_rows = zip(*values, strict=True)
    found[place[list(rows)]] = of_rows
    return found


def _origin(seconds: float) -> float:
    """Returns when a trace begins: one that counts from its start may have events before that."""
    return moment(0.0 if -EARLIEST < seconds < 0.0 else seconds)


def _reordered(column: array[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """Changes the order of a column in place, and returns it."""
    values = np.frombuffer(column, column.typecode)
    values[:] = values[order]
    return values


def _add_collectives(trace: Trace, columns: _Columns, place: NDArray[np.int32]) -> None:
    """Adds the collectives in time order, with what their `record_param_comms` and their group say."""
    columns.collective.sort(key=lambda found: place[found.row])
    rows = place[[found.row for found in columns.collective]]
    trace.is_collective[rows] = True
    calls = launches(trace, trace.correlations[rows])
    for row, call, found in zip(rows.tolist(), calls.tolist(), columns.collective, strict=True):
        by_operator, number = columns.described.get(found.external, (None, None))
        about = found.about.filled_from(by_operator)
        about = about.filled_from(trace.groups.get(about.group))
        device = trace.threads[trace.thread_ids[row]].device
        call = row if device == "cpu" else call
        trace.collectives.append(
            Collective(
                about.operation or found.operation,
                device,
                float(trace.starts[row]),
                float(trace.ends[row]),
                None if call == NONE else float(trace.starts[call]),
                number if found.sequence is None else found.sequence,
                about,
            )
        )


def launches(trace: Trace, correlations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the row of the host's call that launched each work, by correlation; NONE if it is not known."""
    rows = np.flatnonzero(trace.of(RUNTIME) & (trace.correlations != NONE))
    rows = rows[np.argsort(trace.correlations[rows], kind="stable")]
    known = np.append(trace.correlations[rows], NONE)
    places = np.searchsorted(known[:-1], correlations, "right") - 1
    return np.where(known[places] == correlations, np.append(rows, NONE)[places], NONE)


def _job(about: dict[str, Any]) -> Any:
    return about.get("distributedInfo") or {}


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
