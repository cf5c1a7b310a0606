"""StepOutlier: some steps take far longer than the others, and that costs time.

Source: SageMaker Debugger's StepOutlier; a step is an outlier above mean + stddev x standard deviation
(population) of all steps of its rank and phase. Debugger fires on their number, which a long run always
reaches: even a loop of sleeps. Here the time decides that they cost. Debugger's count is in the JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np

from stepscope.common.status import Status
from stepscope.common.words import duration, ordinal, percent
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.own_cores import OWN_CORES
from stepscope.measurements.pauses import HOST
from stepscope.measurements.scraped import STEPS, Moment, Scraped, Window, column, grouped
from stepscope.measurements.steps import (
    FEWEST,
    STEP_DURATIONS,
    STEPS_NEEDED,
    Durations,
    ScrapedSteps,
    StepsAtScans,
)
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.expressions import Expression, Gain, Record, Shared
from stepscope.rules.parts.judgement import Booleans, Judgement, Tallies, Tally, judgement
from stepscope.rules.parts.parameters import (
    LIVE_WINDOW,
    Deviations,
    LiveMinutes,
    Parameters,
    Percent,
    PhaseOrNone,
    StepCount,
    fraction,
)
from stepscope.rules.parts.promql import (
    MINUTE,
    OF_RANK,
    Alert,
    PrometheusRules,
    Scraping,
    looked_up,
    rank_of_run,
    ratio,
)
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.remedies import LONG_COMPONENT
from stepscope.rules.parts.shares import inside_steps, of_phases
from stepscope.runs.model import COMPONENTS, PHASES, USEFUL, Times

COUNT = "run_instance_rank_phase:stepscope_step_duration:count"
TOOK = "run_instance_rank_phase:stepscope_step_duration:seconds"
SOME = "run_instance_rank_phase_le:stepscope_step_duration_seconds_bucket:some"
MEAN = "run_instance_rank_phase:stepscope_step_duration:mean_seconds"
LIMIT = "run_instance_rank_phase:stepscope_step_outlier_limit:seconds"
LONGER = "run_instance_rank_phase_le:stepscope_step_outliers:longer"
OUTLIERS = "run_instance_rank_phase:stepscope_step_outliers:count"
LOST = "run_instance_rank_phase:stepscope_step_outliers:lost_ratio"
THIRDS = "run_instance_rank_phase_third:stepscope_step_duration:mean_seconds"
SQUARES = "stepscope_step_duration_squared_seconds_total"
OWN_SECONDS, OWN_SQUARES = "stepscope_step_own_seconds_total", "stepscope_step_own_squared_seconds_total"
BOUNDS = "stepscope_step_duration_bound_seconds"
SERIES = (*OF_RANK, "phase")  # labels

OUTLIERS_LISTED = 20  # per rank and phase, with the component that made them long
REGULAR_GAPS = 4  # gaps between outliers that a period needs
RECURRING = 3  # fewer outliers are events, such as a compilation
LONG_STEPS = 30  # that a live window needs at least, if steps are long
# If one third of a live window is without more than this share of their cost, the steps were slow for a time.
# Half would do, but the histogram's cost is too low.
MISSING = 0.6
STAGE = 0.5  # of the steps' time, from which outliers one after another are a stage of the run
COMMUNICATION = COMPONENTS.index("communication")
OWN_SHARE = 0.5  # of the variance of steps: above it, their rank is long by itself
LEAST_LOST = 1e-3  # seconds: a finding of which waiting for a core explains all is a small one
APART = 0.428  # two neighbouring bounds of the histogram are at least this share of the upper one apart


@dataclass(frozen=True)
class StepOutlierParameters(Parameters):
    mode: Annotated[PhaseOrNone, "judge only the steps of this phase"] = None
    n_outliers: Annotated[StepCount, "RuleTriggered counts scans with more outliers, as in Debugger"] = 10
    stddev: Annotated[Deviations, "outliers are this many standard deviations above the mean"] = 3
    time_lost: Annotated[Percent, "the rule fires if outliers cost more than this share of the time"] = 2
    live_window: Annotated[LiveMinutes, LIVE_WINDOW] = 15


@rule
class StepOutlier(Rule[StepOutlierParameters, StepsAtScans | ScrapedSteps]):
    """Seconds lost: the time of outliers beyond the mean of their phase, on the rank that lost most.

    The time in which the main thread had no core in them is subtracted. If no cause was measured, so is what
    others took from its cores in the whole run: it is known as a sum only, and may all be theirs.
    """

    subject = "Single long steps"
    question = "Do some steps take far longer than the others, and does that cost time?"
    description = (
        "Steps of one phase should take about the same time. Those far above the mean point to something "
        "that stalls the whole job: a checkpoint, garbage collection, a slow read, another process."
    )
    recommendation = "Look at what the long steps do in addition to training."
    bands = Bands("rank", [Worst("{} of the time cost by outliers")])
    view = "steps"
    only_pauses = True

    measure = STEP_DURATIONS
    details_of = (OWN_CORES,)

    def debugger_parameters(self) -> dict[str, float | int | str | None]:
        """Returns Debugger's parameters, which contain the number of standard deviations twice."""
        stddev, n_outliers = self.parameters.stddev, self.parameters.n_outliers
        return {"threshold": stddev, "mode": self.parameters.mode, "n_outliers": n_outliers, "stddev": stddev}

    def judge(self, view: StepsAtScans | ScrapedSteps) -> Judgement:
        """Decides by the steps after the warm-up: the first ones, if they are outliers, cost no finding."""
        assert isinstance(view, StepsAtScans)
        return self._judged(view, view.steps >= STEPS_NEEDED, *view.later(self.parameters.stddev))

    def judge_whole(self, view: StepsAtScans | ScrapedSteps) -> Judgement:
        """Judges the few steps of a trace, in which a single outlier may cost much."""
        assert isinstance(view, StepsAtScans)
        moments: list[Durations] = view.moments().tolist()
        limits = [steps.limit_of_few(self.parameters.stddev) for steps in moments]
        excess = [steps.share(steps.later(limit)[1]) for steps, limit in zip(moments, limits, strict=True)]
        lost = np.array(excess)
        return judgement(view.steps >= FEWEST, (lost, lost > fraction(self.parameters.time_lost)))

    def judge_live(self, view: StepsAtScans | ScrapedSteps, sample_interval: float) -> Judgement:
        """Decides from 100 steps on; if steps are long, 30 that took half the window are enough.

        Steps that were slow for a time are no outliers: each third of the window must have its share. Steps
        of a single third may be those of a warm-up.
        """
        long = (view.steps >= LONG_STEPS) & (view.seconds >= self._half_the_window)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = view.seconds / view.steps
        outliers, lost = view.outliers(self.parameters.stddev), view.lost(self.parameters.stddev)
        at_all_times = view.quickest >= (1 - MISSING * lost) * mean
        return self._judged(view, (view.steps >= STEPS_NEEDED) | long, outliers, lost, at_all_times)

    def _judged(
        self,
        view: StepsAtScans | ScrapedSteps,
        enough: Booleans,
        outliers: Times,
        lost: Times,
        at_all_times: Booleans | bool = True,
    ) -> Judgement:
        parameters = self.parameters
        costly = (lost > fraction(parameters.time_lost)) & (outliers >= RECURRING) & at_all_times
        of_debugger = view.outliers(parameters.stddev) > parameters.n_outliers
        return judgement(enough, (lost, costly), debugger=enough & of_debugger)

    @property
    def _half_the_window(self) -> float:
        return MINUTE / 2 * self.parameters.live_window

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules: they count the steps above the histogram's first bound at or above the limit.

        Steps between the limit and that bound are not counted, because others may be there too. Each counted
        step took at least the lower bound of its bucket. So neither the count nor the cost is ever too high.
        """
        parameters, window = self.parameters, self._window(scraping)
        squares = Gain(f"{SQUARES}{self._phase}", window, joined=True)
        buckets = Gain(f"{STEPS}_bucket{self._phase}", window, lambda each: each > 0, joined=True)
        all_bounds = scraping.held(BOUNDS, of_run=False)
        bounds, highest = (
            Shared(each, ignoring=("run", "rank", "phase"))
            for each in (all_bounds, all_bounds.max_without("le"))
        )
        count, took = self._gains(scraping)
        mean = Record(MEAN, took / (count > 0))
        thirds = "\n  or\n".join(
            f'label_replace(\n  {each}, "third", "{third}", "", ""\n)'
            for third, each in self._thirds(scraping).items()
        )
        variance = (squares / count - mean**2).function("clamp_min", 0)
        limit = Record(LIMIT, mean + variance.function("sqrt") * parameters.stddev)
        # Few buckets contain some steps and not all. Only these can reveal outliers.
        of_all, of_series = (Shared(each, ignoring=("le",)) for each in (count, limit))
        some = Record(SOME, (buckets > 0) < of_all)
        # `* 0 +` gives each bucket its bound as its value, to compare it with the limit.
        longer = Record(LONGER, (some & (some * 0 + bounds >= of_series)) * -1 + of_all)
        # If no bound is at or above the limit, no outlier is certain.
        outliers = Record(OUTLIERS, longer.max_without("le") | (limit <= highest) * 0)
        # All outliers exceed the first bound, some of them the next ones.
        bound = longer * 0 + bounds
        least = longer.max_without("le") * (bound.min_without("le") * (1 - APART) - mean)
        further = (longer * bound).sum_without("le") * APART
        lost = Record(LOST, (least + further) / took | outliers * 0)
        return PrometheusRules(
            targets=count,
            every=4 * MINUTE,
            records=[count, took, mean, Record(THIRDS, thirds), limit, some, longer, outliers, lost],
            alerts=[
                Alert(
                    f"{LOST} > {ratio(parameters.time_lost)}\n"
                    f"  and {OUTLIERS} >= {RECURRING}\n"
                    f"  and ({COUNT} >= {STEPS_NEEDED} or {COUNT} >= {LONG_STEPS} "
                    f"and {TOOK} >= {self._half_the_window:.12g})\n"
                    f"  and count without (third) ({THIRDS}) > 1\n"
                    f"  and min without (third) ({THIRDS}) >= (1 - {MISSING:g} * {LOST}) * {MEAN}",
                    severity="info",
                    summary="Some {{ $labels.phase }} steps of run {{ $labels.run }} take far too long",
                    description=f"In the last {parameters.live_window:g} minutes, "
                    f"{looked_up(f'{OUTLIERS}{{}}', SERIES, 'at least {{ printf `%.0f` .Value }} of ')}"
                    f"{looked_up(f'{COUNT}{{}}', SERIES, '{{ printf `%.0f` .Value }} ')}"
                    f"{{{{ $labels.phase }}}} steps of {rank_of_run(COUNT)} on "
                    "{{ $labels.instance }} took more than "
                    f"{parameters.stddev:g} standard deviations longer than the mean"
                    f"{looked_up(f'{MEAN}{{}}', SERIES, ' of {{ .Value | humanizeDuration }}')}"
                    f"{looked_up(f'{LIMIT}{{}}', SERIES, ', above {{ .Value | humanizeDuration }}')}. "
                    "Beyond the mean, they cost at least {{ $value | humanizePercentage }} of the steps' "
                    f"time (fires above {parameters.time_lost:g} %).{self._whose(window)}",
                    lost="{}",
                )
            ],
        )

    def _gains(self, scraping: Scraping) -> tuple[Record, Record]:
        """Returns the steps in the window, and their seconds."""
        window = self._window(scraping)
        count = Record(COUNT, Gain(f"{STEPS}_count{self._phase}", window))
        return count, Record(TOOK, Gain(f"{STEPS}_sum{self._phase}", window, joined=True) & count)

    def _thirds(self, scraping: Scraping) -> dict[str, Expression]:
        """Returns the mean duration of those thirds of the window that have steps.

        Counters that began within the last two have no value at their begin: then the first third is all
        before the last.
        """
        gains = []
        for whole, part in zip(self._gains(scraping), ("count", "sum"), strict=True):
            now, late, early = (
                scraping.held(f"{STEPS}_{part}{self._phase}", self._window(scraping, thirds).seconds)
                for thirds in range(3)
            )
            gains.append((now - late, late - early, whole - (now - (early | late) >= 0)))
        return {
            third: (seconds >= 0) / (steps > 0) for third, steps, seconds in zip("321", *gains, strict=True)
        }

    def _whose(self, window: Window) -> str:
        """Returns the template's sentence on whether this rank is slow in its long steps, or waits in them.

        It asks for the series of one rank only, because all ranks of a run may have the alert.
        """
        of_train = '{phase="train",%[1]s}'
        own, squares = (
            f"{Gain(f'{series}{{}}', window, joined=True)} / ignoring (phase) {COUNT}{of_train}"
            for series in (OWN_SECONDS, OWN_SQUARES)
        )
        variance = f"(({LIMIT}{of_train} - {MEAN}{of_train}) / {self.parameters.stddev:.12g}) ^ 2"
        own_variance = f"clamp_min({squares} - ({own}) ^ 2, 0)"
        varies = f"clamp_max({own_variance} / ignoring (phase) {variance}, 1)"
        value = "{{ .Value | humanizePercentage }}"
        itself = (
            f" Its own time, without communication, explains {value} of their variance: it makes "
            "these steps long itself."
        )
        waits = (
            f" Its own time explains only {value} of their variance: it waits in these "
            "steps, for another rank or the network."
        )
        words = f"{{{{ if gt .Value {OWN_SHARE} }}}}{itself}{{{{ else }}}}{waits}{{{{ end }}}}"
        # Without the value of a rank whose steps do not vary: NaN.
        whose = looked_up(f"{varies} >= 0", OF_RANK, words)
        return f'{{{{ if eq $labels.phase "train" }}}}{whose}{{{{ end }}}}'

    @property
    def _phase(self) -> str:
        """Returns the matcher of the judged phase."""
        return f'{{phase="{self.parameters.mode}"}}' if self.parameters.mode else ""

    def _window(self, scraping: Scraping, thirds: int = 3) -> Window:
        return scraping.last(MINUTE * self.parameters.live_window * thirds / 3)

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[ScrapedSteps]:
        """Counts the outliers that are certain; above the histogram's last bound none is."""
        steps, took, outliers, lost, thirds = (
            now.recorded(name) for name in (COUNT, TOOK, OUTLIERS, LOST, THIRDS)
        )
        of_thirds = {
            labels | {("third", third)}: seconds
            for third, mean_of_third in self._thirds(scraping).items()
            for labels, seconds in mean_of_third.value(now).items()
        }
        judged = list(lost)
        means = grouped(thirds, "third")
        quickest = {labels: min(each) for labels, each in means.items() if len(each) > 1}
        view = ScrapedSteps(*(column(values, judged) for values in (steps, took, outliers, lost, quickest)))
        return Scraped(judged, view, {THIRDS: of_thirds})

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        series = self._series(run, tallies)
        triggering = (steps for steps in series if steps.tally.triggered)
        fired = [steps for steps in triggering if not (steps.only_warm_up or steps.are_a_stage)]
        triggered = sum(steps.tally.triggered for steps in fired)
        status = status_of(triggered, sum(steps.tally.judged for steps in series))
        worst = max(fired, key=lambda steps: steps.excess_seconds, default=None)
        culprit = _culprit(worst.phase, series) if worst is not None else None
        if culprit is not None:
            worst = culprit.series if culprit.series in fired else worst
        known = worst is None or bool(culprit or worst.recommendation())
        waited, perhaps = _without_core(run, worst, known) if worst is not None else (0.0, 0.0)
        if worst is not None:
            alone = len({(steps.node, steps.rank) for steps in series}) == 1
            finding = worst.words(alone) + (f" {culprit.words()}" if culprit else "")
            if waited:
                finding += f" For {duration(waited)} of that, it was ready to run but had no core."
            if perhaps:
                finding += f" Up to {duration(perhaps)} may be due to cores that others used."
        elif status is Status.HEALTHY:
            finding = f"Outliers cost no rank more than {self.parameters.time_lost:g} % of its steps' time."
        else:
            most = max((steps.count for steps in series), default=0)
            needed = FEWEST if run.whole else STEPS_NEEDED
            finding = f"Too few steps: {most} of one rank and phase, and a decision needs {needed}."
        return Verdict(
            status,
            finding,
            triggered,
            sum(steps.outliers for steps in series),
            sum(steps.count for steps in series),
            max(worst.excess_seconds - waited - perhaps, LEAST_LOST) if worst else 0.0,
            worst.recommendation() if worst else None,
            {
                "step_details": {
                    f"{steps.node}, rank {steps.rank}, {steps.phase}": steps.details() for steps in series
                },
                **({"culprit": culprit.details()} if culprit else {}),
                **({"part": worst.phase} if worst and worst.phase != "train" else {}),
                **({"component": worst.component} if worst and worst.component else {}),
                **({"explains": HOST} if worst and worst.are_of_the_host() else {}),
                **({"excess_by_component": shared} if worst and (shared := worst.shared_excess()) else {}),
                **_what_ran(fired),
            },
            debugger_triggered=sum(steps.tally.debugger_triggered for steps in series),
            cause_known=known,
        )

    def _series(self, run: RunMeasurements, tallies: Tallies) -> "list[Series]":
        """Returns the judged series, in the order of nodes, ranks and phases."""
        return [
            Series(
                name,
                rank,
                phase,
                durations,
                tallies.of(name, (rank, phase)),
                self.parameters.stddev,
                run.whole,
            )
            for name, node in run.of(self.measure).items()
            for (rank, phase), durations in sorted(node.durations.items())
            if self.parameters.mode in (None, phase)
        ]


