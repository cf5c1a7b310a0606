"""StepOutlier: some steps take far longer than the others.

Source: SageMaker Debugger's StepOutlier; a step is an outlier above mean + stddev x standard deviation
(population) of all steps of its rank and phase.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.scraped import (
    STEPS,
    Moment,
    Scraped,
    Vector,
    both,
    column,
    divided,
    without,
)
from trainwatch.measurements.steps import STEPS_NEEDED, Durations, ScrapedSteps, StepDurations, StepsAtScans
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.judgement import Judgement, Tallies, Tally, judgement
from trainwatch.rules.parameters import Deviations, Parameters, PhaseOrNone, StepCount
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping
from trainwatch.rules.registry import rule
from trainwatch.rules.remedies import LONG_COMPONENT
from trainwatch.rules.shares import inside_steps, of_phases
from trainwatch.runs.model import COMPONENTS, PHASES, Times
from trainwatch.status import Status
from trainwatch.words import duration, ordinal

SOME = "run_instance_rank_phase_le:trainwatch_step_duration_seconds_bucket:some"
MEAN = "run_instance_rank_phase:trainwatch_step_duration:mean_seconds"
LIMIT = "run_instance_rank_phase:trainwatch_step_outlier_limit:seconds"
OUTLIERS = "run_instance_rank_phase:trainwatch_step_outliers:count"
SQUARES = "trainwatch_step_duration_squared_seconds_total"

OUTLIERS_LISTED = 20  # per rank and phase, with the component that made them long
REGULAR_GAPS = 4  # gaps between outliers that a period needs


@dataclass(frozen=True)
class StepOutlierParameters(Parameters):
    mode: Annotated[PhaseOrNone, "judge only the steps of this phase"] = None
    n_outliers: Annotated[StepCount, "the rule fires on more outliers than this"] = 10
    stddev: Annotated[Deviations, "outliers are this many standard deviations above the mean"] = 3


@rule
class StepOutlier(Rule[StepOutlierParameters, StepsAtScans | ScrapedSteps]):
    """Seconds lost: the time of outliers beyond the mean of their phase, on the rank that lost most."""

    parameters_type = StepOutlierParameters
    subject = "Single long steps"
    question = "Do some steps take far longer than the others?"
    description = (
        "Steps of one phase should take about the same time. Those far above the mean point to something "
        "that stalls the whole job: a checkpoint, garbage collection, a slow read, another process."
    )
    recommendation = "Look at what the long steps do in addition to training."
    view = "steps"

    @property
    def measure(self) -> StepDurations:
        return StepDurations()

    def debugger_parameters(self) -> dict[str, float | int | str | None]:
        """Returns Debugger's parameters, which contain the number of standard deviations twice."""
        stddev, n_outliers = self.parameters.stddev, self.parameters.n_outliers
        return {"threshold": stddev, "mode": self.parameters.mode, "n_outliers": n_outliers, "stddev": stddev}

    def judge(self, view: StepsAtScans | ScrapedSteps) -> Judgement:
        outliers = view.outliers(self.parameters.stddev)
        return judgement(view.steps >= STEPS_NEEDED, (outliers, outliers > self.parameters.n_outliers))

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules: they count the steps above the histogram's first bound at or above the limit.

        Steps between the limit and that bound are not counted, because others may be there too. So the count
        is never too high, and often too low.
        """
        parameters = self.parameters
        phase = f'{{phase="{parameters.mode}"}}' if parameters.mode else ""
        steps, buckets = f"{STEPS}_count{phase}", f"{STEPS}_bucket{phase}"
        bounds = "trainwatch_step_duration_bound_seconds"
        return PrometheusRules(
            targets=steps,
            every=4 * MINUTE,
            records=[
                Record(MEAN, f"{STEPS}_sum{phase} / {steps}"),
                Record(
                    LIMIT,
                    f"""
                    {MEAN}
                      + {parameters.stddev:.12g} * sqrt(
                          clamp_min(
                            {SQUARES}{phase} / {steps} - {MEAN} ^ 2, 0
                          )
                        )
                    """,
                ),
                # Few buckets contain some steps and not all. Only these can reveal outliers.
                Record(SOME, f"({buckets} > 0) < ignoring (le) group_left () {steps}"),
                # `0 * ... +` gives each bucket its bound as its value, to compare it with the limit. If no
                # bound is at or above the limit, no outlier is certain.
                Record(
                    OUTLIERS,
                    f"""
                    {steps}
                      -
                    min without (le) (
                      {SOME}
                        and
                      0 * {SOME} + ignoring (run, rank, phase) group_left () {bounds}
                        >= ignoring (le) group_left () {LIMIT}
                    )
                      or
                    0 * ({LIMIT} <= ignoring (run, rank, phase) group_left () max without (le) ({bounds}))
                    """,
                ),
            ],
            alerts=[
                Alert(
                    f"{OUTLIERS} > {parameters.n_outliers} and {steps} >= {STEPS_NEEDED}",
                    severity="info",
                    summary="Some {{ $labels.phase }} steps of run {{ $labels.run }} take far too long",
                    description="At least {{ $value | humanize }} {{ $labels.phase }} steps of rank "
                    "{{ $labels.rank }} of run {{ $labels.run }} on {{ $labels.instance }} took more than "
                    f"{parameters.stddev:g} standard deviations longer than the mean "
                    f"(fires above {parameters.n_outliers} steps).",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[ScrapedSteps]:
        """Counts the outliers that are certain; above the histogram's last bound none is."""
        phase = f'phase="{self.parameters.mode}"' if self.parameters.mode else ""
        steps, buckets = now(f"{STEPS}_count", phase), now(f"{STEPS}_bucket", phase)
        mean = both(now(f"{STEPS}_sum", phase), steps, divided)
        squares = both(now(SQUARES, phase), steps, divided)
        deviation = both(squares, mean, lambda square, average: math.sqrt(max(square - average**2, 0)))
        limit = both(mean, deviation, lambda average, wide: average + self.parameters.stddev * wide)
        within: Vector = {}  # the steps up to the first bound at or above the limit
        for labels, count in buckets.items():
            series = without(labels, "le")
            if series in limit and math.inf > float(dict(labels)["le"]) >= limit[series]:
                within[series] = min(count, within.get(series, math.inf))
        outliers = both(steps, within, lambda count, rest: count - rest)
        some = {
            labels: count
            for labels, count in buckets.items()
            if 0 < count < steps.get(without(labels, "le"), 0)
        }
        known = list(outliers)
        view = ScrapedSteps(column(steps, known), column(outliers, known))
        return Scraped(known, view, steps, {SOME: some, MEAN: mean, LIMIT: limit, OUTLIERS: outliers})

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        series = self._series(run, tallies)
        triggered = sum(steps.tally.triggered for steps in series)
        status = status_of(triggered, sum(steps.tally.judged for steps in series))
        fired = [steps for steps in series if steps.tally.triggered]
        worst = max(fired, key=lambda steps: steps.excess_seconds, default=None)
        if worst is not None:
            finding = worst.words()
        elif status is Status.HEALTHY:
            finding = f"No rank had more than {self.parameters.n_outliers} outliers."
        else:
            most = max((steps.count for steps in series), default=0)
            finding = f"Too few steps: {most} of one rank and phase, and a decision needs {STEPS_NEEDED}."
        return Verdict(
            status,
            finding,
            triggered,
            sum(steps.outliers for steps in series),
            sum(steps.count for steps in series),
            worst.excess_seconds if worst else 0.0,
            worst.recommendation() if worst else None,
            {
                "step_details": {
                    f"{steps.node}, rank {steps.rank}, {steps.phase}": steps.details() for steps in series
                },
                **_what_ran(fired),
            },
        )

    def _series(self, run: RunMeasurements, tallies: Tallies) -> list[Series]:
        """Returns the judged series, in the order of nodes, ranks and phases."""
        return [
            Series(name, rank, phase, durations, tallies.of(name, (rank, phase)), self.parameters.stddev)
            for name, node in run.of(self.measure).items()
            for (rank, phase), durations in sorted(node.durations.items())
            if self.parameters.mode in (None, phase)
        ]


