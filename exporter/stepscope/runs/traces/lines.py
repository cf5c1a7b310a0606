"""Finds the line of the user's code that calls an operator, from samples of the thread that calls both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stepscope.runs.traces.events import NONE, Trace
from stepscope.runs.traces.host import callers

# Microseconds after an operator in which a sample still is of it: an operator gives up the interpreter lock,
# which wakes the thread that samples, and after a short operator its thread waits for that lock.
JUST_ENDED = 100.0
LEAST_SAMPLES, LEAST_SHARE = 3, 0.5  # of an operator's samples: otherwise its line is not known

Places = dict[str, Counter[str]]  # samples by operator and place


def places_of(trace: Trace, operators: NDArray[np.bool_]) -> Places:
    """Returns where each operator was seen: the innermost one that ran, or just had, on a sample's thread."""
    found: Places = {}
    for thread in {(line.process, line.thread) for line in trace.lines}:
        lines = [line for line in trace.lines if (line.process, line.thread) == thread]
        of_thread = [each == (*thread, "cpu") for each in trace.threads]
        rows = np.flatnonzero(operators & np.array(of_thread)[trace.thread_ids])
        starts, ends = trace.starts[rows], trace.ends[rows]
        parents = callers(starts, ends, trace.thread_ids[rows])
        latest = np.searchsorted(starts, [line.time for line in lines], "right") - 1
        for line, row in zip(lines, latest.tolist(), strict=True):
            while row != NONE and ends[row] + JUST_ENDED < line.time:
                row = int(parents[row])
            if row != NONE and line.place.isprintable():
                name = trace.names[trace.name_ids[rows[row]]]
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
