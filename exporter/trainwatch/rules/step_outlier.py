"""StepOutlier: some steps take far longer than the others.

Source: SageMaker Debugger's StepOutlier; a step is an outlier above mean + stddev x standard deviation
(population) of all steps of its rank and phase.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.durations import Durations
from trainwatch.measurements.state import NodeState, Scans, State
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.parameters import (
    Deviations,
    Parameters,
    PhaseOrNone,
    StepCount,
)
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping
from trainwatch.rules.registry import rule
from trainwatch.rules.remedies import LONG_COMPONENT
from trainwatch.rules.shares import inside_steps, of_phases
from trainwatch.runs.model import COMPONENTS, PHASES, RunFacts, Steps, Times
from trainwatch.words import duration, ordinal

STEPS_NEEDED = 100
HISTOGRAM_BINS = 100
OUTLIERS_LISTED = 20  # of each rank and phase, with what made them long
REGULAR_GAPS = 4  # at least this many between outliers, before one may speak of a period


@dataclass(frozen=True)
class StepOutlierParameters(Parameters):
    mode: Annotated[PhaseOrNone, "judge only the steps of this phase"] = None
    n_outliers: Annotated[StepCount, "the rule fires on more outliers than this"] = 10
    stddev: Annotated[Deviations, "outliers are this many standard deviations above the mean"] = 3


@rule
class StepOutlier(Rule[StepOutlierParameters, "NodeOfSteps"]):
    """Seconds lost: what outliers took beyond the mean of their phase, on the rank that lost most."""

    parameters_type = StepOutlierParameters
    subject = "Single long steps"
    question = "Do some steps take far longer than the others?"
    description = (
        "Steps of one phase should take about the same time. Those far above the mean point to something "
        "that stalls the whole job: a checkpoint, garbage collection, a slow read, another process."
    )
    recommendation = "Look at what happens in the long steps: the time lies in what they do besides training."
    view = "steps"

    def node(self) -> NodeOfSteps:
        return NodeOfSteps(self.parameters)

    def debugger_parameters(self) -> dict[str, float | int | str | None]:
        """Debugger gives its number of standard deviations twice."""
        stddev, n_outliers = self.parameters.stddev, self.parameters.n_outliers
        return {"threshold": stddev, "mode": self.parameters.mode, "n_outliers": n_outliers, "stddev": stddev}

    def judge(self, nodes: Mapping[str, NodeOfSteps], facts: RunFacts) -> Verdict:
        series = [one for node in nodes.values() for one in node.judged_series()]
        triggered = sum(one.triggered for one in series)
        status = status_of(triggered, sum(one.judged for one in series))
        fired = [one for one in series if one.triggered]
        worst = max(fired, key=lambda one: one.excess_seconds, default=None)
        if worst is not None:
            finding = worst.words()
        elif status == "quiet":
            finding = f"No rank had more than {self.parameters.n_outliers} outliers."
        else:
            most = max((one.durations.count for one in series), default=0)
            finding = f"Too few steps: {most} of one rank and phase, and a decision needs {STEPS_NEEDED}."
        return Verdict(
            status,
            finding,
            triggered,
            sum(one.outliers for one in series),
            sum(one.durations.count for one in series),
            worst.excess_seconds if worst else 0.0,
            worst.recommendation() if worst else None,
            {
                "step_details": {one.label: one.details() for one in series if one.durations.count},
                **_what_ran(fired),
            },
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Counts the steps beyond the first bound of their histogram that is not below the limit.

        Steps between the limit and that bound are not counted, for other steps may lie there too: never more
        outliers than there are, often less.
        """
        its = self.parameters
        phase = f'{{phase="{its.mode}"}}' if its.mode else ""
        steps = f"trainwatch_step_duration_seconds_count{phase}"
        buckets = f"trainwatch_step_duration_seconds_bucket{phase}"
        bounds = "trainwatch_step_duration_bound_seconds"
        some = "run_instance_rank_phase_le:trainwatch_step_duration_seconds_bucket:some"
        mean, limit, outliers = (
            f"run_instance_rank_phase:trainwatch_step_{name}"
            for name in ("duration:mean_seconds", "outlier_limit:seconds", "outliers:count")
        )
        return PrometheusRules(
            targets=steps,
            every=4 * MINUTE,
            records=[
                Record(mean, f"trainwatch_step_duration_seconds_sum{phase} / {steps}"),
                Record(
                    limit,
                    f"""
                    {mean}
                      + {its.stddev:.12g} * sqrt(
                          clamp_min(
                            trainwatch_step_duration_squared_seconds_total{phase} / {steps} - {mean} ^ 2, 0
                          )
                        )
                    """,
                ),
                # Few of many buckets: those that hold some steps and not all. Only these can tell outliers.
                Record(some, f"({buckets} > 0) < ignoring (le) group_left () {steps}"),
                # `0 * ... +` gives each bucket its bound for a value, to be compared with the limit. Where
                # none of these lies at or above it, no step is known to; beyond all bounds nobody knows.
                Record(
                    outliers,
                    f"""
                    {steps}
                      -
                    min without (le) (
                      {some}
                        and
                      0 * {some} + ignoring (run, rank, phase) group_left () {bounds}
                        >= ignoring (le) group_left () {limit}
                    )
                      or
                    0 * ({limit} <= ignoring (run, rank, phase) group_left () max without (le) ({bounds}))
                    """,
                ),
            ],
            alerts=[
                Alert(
                    f"{outliers} > {its.n_outliers} and {steps} >= {STEPS_NEEDED}",
                    severity="info",
                    summary="Some {{ $labels.phase }} steps of run {{ $labels.run }} take far too long",
                    description="At least {{ $value | humanize }} {{ $labels.phase }} steps of rank "
                    "{{ $labels.rank }} of run {{ $labels.run }} on {{ $labels.instance }} took longer "
                    f"than the mean and {its.stddev:g} standard deviations "
                    f"(fires above {its.n_outliers} steps).",
                )
            ],
        )


