"""Finds the operators that were running at moments: for samples of lines, and for allocations of memory."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stepscope.runs.model import DeviceMemory, OperatorMemory
from stepscope.runs.traces.events import NONE, Allocations, Trace
from stepscope.runs.traces.host import calls_of
from stepscope.runs.traces.intervals import Intervals, Numbers

# Microseconds after an operator in which a sample still is of it: an operator gives up the interpreter lock,
# which wakes the thread that samples, and after a short operator its thread waits for that lock.
JUST_ENDED = 100.0
LEAST_SAMPLES, LEAST_SHARE = 3, 0.5  # of an operator's samples: otherwise its line is not known
BACKWARD = "autograd::engine::evaluate_function: "  # is around each operator of a backward pass
OUTSIDE = "outside operators"

Places = dict[str, Counter[str]]  # samples by operator and place
Rows = NDArray[np.bool_]


def places_of(trace: Trace, operators: Rows) -> Places:
    """Returns where each operator was seen: all that ran, or just had, on a sample's thread."""
    found: Places = {}
    for thread in {(line.process, line.thread) for line in trace.lines}:
        lines = [line for line in trace.lines if (line.process, line.thread) == thread]
        of_thread = np.array([each == (*thread, "cpu") for each in trace.threads])
        times = np.array([line.time for line in lines])
        stacks = _stacks(trace, operators & of_thread[trace.thread_ids], times, JUST_ENDED)
        for line, stack in zip(lines, stacks, strict=True):
            if line.place.isprintable():
                for name in set(stack):
                    found.setdefault(name, Counter())[line.place] += 1
    return found


def place_of(places: Iterable[Counter[str]]) -> str:
    """Returns the place of an operator from its samples in several traces; "" if it is not known."""
    together = Counter[str]()
    for each in places:
        together.update(each)
    for place, samples in together.most_common(1):
        if samples >= max(LEAST_SAMPLES, LEAST_SHARE * together.total()):
            return place
    return ""


def memory_of(trace: Trace, operators: Rows, steps: int) -> tuple[DeviceMemory, ...]:
    """Returns what the outermost operators allocated on each device: those that the script called.

    `steps`: how many the trace has.
    """
    events = trace.allocations
    found: list[dict[str, list[int]]] = [{} for _ in events.names]
    for thread in np.unique(events.threads).tolist():
        here = np.flatnonzero(events.threads == thread)
        stacks = _stacks(trace, operators & (trace.thread_ids == thread), events.times[here])
        devices, sizes = events.devices[here].tolist(), events.sizes[here].tolist()
        for stack, device, size in zip(stacks, devices, sizes, strict=True):
            name = next((each for each in reversed(stack) if not each.startswith(BACKWARD)), OUTSIDE)
            sums = found[device].setdefault(name, [0, 0, 0])
            sums[0] += size > 0
            sums[1 if size > 0 else 2] += abs(size)
    return tuple(
        DeviceMemory(
            device=name,
            most=int(events.totals[events.devices == device].max(initial=0)),
            operators=tuple(
                OperatorMemory(operator, count, allocated, freed)
                for operator, (count, allocated, freed) in found[device].items()
            ),
            steps=steps,
        )
        for device, name in enumerate(events.names)
    )


def held_over(
    events: Allocations, device: int, edges: Numbers, parts: Mapping[str, Intervals]
) -> dict[str, bytes]:
    """Returns the memory of a device in each column of time, at its most, by the part that allocated it.

    `edges`: of the columns. The parts are "before" the first edge, the given ones, and other "operators".
    Percent of the most of all columns. {} without addresses, which distinguish what is freed.
    """
    rows = np.flatnonzero(events.devices == device)
    rows = rows[np.argsort(events.times[rows], kind="stable")]
    times = events.times[rows]
    if not len(rows) or not events.addresses[rows].all():
        return {}
    part = np.full(len(rows), len(parts))
    for number, of_part in enumerate(parts.values()):
        part[of_part.run_at(times)] = number
    part[times < edges[0]] = -1
    known: dict[int, tuple[int, int]] = {}
    changes = np.zeros((len(rows), len(parts) + 2), np.int64)
    columns = zip(events.addresses[rows].tolist(), events.sizes[rows].tolist(), part.tolist(), strict=True)
    for row, (address, size, number) in enumerate(columns):
        if size > 0:
            known[address] = number, size
            changes[row, number] = size
        elif (allocated := known.pop(address, None)) is not None:
            changes[row, allocated[0]] -= allocated[1]
    held = np.cumsum(changes, axis=0)
    held[:, -1] = np.maximum(events.totals[rows] - held[:, :-1].sum(axis=1), 0)
    at = [_most(held, *ends) for ends in pairwise(np.searchsorted(times, edges).tolist())]
    shown = np.array(at, float).T
    percents = np.rint(100 * shown / max(shown.sum(axis=0).max(), 1)).astype(np.uint8)
    names = [*parts, "operators", "before"]
    return {name: percents[number].tobytes() for number, name in enumerate(names) if percents[number].any()}


def _most(held: NDArray[np.int64], first: int, end: int) -> NDArray[np.int64]:
    """Returns the row with most among those from the one before `first` on; zeros before the first row."""
    rows = held[max(first - 1, 0) : end]
    return rows[np.argmax(rows.sum(axis=1))] if len(rows) else np.zeros(held.shape[1], np.int64)


def total_memory(captures: Sequence[DeviceMemory], places: Sequence[Places]) -> DeviceMemory:
    """Returns the sum of several traces of one device of a rank, the most bytes first.

    `places` are those of all its traces.
    """
    sums: dict[str, list[int]] = {}
    for each in (operator for capture in captures for operator in capture.operators):
        together = sums.setdefault(each.operator, [0, 0, 0])
        for at, value in enumerate((each.allocations, each.allocated, each.freed)):
            together[at] += value
    operators = [
        OperatorMemory(name, count, allocated, freed, place_of(each.get(name, Counter()) for each in places))
        for name, (count, allocated, freed) in sums.items()
    ]
    largest = max(captures, key=lambda each: each.most)
    return replace(
        largest,
        operators=tuple(sorted(operators, key=lambda each: (-each.allocated, each.operator))),
        steps=sum(each.steps for each in captures),
    )


def _stacks(trace: Trace, rows: Rows, times: Numbers, after: float = 0.0) -> Iterator[list[str]]:
    """Yields the names of the operators that run at each moment, innermost first; [] if there is none.

    Each one counts until `after` microseconds after its end. All `rows` are of one thread.
    """
    chosen = np.flatnonzero(rows)
    starts, ends = trace.starts[chosen], trace.ends[chosen]
    parents = calls_of(starts, ends, trace.thread_ids[chosen]).parents
    latest = np.searchsorted(starts, times, "right") - 1
    for time, row in zip(times.tolist(), latest.tolist(), strict=True):
        while row != NONE and ends[row] + after < time:
            row = int(parents[row])
        stack = []
        while row != NONE:
            stack.append(trace.names[trace.name_ids[chosen[row]]])
            row = int(parents[row])
        yield stack
