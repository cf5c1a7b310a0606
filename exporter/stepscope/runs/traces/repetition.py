"""Infers the steps of a trace without marks: one event begins each, and all steps are similar.

All steps run nearly the same operators. So an event that runs once per step splits the trace into parts with
the same operators. With an event that runs once per layer, they are less similar: one part also has the rest
of the step. The event whose parts are most similar begins the steps. Nothing is inferred if another number of
parts does as well. Nor is it if only a part of the trace repeats, such as the layers of a single step.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.runs.traces.events import ANNOTATION, KERNEL, OPERATOR, Trace
from stepscope.runs.traces.intervals import Numbers

LEAST_STEPS = 3
LEAST_NAMES = 5  # of operators in a step: fewer may be repeated by anything
UNEVEN = 1.5  # the most events of a step, and those before and after all steps, relative to a usual step
ALIKE = 0.99  # the least similarity (cosine of the roots of counts by name) of each step to all together
BETTER = 0.004  # by which the similarity exceeds that of all other splits
LARGEST = 1 << 24  # counts by step and name
Events = NDArray[np.int64]


class Repetition(NamedTuple):
    """The steps are between consecutive `moments`, microseconds since the origin of the trace."""

    name: str  # of the event that begins each
    moments: Numbers


def repetition(trace: Trace) -> Repetition | None:
    """Returns the steps; None if it is not sure that there are any."""
    for kinds in ((OPERATOR, ANNOTATION), (KERNEL,)):
        rows = np.flatnonzero(trace.of(*kinds))
        if len(rows):
            break
    names, events = np.unique(trace.name_ids[rows], return_inverse=True)
    splits = [
        (_similarity(events, len(names), places), name) for name, places in _regular(events, len(names))
    ]
    best = max((similarity for similarity, _ in splits), default=0.0)
    sure = [name for similarity, name in splits if similarity > best - BETTER]
    if best < ALIKE or len(sure) > 1:
        return None
    return Repetition(trace.names[names[sure[0]]], trace.starts[rows[events == sure[0]]])


def _regular(events: Events, names: int) -> Iterable[tuple[int, Events]]:
    """Returns the names that recur evenly through the whole trace: the first of each number of calls."""
    by_name = np.argsort(events, kind="stable")
    ends = np.cumsum(np.bincount(events, minlength=names))
    found: dict[int, tuple[int, Events]] = {}
    for name, places in enumerate(np.split(by_name, ends[:-1])):
        if len(places) > LEAST_STEPS:
            steps = np.diff(places)
            most = UNEVEN * float(np.median(steps))
            if max(steps.max(), places[0], len(events) - places[-1]) <= most:
                other = found.setdefault(len(places), (name, places))
                found[len(places)] = min(other, (name, places), key=lambda item: int(item[1][0]))
    return found.values()


def _similarity(events: Events, names: int, places: Events) -> float:
    """Returns how alike the parts between places are; 0 if they are too small or too many."""
    steps = len(places) - 1
    if steps * names > LARGEST:
        return 0.0
    step = np.repeat(np.arange(steps), np.diff(places))
    inside = events[places[0] : places[-1]]
    counts = np.bincount(step * names + inside, minlength=steps * names).reshape(steps, names)
    if np.count_nonzero(counts, axis=1).min() < LEAST_NAMES:
        return 0.0
    lengths = np.sqrt(counts.sum(axis=1) * counts.sum())
    return float((np.sqrt(counts) @ np.sqrt(counts.sum(axis=0)) / lengths).min())
