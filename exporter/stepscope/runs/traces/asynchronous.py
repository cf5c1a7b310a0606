"""Ends the steps that a host marked when their work has ended, which the host does not wait for."""

from __future__ import annotations

import numpy as np

from stepscope.runs.traces.events import COPY, KERNEL, NONE, PYTHON, Trace, launches
from stepscope.runs.traces.intervals import Numbers
from stepscope.runs.traces.marks import HOST


def with_their_work(trace: Trace, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers] | None:
    """Returns the starts and ends of steps that follow each other, each with the work that it launched.

    Returns None if the work ran on for longer than a step, and the trace does not say who launched it.
    """
    work = np.flatnonzero(trace.of(KERNEL, COPY))
    calls = launches(trace, trace.correlations[work])
    known = calls != NONE
    bounds = np.append(starts[0], ends)
    if not known.any():
        late = float(trace.ends[~trace.of(PYTHON)].max()) - bounds[-1]
        return None if late > (bounds[-1] - bounds[0]) / len(ends) else (starts, ends)
    launched, finished = trace.starts[calls[known]], trace.ends[work[known]]
    order = np.argsort(launched, kind="stable")
    latest = np.append(-np.inf, np.maximum.accumulate(finished[order]))
    bounds = np.maximum(bounds, latest[np.searchsorted(launched[order], bounds)])
    return bounds[:-1], bounds[1:]


def is_of_host(trace: Trace, row: int) -> bool:
    """Returns whether a mark of a step is one of the host of another profiler than PyTorch's."""
    return trace.writer != "pytorch" and bool(trace.threads[trace.thread_ids[row]].process == HOST)