class Series:
    """The steps of one rank in one phase, and the tally of their scans."""

    def __init__(
        self,
        node: str,
        rank: int,
        phase: str,
        durations: Durations,
        tally: Tally,
        deviations: float,
        whole: bool,
    ) -> None:
        self.node, self.rank, self.phase = node, rank, phase
        self.durations, self.tally = durations, tally
        self.count, self.mean = durations.sums.count, durations.sums.mean
        self.limit = durations.limit_of_few(deviations) if whole else durations.limit(deviations)
        self.outliers = durations.above(self.limit)
        # Fewer long steps are enough.
        self.live_limit = self.limit if whole else durations.limit(deviations, LONG_STEPS)
        self.scans = "" if whole else f", in {tally.triggered} of {tally.judged} scans"

    @property
    def excess_seconds(self) -> float:
        """Returns the time of outliers beyond the mean, without a warm-up."""
        return self.durations.later(self.live_limit)[1]

    def longest_outliers(self) -> Times:
        """Returns the kept outliers as rows (number, duration, components), by number."""
        longest = self.durations.longest
        return longest[longest[:, 0] > self.limit][:, [1, 0, *range(2, longest.shape[1])]]

    @cached_property
    def later_outliers(self) -> Times:
        """Returns these rows without a warm-up."""
        longest = self.longest_outliers()
        return longest[~np.isin(longest[:, 0], self.durations.warm_up(self.limit)[:, 0])]

    @cached_property
    def beyond(self) -> Times:
        """Returns what each of these took beyond the other steps, see `_beyond_usual`."""
        return self._beyond_usual(self.later_outliers)

    @property
    def only_warm_up(self) -> bool:
        """Returns whether the outliers are the first steps, one after another."""
        return not self.durations.later(self.live_limit)[0] and self.durations.above(self.live_limit) > 0

    @property
    def are_a_stage(self) -> bool:
        """Returns whether the outliers are a large stage of the run, such as one with another optimizer.

        Most steps from the first to the last one are outliers, and they took most of the steps' time. Most of
        what they took beyond the other steps is computing.
        """
        numbers = self.later_outliers[:, 0]
        if len(self.beyond) < RECURRING or 2 * len(numbers) <= np.ptp(numbers) + 1:
            return False
        excess, *of_components = self.beyond.sum(axis=0)
        computing = sum(of_components[COMPONENTS.index(name)] for name in USEFUL)
        took_most = self.durations.share(self.durations.seconds_above(self.limit)) >= STAGE
        return took_most and bool(computing > STAGE * excess)

    def words(self, alone: bool) -> str:
        later, excess = self.durations.later(self.live_limit)
        of_rank = "" if alone else f" of rank {self.rank}"
        sentence = (
            f"{later} of {self.count} {self.phase} steps{of_rank} took longer than "
            f"{duration(self.live_limit)} (mean {duration(self.mean)}). Beyond the mean, they cost "
            f"{duration(excess)}, {percent(100 * self.durations.share(excess))} of the steps' time"
            f"{self.scans}"
        )
        if period := self.period():
            sentence += f"; it is about every {ordinal(period)} step"
        if self.component:
            sentence += f"; most of the excess is {self.component}"
        return sentence + "."

    def recommendation(self) -> str | None:
        return LONG_COMPONENT.get(self.component or "")

    def period(self) -> int | None:
        """Returns the steps from outlier to outlier, if 3 of 4 gaps are the same within a tenth.

        A few outliers one after another are no habit of the run: they must span half of its steps.
        """
        gaps = np.diff(np.sort(self.later_outliers[:, 0]))
        if len(gaps) < REGULAR_GAPS or gaps.sum() < self.count / 2:
            return None
        usual = float(np.median(gaps))
        regular = np.abs(gaps - usual) <= 0.1 * usual
        return round(usual) if usual >= 2 and regular.mean() >= 0.75 else None

    @cached_property
    def component(self) -> str | None:
        """Returns the component with more than half of the outliers' time beyond other steps."""
        return _longer_component(self.beyond.mean(axis=0)) if len(self.beyond) else None

    def shared_excess(self) -> dict[str, float]:
        """Returns the seconds of each component in the excess of outliers; {} if one took most of it."""
        if self.component is not None:
            return {}
        seconds = self.beyond.clip(0).sum(axis=0)[1:]
        return {name: float(part) for name, part in zip(COMPONENTS, seconds, strict=True) if part}

    def are_of_the_host(self) -> bool:
        """Returns whether components are known, and more than half of that time is in none of them."""
        if not len(self.beyond) or not self.durations.sums.components.any():
            return False
        excess, *of_components = self.beyond.mean(axis=0)
        return bool(excess - np.clip(of_components, 0, None).sum() > excess / 2)

    def _beyond_usual(self, outliers: Times) -> Times:
        """Returns what each of them took beyond the other steps: its duration, then each component.

        There are no rows without outliers, or without other steps.
        """
        took, longest = outliers[:, 1:], self.longest_outliers()[:, 1:]
        if not 0 < len(longest) < self.count:
            return took[:0]
        total = np.append(self.mean * self.count, self.durations.sums.components)
        usual: Times = (total - longest.sum(axis=0)) / (self.count - len(longest))
        return took - usual

    def own_excess(self) -> float:
        """Returns what outliers took beyond the other steps without communication, in which ranks wait."""
        return float((self.beyond[:, 0] - self.beyond[:, 1 + COMMUNICATION]).clip(0).sum())

    def longest_listed(self) -> list[dict[str, Any]]:
        """Returns the longest outliers by number, each with the component that made it long, if known."""
        outliers = self.longest_outliers()
        beyond = self._beyond_usual(outliers)
        numbers, seconds = outliers[: len(beyond), :2].T
        longest = np.argsort(-seconds, kind="stable")[:OUTLIERS_LISTED]
        return [
            {
                "number": int(numbers[row]),
                "seconds": float(seconds[row]),
                "component": _longer_component(beyond[row]),
            }
            for row in longest[np.argsort(numbers[longest])]
        ]

    def details(self) -> dict[str, Any]:
        """Returns Debugger's fields of a node, in seconds."""
        found = self.durations.distribution(self.rank, self.phase, self.limit)
        return {
            "step_stats": {
                name: getattr(found, name) for name in ("mean", "max", "p99", "p95", "p50", "min")
            },
            "number_of_outliers": self.outliers,
            "phase": self.phase,
            "stddev": found.standard_deviation,
            "probs": found.counts,
            "binedges": found.edges,
            "step_numbers": sorted(self.longest_outliers()[:, 0].astype(int).tolist()),
            "limit_seconds": self.limit,
            "lost_percent": 100 * self.durations.lost(self.limit),
            "longest": self.longest_listed(),
            "period": self.period(),
            "component": self.component,
            "rank": self.rank,
            "triggered": self.tally.triggered,
        }


