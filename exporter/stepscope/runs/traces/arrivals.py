"""Reads from a rank's trace when it arrived at each collective, and what it did in each step until then."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runs.model import ProcessGroup, RankTrace, Times
from stepscope.runs.traces.events import COPY, KERNEL, MICRO, OPERATOR, Trace
from stepscope.runs.traces.trace import LOADER, StepTime, intervals, slices

# Operators that only start a collective, or wait for it.
STARTS_COLLECTIVE = ("c10d::", "_c10d_functional::", "nccl:", "record_param_comms")


def rank_trace(trace: Trace, node: str, rank: int, steps: Sequence[StepTime]) -> RankTrace:
    """Returns the arrivals of a rank."""
    starts = (np.array([step.start for step in steps]) - trace.origin) / MICRO
    ends = starts + np.array([step.seconds for step in steps]) / MICRO
    busy = _Busy(trace)
    exposed = busy.communication.minus(busy.compute | busy.copies | busy.before_communication)
    groups, group = _groups(trace)
    calls = trace.collectives
    begun = (np.array([step.launched[0] for step in steps]) - trace.origin) / MICRO
    until = (steps[-1].launched[1] - trace.origin) / MICRO
    launched = np.array([call.start if call.launched is None else call.launched for call in calls], float)

    def seconds(times: Times) -> Times:
        return trace.origin + times * MICRO

    def whole(values: list[int | None]) -> NDArray[np.int64]:
        return np.array([-1 if value is None else value for value in values], np.int64)[order]

    order = np.argsort(launched, kind="stable")
    return RankTrace(
        node=node,
        rank=rank,
        groups=groups,
        group=group[order],
        operations=tuple(calls[index].operation for index in order.tolist()),
        sequence=whole([call.sequence for call in calls]),
        peers=whole([call.about.peer for call in calls]),
        starts=seconds(np.array([call.start for call in calls], float)[order]),
        ends=seconds(np.array([call.end for call in calls], float)[order]),
        step=np.where(launched[order] < until, np.searchsorted(begun, launched[order], "right") - 1, -1),
        exposed=seconds(np.column_stack((exposed.starts, exposed.ends))),
        numbers=np.array([step.number for step in steps], np.int64),
        durations=(ends - starts) * MICRO,
        communicated=exposed.within(starts, ends) * MICRO,
        work=_work(busy, starts, ends) * MICRO,
    )


def joined(traces: Sequence[RankTrace]) -> RankTrace:
    """Returns several captures of one rank as one, in time order.

    A profiler numbers the steps of each capture from 0, and so do inferred steps: here they continue.
    """
    traces = sorted(traces, key=lambda trace: float(trace.starts.min(initial=np.inf)))
    if len(traces) == 1:
        return traces[0]
    groups = {group: index for index, group in enumerate(dict.fromkeys(g for t in traces for g in t.groups))}
    before = np.cumsum([0, *(len(trace.numbers) for trace in traces)])
    together: dict[str, Any] = {
        name: np.concatenate([getattr(trace, name) for trace in traces])
        for name, value in vars(traces[0]).items()
        if isinstance(value, np.ndarray)
    }
    together["group"] = np.concatenate(
        [np.array([groups[group] for group in trace.groups], np.int64)[trace.group] for trace in traces]
    )
    numbers = traces[0].numbers
    for trace in traces[1:]:
        again = max(int(numbers.max(initial=-1)) + 1 - int(trace.numbers.min(initial=0)), 0)
        numbers = np.concatenate((numbers, trace.numbers + again))
    together["numbers"] = numbers
    together["step"] = np.concatenate(
        [np.where(t.step < 0, -1, t.step + first) for t, first in zip(traces, before[:-1], strict=True)]
    )
    operations = tuple(operation for trace in traces for operation in trace.operations)
    return replace(traces[0], groups=tuple(groups), operations=operations, **together)


class _Busy:
    """The times in which a rank computes, copies, communicates and loads data.

    A rank that communicates on its device works there, too: what its host does meanwhile costs nothing. A
    rank that communicates on the host does not wait while the host computes or loads data.
    """

    def __init__(self, trace: Trace) -> None:
        loads = trace.named(lambda name: name.startswith(LOADER))
        operators = trace.of(OPERATOR) & ~trace.is_collective & ~loads
        operators &= ~trace.named(lambda name: name.startswith(STARTS_COLLECTIVE))
        kernels = trace.of(KERNEL) & ~trace.is_collective
        self.on_device = any(call.device != "cpu" for call in trace.collectives)
        if not self.on_device:
            kernels = kernels | operators
        self.compute = intervals(trace, kernels)
        self.copies = intervals(trace, trace.of(COPY))
        self.communication = intervals(trace, trace.is_collective)
        self.loading = intervals(trace, loads)
        self.before_communication = intervals(trace, loads & (not self.on_device))


def _work(busy: _Busy, starts: Times, ends: Times) -> Times:
    """Returns (steps, len(WORK)) microseconds; what is missing to the whole step is communication."""
    order = (busy.compute, busy.copies, busy.before_communication, busy.communication, busy.loading)
    compute, copies, loading, _, rest_of_loading, host = slices(order, starts, ends)
    return np.column_stack((compute, copies, loading + rest_of_loading, host))


def _groups(trace: Trace) -> tuple[tuple[ProcessGroup, ...], NDArray[np.int64]]:
    """Returns the groups of a rank, those without a call included, and the group of each collective.

    Calls without a group belong to the only set of ranks that the job has. Otherwise those of one stream, or
    of the host, belong together.
    """
    members = {group.ranks for group in trace.groups.values()}
    everybody = next(iter(members)) if len(members) == 1 else ()
    listed = (ProcessGroup(group.group, group.description, group.ranks) for group in trace.groups.values())
    found = {group: index for index, group in enumerate(listed)}
    indices = []
    threads = trace.thread_ids[trace.is_collective].tolist()
    for call, thread in zip(trace.collectives, threads, strict=True):
        about = call.about
        if about.group:
            group = ProcessGroup(about.group, about.description, about.ranks)
        else:
            lane = "" if call.device == "cpu" else f"stream {trace.threads[thread].thread}"
            group = ProcessGroup(lane, "default_pg" if everybody else "", everybody)
        indices.append(found.setdefault(group, len(found)))
    return tuple(found), np.array(indices, np.int64)
