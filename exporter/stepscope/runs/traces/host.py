"""Finds what the host did: the innermost event of a thread at each moment, and the line that called it."""

import re
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.runs.model import HostTime
from stepscope.runs.traces.events import (
    ANNOTATION,
    COPY,
    MICRO,
    MODULE,
    NONE,
    OPERATOR,
    PYTHON,
    RUNTIME,
    WAIT,
    Trace,
)
from stepscope.runs.traces.intervals import Intervals, Numbers
from stepscope.training.line_layout import GENERATED

_NOT_OWN = ("site-packages/", *GENERATED)
LISTED = 200  # parts of the host's time that are kept
# What the host's time is spent on.
OPERATORS, COMPUTING, FRAMES, CALLS, SLOW, SYNCHRONISING, ALLOCATING, CAPTURING, COLLECTING, NOT_RECORDED = (
    "operator",
    "computing",
    "python",
    "runtime",
    "slow call",
    "synchronising",
    "memory",
    "capture",
    "gc",
    "not recorded",
)
SLOW_CALL = 1000.0  # microseconds: a launch takes some, and so does an operator that only launches
# Calls that return only when the device has done its work; so does a copy from or to pageable memory.
_WAITS = re.compile(
    r"(?:cuda|cu|hip)\w*Synchronize\w*|(?:cuda|hip)Memcpy(?:2D|3D|WithStream)?|(?:ze|mtia|xpu|\w+@acl)\w*Synchronize\w*"
    r"|(?:cu|hip)Memcpy(?:DtoH|HtoD)(?:_v2)?|ur(?:QueueFinish|EventWait)"
)
_PAGEABLE = re.compile(r"Memcpy .*Pageable", re.IGNORECASE)
# Calls that allocate memory of the device or pinned memory, or free it; most of them wait for the device.
_ALLOCATES = re.compile(
    r"(?:cuda|hip)(?:Ext)?(?:Host)?(?:Malloc|Free|Alloc|Register|Unregister)\w*"
    r"|cuMem(?:Host)?(?:Alloc|Free|Create|Map|Unmap|Release|SetAccess)\w*"
)
_CAPTURE_BEGINS, _CAPTURE_ENDS, _CAPTURED = (
    re.compile(rf"(?:cuda|cu|hip){call}\w*")
    for call in ("StreamBeginCapture", "StreamEndCapture", "Graph(?:Instantiate|ExecUpdate|Upload)")
)
CAPTURE = "the capture of a graph"
_SYNCHRONISING = re.compile(r"aten::(?:item|_local_scalar_dense|is_nonzero|nonzero|equal)")
_COLLECTING = re.compile(
    r"Python GC|gc\b.*|.*\bgc\.collect\b.*|.*built-in (?:method|function) collect\b.*", re.IGNORECASE
)
_STEP = re.compile(r"ProfilerStep#\d+|PyTorch Profiler.*")
_FRAME = re.compile(r"(?P<file>.+\.py)\((?P<line>\d+)\): .+")
_ADDRESS = re.compile(r" object at 0x[0-9a-fA-F]+")
_LIBRARIES = {"torch", "numpy", "lightning", "pytorch_lightning", "accelerate", "transformers", "deepspeed"}


class Calls(NamedTuple):
    """The caller of each event on its thread, and the end of the event, at most that of its caller."""

    parents: NDArray[np.int32]  # index of the caller; NONE: there is none
    ends: Numbers


def calls_of(starts: Numbers, ends: Numbers, threads: NDArray[np.int32]) -> Calls:
    """Returns the calls. The events are in time order, callers first.

    Events of one thread may overlap without one in the other: each moment belongs to the one that began
    first, so that own times never sum to more than the time of the thread.
    """
    parents, ends = np.full(len(starts), NONE, np.int32), ends.copy()
    stacks: dict[int, list[int]] = {}  # by thread, the outermost first
    end_of = ends.data  # lists would need four times the memory of the arrays
    for index, (start, thread) in enumerate(zip(starts.data, threads.data, strict=True)):
        stack = stacks.setdefault(thread, [])
        while stack and end_of[stack[-1]] <= start:
            stack.pop()
        if stack:
            parents[index] = stack[-1]
            if end_of[index] > end_of[stack[-1]]:
                end_of[index] = end_of[stack[-1]]
        stack.append(index)
    return Calls(parents, ends)


def without_calls(parents: NDArray[np.int32], times: Numbers) -> Numbers:
    """Returns the times of events without those of the events that they called."""
    own, called = times.copy(), parents != NONE
    np.subtract.at(own, parents[called], times[called])
    return own


def host_times(trace: Trace, waits: Mapping[int, Intervals]) -> tuple[HostTime, ...]:
    """Returns what each thread of the host did in its intervals, the longest first; seconds sum to theirs."""
    sums: dict[tuple[str, str, str], list[float]] = {}
    for thread, intervals in waits.items():
        stack = _Stack(trace, thread)
        intervals = _without_captures(stack, intervals, sums)
        within = intervals.within(stack.times()[0], stack.ends)
        rest = intervals.length - float(within[stack.parents == NONE].sum())
        _add(sums, (NOT_RECORDED, "", ""), 1, max(rest, 0.0))
        own = without_calls(stack.parents, within)
        for index in np.flatnonzero(own > 0).data:
            _add(sums, stack.describe(index, slow=own[index] > SLOW_CALL), 1, float(own[index]))
    return _ordered(sums)


def _without_captures(
    stack: "_Stack", waits: Intervals, sums: dict[tuple[str, str, str], list[float]]
) -> Intervals:
    """Returns the waits outside of captures, and adds those in captures: what they launch runs later."""
    begins, starts, ends = stack.captures()
    if not begins:
        return waits
    for begin, time in zip(begins, waits.within(starts, ends).tolist(), strict=True):
        _add(sums, (CAPTURING, CAPTURE, stack.site(begin)), 1, time)
    return waits.minus(Intervals.union(starts, ends))


