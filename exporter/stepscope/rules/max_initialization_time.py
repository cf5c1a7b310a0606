"""MaxInitializationTime: the first step comes late, or not at all.

Source: SageMaker Debugger's MaxInitializationTime, which never fires: its clock restarts at each scan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from stepscope.common.status import Status
from stepscope.common.words import duration, share
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.progress import PROGRESS, Initialization, NodeProgress, known
from stepscope.measurements.scraped import Moment, Scraped, column
from stepscope.measurements.steps import STEP_DURATIONS
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.expressions import Record
from stepscope.rules.parts.judgement import Judgement, Tallies, judgement
from stepscope.rules.parts.parameters import Minutes, Parameters, Percent, fraction
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, Scraping
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.remedies import no_steps
from stepscope.rules.parts.starting import AGE, FIRST_STEP, START
from stepscope.runs.model import RunFacts, ranks_of

END = "stepscope_run_end_time_seconds"
SAID = 13 * MINUTE  # after a late first step, while alerts name it; so they end within 15 minutes
INITIALIZATION = "run_instance:stepscope_initialization:seconds"


@dataclass(frozen=True)
class MaxInitializationTimeParameters(Parameters):
    threshold: Annotated[Minutes, "the first step finishes later than this after the run's start"] = 20
    share: Annotated[Percent, "or takes more than this share of a run that has ended; 100: never"] = 100


@rule
class MaxInitializationTime(Rule[MaxInitializationTimeParameters, Initialization]):
    """Seconds lost: the time until the first step, on the node that took longest."""

    subject = "A slow start"
    question = "Does it take too long until the first step?"
    description = (
        "Measures the time from the run's start until the first step has finished. Until then, GPUs cost "
        "money and do nothing."
    )
    recommendation = (
        "Look at what happens before the first step: download data in advance or stream it, cache prepared "
        "data, load checkpoints from local storage, and keep compiled kernels."
    )
    view = "progress"
    only_pauses = True

    measure = PROGRESS
    details_of = (STEP_DURATIONS,)

    def debugger_parameters(self) -> dict[str, float | int | str | None]:
        """Returns Debugger's only parameter."""
        return {"threshold": self.parameters.threshold}

    def judge(self, view: Initialization) -> Judgement:
        late = view.seconds > 60 * self.parameters.threshold
        late = late | (view.of_run > fraction(self.parameters.share))
        return judgement(
            np.ones_like(late),
            (view.seconds, late & ~view.over),
            (view.seconds, late & view.over & np.logical_not(view.past)),
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules; the time counts until the first step has finished.

        The share of a run is known when it has ended, so no alert needs it.
        """
        threshold = self.parameters.threshold
        late = f"{INITIALIZATION} > {60 * threshold:.12g}"
        start, first, end, age = map(scraping.held, (START, FIRST_STEP, END, AGE))
        return PrometheusRules(
            targets=start,
            every=MINUTE,
            records=[Record(INITIALIZATION, first - start | end - start | age)],
            alerts=[
                Alert(
                    f"{late} unless {first} unless {end}",
                    summary="Run {{ $labels.run }} has not finished a step on {{ $labels.instance }} yet",
                    description="{{ $value | humanizeDuration }} after its start, run {{ $labels.run }} has "
                    f"not finished a step on {{{{ $labels.instance }}}} (fires after {threshold:g} min).",
                    labels={"stage": "waiting"},
                ),
                Alert(
                    f"{late} and ({first} or {end})\n"
                    f"  unless ({age} or {end} - {start}) - {INITIALIZATION} > {SAID:.12g}",
                    severity="info",
                    summary="The first step of run {{ $labels.run }} on {{ $labels.instance }} came late",
                    description="Run {{ $labels.run }} took {{ $value | humanizeDuration }} on "
                    f"{{{{ $labels.instance }}}} until its first step (fires after {threshold:g} min).",
                    labels={"stage": "late"},
                ),
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Initialization]:
        start, first, end, age = map(scraping.held, (START, FIRST_STEP, END, AGE))
        over, lasted = (first | end).value(now), now.recorded(INITIALIZATION)
        since = ((age | end - start) - Record(INITIALIZATION, "")).value(now)
        nodes = list(lasted)
        view = Initialization(
            column(lasted, nodes),
            np.array([node in over for node in nodes], bool),
            np.array([since.get(node, 0.0) > SAID for node in nodes], bool),
        )
        return Scraped(nodes, view)

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        if run.whole:
            return Verdict(Status.NOT_ENOUGH_DATA, "A trace does not contain the run's start.")
        nodes = run.of(self.measure)
        steps = sum(node[STEP_DURATIONS].count() for node in run.nodes.values())
        starts = [self._start(name, node, run.facts) for name, node in nodes.items()]
        judged = [start for start in starts if start.judged]
        triggered = sum(start.triggered for start in judged)
        slowest = max(
            (start for start in judged if start.triggered), key=lambda start: start.took, default=None
        )
        return Verdict(
            status_of(triggered, len(judged)),
            self._finding(run.facts, judged, slowest),
            triggered,
            triggered,
            steps,
            slowest.took if slowest else 0.0,
            details=_details(nodes, starts, run.facts),
        )

    def _start(self, name: str, node: NodeProgress, facts: RunFacts) -> "Start":
        processes = [process for rank in ranks_of(facts, name).values() for process in rank]
        began = node.began(processes, facts.start)
        view = node.initialization(began, processes, facts.end)
        late = self.judge(view).fired
        # A run without samples is judged once.
        triggered = max(int(np.count_nonzero(late[:-1])), 1) if late[-1] else 0
        judged = any(process.reports_steps for process in processes) or node.stepped
        return Start(
            name,
            judged,
            began,
            float(view.seconds[-1]),
            bool(view.over[-1]),
            triggered if judged else 0,
            float(np.broadcast_to(view.of_run, view.seconds.shape)[-1]),
        )

    def _finding(self, facts: RunFacts, judged: "Sequence[Start]", slowest: "Start | None") -> str:
        if not judged:
            return no_steps(facts)
        shown = slowest or max(judged, key=lambda start: start.took)
        took = duration(shown.took)
        beyond = shown.took - 60 * self.parameters.threshold
        late = f", {duration(beyond)} above the threshold" if shown.triggered and beyond > 0 else ""
        if shown.of_run > fraction(self.parameters.share):
            late += f": {share(shown.of_run, 1.0)} of the run"
        if not shown.stepped:
            return f"On {shown.node}, no step had finished {took} after the run's start{late}."
        return f"On {shown.node}, the first step finished {took} after the run's start{late}."


class Start(NamedTuple):
    """The start of a node: the seconds until the first step had finished or until now."""

    node: str
    judged: bool
    began: float
    took: float
    stepped: bool
    triggered: int
    of_run: float  # the share (0..1) of a run that has ended; otherwise 0


def _details(nodes: Mapping[str, NodeProgress], starts: Sequence[Start], facts: RunFacts) -> dict[str, Any]:
    """Returns Debugger's fields: the job's times in seconds, the first and last step in microseconds."""
    begins = [facts.start] if facts.start is not None else [start.began for start in starts]
    times = [time for node in nodes.values() for time in known(node.last_time, node.last_end)]
    stepped = [node for node in nodes.values() if node.stepped]
    return {
        "job_start": min(begins, default=None),
        "job_end": facts.end if facts.end is not None else max(times, default=None),
        "step_num": {
            "first": min(node.first_start for node in stepped) * 1e6,
            "last": max(node.last_start for node in stepped) * 1e6,
        }
        if stepped
        else {},
        "nodes": {
            start.node: {"seconds": start.took, "stepped": start.stepped, "triggered": start.triggered}
            for start in starts
            if start.judged
        },
    }