class NodeOfSteps(NodeState):
    def __init__(self, parameters: StepOutlierParameters) -> None:
        self.parameters = parameters
        self.series: dict[tuple[int, str], Series] = {}  # by rank and phase

    def observe_steps(self, steps: Steps, scans: Scans) -> None:
        present = {(steps.rank, PHASES[index]) for index in np.unique(steps.phases)}
        for rank, phase in sorted(present - self.series.keys()):
            self.series[rank, phase] = Series(self.parameters, steps.node, rank, phase)
        for (rank, phase), one in self.series.items():
            if rank == steps.rank:
                its = steps.phases == PHASES.index(phase)
                ends = np.concatenate(([0], np.cumsum(its)))[scans]
                one.observe(steps.durations[its], steps.numbers[its], steps.components[its], ends)

    def judged_series(self) -> list[Series]:
        """In the order of ranks and phases; only those of the phase that `mode` asks for."""
        mode = self.parameters.mode
        return [one for key, one in sorted(self.series.items()) if mode in (None, key[1])]


class Series(State):
    """The steps of one rank in one phase, and what the scans made of them."""

    def __init__(self, parameters: StepOutlierParameters, node: str, rank: int, phase: str) -> None:
        self.parameters, self.node, self.rank, self.phase = parameters, node, rank, phase
        self.durations = Durations()
        self.at_last_scan = 0  # steps so far
        self.judged = self.triggered = 0

    def observe(
        self, durations: Times, numbers: NDArray[np.int64], components: Times, ends: NDArray[np.intp]
    ) -> None:
        self.durations.keep_longest(durations, numbers, components)
        start = 0
        for end in ends:
            self.durations.add(durations[start:end])
            start = end
            self._scan()
        self.durations.add(durations[start:])

    def _scan(self) -> None:
        if self.durations.count == self.at_last_scan:
            return  # a scan without a new step says nothing new
        self.at_last_scan = self.durations.count
        if self.durations.count >= STEPS_NEEDED:
            self.judged += 1
            self.triggered += self.outliers > self.parameters.n_outliers

    @property
    def bound(self) -> float:
        """Seconds above which a step is an outlier, by all steps so far; few steps have no outliers."""
        if self.durations.count < STEPS_NEEDED:
            return math.inf
        return self.durations.bound(self.parameters.stddev)

    @property
    def outliers(self) -> int:
        return self.durations.above(self.bound)

    @property
    def excess_seconds(self) -> float:
        """What outliers took beyond the mean."""
        return self.durations.seconds_above(self.bound) - self.outliers * self.durations.mean

    @property
    def label(self) -> str:
        return f"{self.node}, rank {self.rank}, {self.phase}"

    def longest_outliers(self) -> Times:
        """Rows (number, duration, components) of the outliers, of as many as are kept, by number."""
        longest = self.durations.longest
        return longest[longest[:, 0] > self.bound][:, [1, 0, *range(2, longest.shape[1])]]

    def words(self) -> str:
        durations = self.durations
        sentence = (
            f"{self.outliers} of {durations.count} {self.phase} steps of rank {self.rank} took longer than "
            f"{duration(self.bound)} (mean {duration(durations.mean)}), "
            f"in {self.triggered} of {self.judged} scans"
        )
        period, component = self.period(), self.component()
        if period:
            sentence += f"; it is about every {ordinal(period)} step"
        if component:
            sentence += f"; the excess lies in {component}"
        return sentence + "."

    def recommendation(self) -> str | None:
        return LONG_COMPONENT.get(self.component() or "")

    def period(self) -> int | None:
        """Steps from outlier to outlier, where most (3 of 4) of the gaps are the same within a tenth."""
        gaps = np.diff(np.sort(self.longest_outliers()[:, 0]))
        if len(gaps) < REGULAR_GAPS:
            return None
        usual = float(np.median(gaps))
        regular = np.abs(gaps - usual) <= 0.1 * usual
        return round(usual) if usual >= 2 and regular.mean() >= 0.75 else None

    def component(self) -> str | None:
        """The component that holds more than half of what outliers take beyond other steps."""
        outliers = self.longest_outliers()
        if not len(outliers) or len(outliers) == self.durations.count:
            return None
        return _longer_component(outliers[:, 1:].mean(axis=0) - self._usual())

    def _usual(self) -> Times:
        """The mean duration of the other steps, then of each of their components."""
        outliers = self.longest_outliers()[:, 1:].sum(axis=0)
        total = np.append(self.durations.mean * self.durations.count, self.durations.component_sums)
        others: Times = (total - outliers) / (self.durations.count - len(self.longest_outliers()))
        return others

    def longest_listed(self) -> list[dict[str, Any]]:
        """The longest outliers by number, and the component that made each of them long, where one did."""
        outliers = self.longest_outliers()
        if not len(outliers) or len(outliers) == self.durations.count:
            return []
        longest = outliers[np.argsort(-outliers[:, 1], kind="stable")[:OUTLIERS_LISTED]]
        usual = self._usual()
        return [
            {"number": int(row[0]), "seconds": float(row[1]), "component": _longer_component(row[1:] - usual)}
            for row in longest[np.argsort(longest[:, 0])]
        ]

    def details(self) -> dict[str, Any]:
        """Debugger's fields of a node; seconds."""
        ordered = self.durations.sorted()
        counts, edges = histogram(ordered[ordered <= self.bound])
        p50, p95, p99 = np.percentile(ordered, (50, 95, 99)).tolist()
        return {
            "step_stats": {
                "mean": self.durations.mean,
                "max": float(ordered[-1]),
                "p99": p99,
                "p95": p95,
                "p50": p50,
                "min": float(ordered[0]),
            },
            "number_of_outliers": self.outliers,
            "phase": self.phase,
            "stddev": self.durations.standard_deviation,
            "probs": counts,
            "binedges": edges,
            "step_numbers": sorted(self.longest_outliers()[:, 0].astype(int).tolist()),
            "limit_seconds": self.bound,
            "longest": self.longest_listed(),
            "period": self.period(),
            "component": self.component(),
            "rank": self.rank,
            "triggered": self.triggered,
        }


