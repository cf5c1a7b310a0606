"""MaxInitializationTime: the first step comes late, or not at all.

Source: SageMaker Debugger's MaxInitializationTime, whose clock starts anew at each scan, so that it never
fires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from trainwatch.measurements.state import NodeState, Scans
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.data_loading import ranks_of
from trainwatch.rules.parameters import Minutes, Parameters
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping
from trainwatch.rules.registry import rule
from trainwatch.runs.model import NodeSamples, RunFacts, Steps, Times
from trainwatch.words import duration


@dataclass(frozen=True)
class MaxInitializationTimeParameters(Parameters):
    threshold: Annotated[Minutes, "the first step has finished so long after the run's start"] = 20


@rule
class MaxInitializationTime(Rule[MaxInitializationTimeParameters, "StartingNode"]):
    """Seconds lost: what the start took beyond the threshold, on the node that took longest."""

    parameters_type = MaxInitializationTimeParameters
    subject = "A slow start"
    question = "Does it take too long until the first step?"
    description = (
        "Measures the time from the run's start until the first step has finished: until then GPUs are paid "
        "for and do nothing."
    )
    recommendation = (
        "Look at what happens before the first step: download data beforehand or stream it, cache what is "
        "prepared from it, load checkpoints from local storage, and keep compiled kernels."
    )
    view = "progress"

    def node(self) -> StartingNode:
        return StartingNode()

    def judge(self, nodes: Mapping[str, StartingNode], facts: RunFacts) -> Verdict:
        starts = [Start(name, node, facts, 60 * self.parameters.threshold) for name, node in nodes.items()]
        judged = [start for start in starts if start.judged]
        triggered = sum(start.triggered for start in judged)
        status = status_of(triggered, len(judged))
        slowest = max((one for one in judged if one.late), key=lambda one: one.took, default=None)
        return Verdict(
            status,
            self._finding(judged, slowest),
            triggered,
            triggered,
            sum(node.steps for node in nodes.values()),
            slowest.took - slowest.limit if slowest else 0.0,
            details=_details(nodes, starts, facts),
        )

    def _finding(self, judged: list[Start], slowest: Start | None) -> str:
        if not judged:
            return "No training process told of its steps: mark them with trainwatch.step."
        shown = slowest or max(judged, key=lambda one: one.took)
        took = duration(shown.took)
        late = f", {duration(shown.took - shown.limit)} later than it may" if shown.late else ""
        if shown.first_end is None:
            return f"On {shown.node}, no step had finished {took} after the run's start{late}."
        return f"On {shown.node}, the first step finished {took} after the run's start{late}."

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """The first step's start is known once it has finished; until then the time goes on."""
        threshold = self.parameters.threshold
        start, first = "trainwatch_run_start_time_seconds", "trainwatch_run_first_step_time_seconds"
        end = "trainwatch_run_end_time_seconds"
        record = "run_instance:trainwatch_initialization:seconds"
        late = f"{record} > {60 * threshold:.12g}"
        return PrometheusRules(
            targets=start,
            every=MINUTE,
            records=[
                Record(
                    record,
                    f"""
                    {first} - {start}
                    or
                    {end} - {start}
                    or
                    time() - {start}
                    """,
                )
            ],
            alerts=[
                Alert(
                    f"{late} unless {first} unless {end}",
                    summary="Run {{ $labels.run }} has made no step on {{ $labels.instance }} yet",
                    description="{{ $value | humanizeDuration }} after its start, run {{ $labels.run }} has "
                    f"not finished a step on {{{{ $labels.instance }}}} (fires after {threshold:g} min).",
                    labels={"stage": "waiting"},
                ),
                Alert(
                    f"{late} and ({first} or {end})",
                    severity="info",
                    summary="The first step of run {{ $labels.run }} on {{ $labels.instance }} came late",
                    description="Run {{ $labels.run }} passed {{ $value | humanizeDuration }} on "
                    f"{{{{ $labels.instance }}}} before its first step (fires after {threshold:g} min).",
                    labels={"stage": "late"},
                ),
            ],
        )


class StartingNode(NodeState):
    """When scans were, when steps began and ended. Eight bytes a scan are kept, nothing else grows."""

    def __init__(self) -> None:
        self.scan_times: Times = np.empty(0)  # of the last snapshot that each scan sees
        self.first_sample = self.last_time = np.nan
        self.steps = 0
        self.first_start = self.first_end = np.inf  # of steps
        self.last_start = self.last_end = -np.inf

    def observe(self, samples: NodeSamples, scans: Scans) -> None:
        times = np.concatenate(([self.last_time], samples.times))
        self.scan_times = np.concatenate((self.scan_times, times[scans]))
        self.last_time = float(times[-1])
        if np.isnan(self.first_sample):
            self.first_sample = float(times[min(1, len(times) - 1)])

    def observe_steps(self, steps: Steps, scans: Scans) -> None:
        if len(steps):
            ends = steps.starts + steps.durations
            self.steps += len(steps)
            self.first_start = min(self.first_start, float(steps.starts.min()))
            self.last_start = max(self.last_start, float(steps.starts.max()))
            self.first_end = min(self.first_end, float(ends.min()))
            self.last_end = max(self.last_end, float(ends.max()))


class Start:
    """How a node began: seconds from the run's start until its first step had finished, or until now."""

    def __init__(self, name: str, state: StartingNode, facts: RunFacts, limit: float) -> None:
        self.node, self.limit = name, limit
        processes = [one for ranks in ranks_of(facts, name).values() for one in ranks]
        self.judged = bool(processes or state.steps)
        began = [one.start for one in processes] if facts.start is None else [facts.start]
        self.start = min(
            [*began, *([] if began else _known(state.first_sample, state.first_start))], default=0.0
        )
        # Steps that were counted, but whose records nobody read in time, have finished too.
        counted = [
            one.first_step_start
            for one in processes
            if one.first_step_start is not None and any(one.steps.values())
        ]
        self.first_end = min([*_known(state.first_end), *counted], default=None)
        now = max(_known(state.last_time, state.last_end), default=self.start)
        self.took = (now if self.first_end is None else self.first_end) - self.start
        self.late = self.judged and self.took > limit
        scans = int(np.count_nonzero(state.scan_times - self.start > limit))
        self.triggered = max(scans, 1) if self.late else 0  # a run without snapshots is looked at once


def _known(*times: float) -> list[float]:
    return [time for time in times if np.isfinite(time)]


def _details(nodes: Mapping[str, StartingNode], starts: list[Start], facts: RunFacts) -> dict[str, Any]:
    """Debugger's fields: the job's start and end in seconds, its first and last step in microseconds."""
    states = list(nodes.values())
    begins = [facts.start] if facts.start is not None else [start.start for start in starts]
    times = [time for one in states for time in _known(one.last_time, one.last_end)]
    first = min((one.first_start for one in states if one.steps), default=None)
    last = max((one.last_start for one in states if one.steps), default=None)
    return {
        "job_start": min(begins, default=None),
        "job_end": facts.end if facts.end is not None else max(times, default=None),
        "step_num": {} if first is None or last is None else {"first": first * 1e6, "last": last * 1e6},
        "nodes": {
            one.node: {"seconds": one.took, "stepped": one.first_end is not None, "triggered": one.triggered}
            for one in starts
            if one.judged
        },
    }
