"""Splits a trace at its pauses, in which the profiler recorded nothing although the training continued.

The profiler of PyTorch counts all steps, also those while `toggle_collection_dynamic` has paused it. So the
numbers of the steps jump, and no event is between them.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np

from stepscope.common.words import count, duration
from stepscope.runs.traces.events import ANNOTATION, MARKER, MICRO, OPERATOR, PYTHON, Allocations, Trace
from stepscope.runs.traces.intervals import Intervals
from stepscope.runs.traces.trace import STEP, intervals

LEAST = 0.5  # of the time between two steps: less is the end of the work of one, or what prepares the other
BY_ROW = (
    *("kinds", "name_ids", "thread_ids", "starts", "ends", "correlations", "is_collective"),
    *("shape_ids", "flops"),  # or empty
)


def parts_of(trace: Trace) -> Iterator[Trace]:
    """Yields what a trace has between its pauses, or the trace. The first part has its notes."""
    pauses = _pauses(trace)
    if not len(pauses.starts):
        yield trace
        return
    paused = duration(pauses.length * MICRO)
    note = f"has {count(len(pauses.starts), 'pause')} of its profiler, {paused}, which count in no figure"
    first, *others = zip(np.append(-inf, pauses.ends), np.append(pauses.starts, inf), strict=True)
    yield replace(_between(trace, *first), notes=(*trace.notes, note))
    for begin, end in others:
        yield replace(_between(trace, begin, end), notes=(), unknown={})


def _pauses(trace: Trace) -> Intervals:
    rows = np.flatnonzero(trace.of(ANNOTATION, OPERATOR) & trace.named(STEP.fullmatch))
    numbers = [int(trace.names[name].removeprefix(MARKER)) for name in trace.name_ids[rows].tolist()]
    jumps = np.flatnonzero(np.diff(numbers) > 1)
    found = []
    if len(jumps) and trace.writer == "pytorch":
        gaps = intervals(trace, ~trace.of(PYTHON)).gaps()
        for begin, end in zip(trace.ends[rows[jumps]], trace.starts[rows[jumps + 1]], strict=True):
            lengths = np.minimum(gaps.ends, end) - np.maximum(gaps.starts, begin)
            longest = int(np.argmax(np.append(lengths, 0)))
            if longest < len(lengths) and lengths[longest] > LEAST * (end - begin):
                found.append((gaps.starts[longest], gaps.ends[longest]))
    return Intervals(*np.array(found).reshape(-1, 2).T)


def _between(trace: Trace, begin: float, end: float) -> Trace:
    """Returns the events that begin then, and no later moment of Python functions that run on."""
    first, last = np.searchsorted(trace.starts, (begin, end)).tolist()
    by_row = {name: getattr(trace, name)[first:last] for name in BY_ROW}
    by_row["ends"] = np.minimum(by_row["ends"], end)
    allocated = (trace.allocations.times >= begin) & (trace.allocations.times < end)
    columns = trace.allocations._asdict()
    names = columns.pop("names")
    return replace(
        trace,
        **by_row,
        collectives=[call for call in trace.collectives if begin <= call.start < end],
        lines=[line for line in trace.lines if begin <= line.time < end],
        allocations=Allocations(**{name: each[allocated] for name, each in columns.items()}, names=names),
        sequences={row - first: number for row, number in trace.sequences.items() if first <= row < last},
    )