def _longer_component(excess: Times) -> str | None:
    """The component with more than half of `excess` (of the step, then of its components), if one has."""
    most = int(excess[1:].argmax())
    return COMPONENTS[most] if excess[1 + most] > excess[0] / 2 else None


def _what_ran(series: list[Series]) -> dict[str, Any]:
    """Debugger's `phase`, `forward_backward` and `general` (percent): the time of outliers that are known."""
    phases, components = dict.fromkeys(PHASES, 0.0), np.zeros(len(COMPONENTS))
    for one in series:
        outliers = one.longest_outliers()
        phases[one.phase] += float(outliers[:, 1].sum())
        components += outliers[:, 2:].sum(axis=0)
    shares = of_phases(phases, others=0.0)
    its_parts = inside_steps(dict(zip(COMPONENTS, components.tolist(), strict=True)))
    return {"phase": shares, **its_parts} if shares else {}


def histogram(ordered: Times) -> tuple[list[int], list[float]]:
    """At most 100 bins of sorted durations: counts and edges in seconds, one edge more than counts."""
    if not len(ordered):
        return [], []
    bins = min(HISTOGRAM_BINS, len(ordered))
    if ordered[-1] - ordered[0] <= 1e-9 * ordered[-1]:  # all the same: bins would have no width
        bins = 1
    counts, edges = np.histogram(ordered, bins=bins, range=(float(ordered[0]), float(ordered[-1])))
    return counts.tolist(), edges.tolist()