class Series:
    """The steps of one rank in one phase, and the tally of their scans."""

    def __init__(
        self, node: str, rank: int, phase: str, durations: Durations, tally: Tally, deviations: float
    ) -> None:
        self.node, self.rank, self.phase = node, rank, phase
        self.durations, self.tally = durations, tally
        self.count, self.mean = durations.sums.count, durations.sums.mean
        self.limit = durations.limit(deviations)
        self.outliers = durations.above(self.limit)

    @property
    def excess_seconds(self) -> float:
        """Returns the time of outliers beyond the mean."""
        return self.durations.seconds_above(self.limit) - self.outliers * self.mean

    def longest_outliers(self) -> Times:
        """Returns the kept outliers as rows (number, duration, components), by number."""
        longest = self.durations.longest
        return longest[longest[:, 0] > self.limit][:, [1, 0, *range(2, longest.shape[1])]]

    def words(self) -> str:
        sentence = (
            f"{self.outliers} of {self.count} {self.phase} steps of rank {self.rank} took longer than "
            f"{duration(self.limit)} (mean {duration(self.mean)}), "
            f"in {self.tally.triggered} of {self.tally.judged} scans"
        )
        period, component = self.period(), self.component()
        if period:
            sentence += f"; it is about every {ordinal(period)} step"
        if component:
            sentence += f"; most of the excess is {component}"
        return sentence + "."

    def recommendation(self) -> str | None:
        return LONG_COMPONENT.get(self.component() or "")

    def period(self) -> int | None:
        """Returns the steps from outlier to outlier, if 3 of 4 gaps are the same within a tenth."""
        gaps = np.diff(np.sort(self.longest_outliers()[:, 0]))
        if len(gaps) < REGULAR_GAPS:
            return None
        usual = float(np.median(gaps))
        regular = np.abs(gaps - usual) <= 0.1 * usual
        return round(usual) if usual >= 2 and regular.mean() >= 0.75 else None

    def component(self) -> str | None:
        """Returns the component with more than half of the outliers' time beyond other steps."""
        outliers = self.longest_outliers()
        if not len(outliers) or len(outliers) == self.count:
            return None
        return _longer_component(outliers[:, 1:].mean(axis=0) - self._usual())

    def _usual(self) -> Times:
        """Returns the mean duration of the other steps, then of each of their components."""
        outliers = self.longest_outliers()[:, 1:].sum(axis=0)
        total = np.append(self.mean * self.count, self.durations.sums.components)
        others: Times = (total - outliers) / (self.count - len(self.longest_outliers()))
        return others

    def longest_listed(self) -> list[dict[str, Any]]:
        """Returns the longest outliers by number, each with the component that made it long, if known."""
        outliers = self.longest_outliers()
        if not len(outliers) or len(outliers) == self.count:
            return []
        longest = outliers[np.argsort(-outliers[:, 1], kind="stable")[:OUTLIERS_LISTED]]
        usual = self._usual()
        return [
            {"number": int(row[0]), "seconds": float(row[1]), "component": _longer_component(row[1:] - usual)}
            for row in longest[np.argsort(longest[:, 0])]
        ]

    def details(self) -> dict[str, Any]:
        """Returns Debugger's fields of a node, in seconds."""
        found = self.durations.distribution(self.limit)
        return {
            "step_stats": {
                "mean": self.mean,
                "max": found.max,
                "p99": found.p99,
                "p95": found.p95,
                "p50": found.p50,
                "min": found.min,
            },
            "number_of_outliers": self.outliers,
            "phase": self.phase,
            "stddev": self.durations.sums.standard_deviation,
            "probs": found.counts,
            "binedges": found.edges,
            "step_numbers": sorted(self.longest_outliers()[:, 0].astype(int).tolist()),
            "limit_seconds": self.limit,
            "longest": self.longest_listed(),
            "period": self.period(),
            "component": self.component(),
            "rank": self.rank,
            "triggered": self.tally.triggered,
        }


def _longer_component(excess: Times) -> str | None:
    """Returns the component with more than half of `excess` (of the step, then of components), if any."""
    most = int(excess[1:].argmax())
    return COMPONENTS[most] if excess[1 + most] > excess[0] / 2 else None


def _what_ran(series: list[Series]) -> dict[str, Any]:
    """Returns Debugger's `phase`, `forward_backward` and `general` in percent, of the kept outliers."""
    phases, components = dict.fromkeys(PHASES, 0.0), np.zeros(len(COMPONENTS))
    for steps in series:
        outliers = steps.longest_outliers()
        phases[steps.phase] += float(outliers[:, 1].sum())
        components += outliers[:, 2:].sum(axis=0)
    shares = of_phases(phases, others=0.0)
    parts = inside_steps(dict(zip(COMPONENTS, components.tolist(), strict=True)))
    return {"phase": shares, **parts} if shares else {}