class Culprit(NamedTuple):
    """The rank whose long steps are long by themselves; those of the other ranks wait for it."""

    series: Series
    own: float  # seconds of its long steps beyond its usual own time, all together
    others: float  # the same of the median of the other ranks

    def words(self) -> str:
        return (
            f"Rank {self.series.rank} on {self.series.node} makes the others wait: its long steps took "
            f"{duration(self.own)} more of its own time, those of the other ranks {duration(self.others)} "
            "(median)."
        )

    def details(self) -> dict[str, Any]:
        return {
            "node": self.series.node,
            "rank": self.series.rank,
            "component": self.series.component,
            "steps": len(self.series.later_outliers),
            "own_seconds": self.own,
            "others_seconds": self.others,
        }


def _culprit(phase: str, series: Sequence[Series]) -> Culprit | None:
    """Returns the rank for which the others wait in their long steps, if there is one.

    Most of what its long steps took beyond the mean is own time, and more than twice that of the others.
    """
    own = {
        place: steps.own_excess()
        for place, steps in enumerate(series)
        if steps.phase == phase and steps.count
    }
    if len(own) < 2:
        return None
    most = max(own, key=lambda place: own[place])
    others = float(np.median([seconds for place, seconds in own.items() if place != most]))
    outliers = series[most].later_outliers
    excess = float((outliers[:, 1] - series[most].mean).sum())
    if not own[most] > excess / 2 > 0 or others > own[most] / 2:
        return None
    return Culprit(series[most], own[most], others)


def _without_core(run: RunMeasurements, series: Series, cause_known: bool) -> tuple[float, float]:
    """Returns for how long the rank lacked a core in its long steps, and for how much longer it may have.

    The first was measured in steps of twice the usual time. The second is asked only if no cause is known. It
    is of the whole run: the wait of the main thread, or the time for which others used
    cores while none was free: the main thread waits for its other threads then, those of OpenMP for example.
    """
    threads = [
        thread
        for thread in run.facts.threads
        if thread.node == series.node
        and thread.rank in (series.rank, None)
        and thread.role != "loader worker"
    ]
    excess = series.excess_seconds
    waited = min(excess, max((thread.long_core_wait_seconds for thread in threads), default=0.0))
    if cause_known:
        return waited, 0.0
    cores = run.of(OWN_CORES).get(series.node)
    taken = cores.taken if cores is not None else 0.0
    most = max(taken, *(thread.core_wait_seconds for thread in threads), 0.0)
    return waited, max(min(excess, most) - waited, 0.0)


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