def synchronising(trace: Trace, thread: int) -> tuple[HostTime, ...]:
    """Returns the calls of a thread that waited for the device, with the operator that made them."""
    stack = _Stack(trace, thread)
    sums: dict[tuple[str, str, str], list[float]] = {}
    for index in np.flatnonzero(trace.kinds[stack.rows] == RUNTIME).data:
        if what := stack.waits(index):
            operator = stack.operator(index)
            words = f"{operator} ({what})" if operator else what
            row = stack.rows[index]
            length = float(trace.ends[row] - trace.starts[row])
            _add(sums, (SYNCHRONISING, words, stack.site(index)), 1, length)
    return _ordered(sums)


class _Stack:
    """The events of one thread of the host, and who called whom."""

    def __init__(self, trace: Trace, thread: int) -> None:
        self.trace = trace
        here = (trace.thread_ids == thread) & ~trace.of(WAIT, MODULE) & ~trace.named(_STEP.fullmatch)
        self.rows = np.flatnonzero(here).astype(np.int32)
        self.parents, self.ends = calls_of(*self.times(), trace.thread_ids[self.rows])
        self._sites = [_site(name) for name in trace.names]
        copies = trace.of(COPY) & trace.named(_PAGEABLE.match) & (trace.correlations != NONE)
        self._pageable = np.isin(trace.correlations[self.rows], trace.correlations[copies])

    def times(self) -> tuple[Numbers, Numbers]:
        """Returns the starts and ends; not kept, as a large trace has millions."""
        return self.trace.starts[self.rows], self.trace.ends[self.rows]

    def captures(self) -> tuple[list[int], Numbers, Numbers]:
        """Returns the indices of the calls that begin a capture, and when each capture starts and ends."""
        starts, ends = self.times()
        begins, closes = (
            np.flatnonzero(self.trace.named(pattern.fullmatch)[self.rows])
            for pattern in (_CAPTURE_BEGINS, _CAPTURE_ENDS)
        )
        last = np.searchsorted(starts[closes], starts[begins])
        until = np.append(ends[closes], ends.max(initial=0.0))[last]
        return begins.tolist(), starts[begins], until

    def name(self, index: int) -> str:
        return self.trace.names[int(self.trace.name_ids[self.rows[index]])]

    def waits(self, index: int) -> str:
        """Returns what of an event waits for the device; "" if nothing does."""
        name = self.name(index)
        return "pageable copy" if self._pageable[index] else name if _WAITS.fullmatch(name) else ""

    def _outwards(self, index: int) -> Iterable[int]:
        while index != NONE:
            yield index
            index = int(self.parents[index])

    def site(self, index: int) -> str:
        """Returns the innermost line of the user's code around an event."""
        sites = (self._sites[int(self.trace.name_ids[self.rows[each]])] for each in self._outwards(index))
        return next(filter(None, sites), "")

    def operator(self, index: int) -> str:
        """Returns the outermost operator around an event that waits itself, otherwise the innermost."""
        outwards = (each for each in self._outwards(index) if self.trace.kinds[self.rows[each]] == OPERATOR)
        operators = [self.name(each) for each in outwards]
        return next((name for name in reversed(operators) if _SYNCHRONISING.match(name)), (*operators, "")[0])

    def describe(self, index: int, slow: bool) -> tuple[str, str, str]:
        """Returns the kind, name and call site of an event; an annotation is around what was not recorded."""
        name, kind = self.name(index), self.trace.kinds[self.rows[index]]
        if _COLLECTING.fullmatch(name):
            what = COLLECTING
        elif self.waits(index) or _SYNCHRONISING.fullmatch(name):
            what = SYNCHRONISING
        elif _ALLOCATES.fullmatch(name):
            what = ALLOCATING
        elif _CAPTURED.fullmatch(name):
            what = CAPTURING
        else:
            operator = COMPUTING if slow and name.startswith("aten::") else OPERATORS
            kinds = {PYTHON: FRAMES, RUNTIME: SLOW if slow else CALLS, ANNOTATION: NOT_RECORDED}
            what = kinds.get(int(kind), operator)
        return what, _ADDRESS.sub("", name), self.site(index)


def _site(name: str) -> str:
    """Returns the name of a Python frame if it is in the user's code, otherwise ""."""
    frame = _FRAME.fullmatch(name)
    if frame is None or name.startswith("<") or any(part in name for part in _NOT_OWN):
        return ""
    top = frame["file"].lstrip("./").split("/")[0].removesuffix(".py")
    inside = top in _LIBRARIES or ("/lib/python" in name) or (top in sys.stdlib_module_names)
    return "" if inside else name


def _add(
    sums: dict[tuple[str, str, str], list[float]], key: tuple[str, str, str], calls: int, time: float
) -> None:
    if time > 0:
        total = sums.setdefault(key, [0, 0.0])
        total[0] += calls
        total[1] += time


def summed_host(parts: Iterable[Iterable[HostTime]]) -> tuple[HostTime, ...]:
    """Returns the sum of what several threads or captures have."""
    sums: dict[tuple[str, str, str], list[float]] = {}
    for part in parts:
        for found in part:
            _add(sums, (found.kind, found.name, found.site), found.calls, found.seconds / MICRO)
    return _ordered(sums)


def _ordered(sums: Mapping[tuple[str, str, str], list[float]]) -> tuple[HostTime, ...]:
    found = (HostTime(*key, int(calls), time * MICRO) for key, (calls, time) in sums.items())
    return tuple(sorted(found, key=lambda item: (-item.seconds, item.name, item.site))[:LISTED])
