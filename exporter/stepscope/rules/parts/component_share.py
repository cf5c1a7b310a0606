"""Judges for DataStarved and CommunicationBound: a component takes too much of a rank's step time."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from stepscope.measurements.measure import Measure, Portion
from stepscope.measurements.scraped import STEPS, Moment, Scraped, column, without
from stepscope.measurements.steps import RankComponents
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.expressions import Expression, Gain, Record
from stepscope.rules.parts.judgement import Judgement, judgement, too_large
from stepscope.rules.parts.parameters import (
    LIVE_WINDOW,
    LiveMinutes,
    Parameters,
    Percent,
    StepCount,
    fraction,
)
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, Scraping, of_all, ratio, spread

END = "stepscope_run_end_time_seconds"
LONG_STEPS = 5  # enough in a live window if they took half of it


@dataclass(frozen=True)
class ShareParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires above this share of the step time of a rank"] = 20
    patience: Annotated[StepCount, "decisions begin after this many steps of a rank"] = 20
    live_window: Annotated[LiveMinutes, LIVE_WINDOW] = 15


def _of_all_phases(steps: Expression) -> Expression:
    return steps.sum_without("phase")


class ComponentShare(Rule[ShareParameters, Portion]):
    """Fires if a component is more than a share of a rank's step time."""

    bands = Bands("rank", [Worst("{} of the step time")])

    component: ClassVar[str]
    summary: ClassVar[str]  # of the alert
    verb: ClassVar[str]  # of the rank: "waited for data"
    until_the_end: ClassVar[bool] = False  # whether alerts end with their run
    every: ClassVar[float] = 2 * MINUTE
    lost: ClassVar[str] = "{}"  # as in Alert

    @property
    def measure(self) -> Measure[RankComponents]:
        return Measure(RankComponents, self.component)

    def judge(self, view: Portion) -> Judgement:
        return too_large(view, self.parameters)

    def judge_whole(self, view: Portion) -> Judgement:
        share = view.ratio
        return judgement(view.seen > 0, (share, share > fraction(self.parameters.threshold)))

    def judge_live(self, view: Portion, sample_interval: float) -> Judgement:
        """Decides after `patience`; if steps are long, a few that took half the window are enough."""
        parameters, share = self.parameters, view.ratio
        few = (view.seen >= LONG_STEPS) & (view.whole >= MINUTE / 2 * parameters.live_window)
        return judgement(
            (view.seen > parameters.patience) | few, (share, share > fraction(parameters.threshold))
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        parameters = self.parameters
        window = scraping.last(MINUTE * parameters.live_window)
        ended = scraping.held(END)
        spent = f'stepscope_step_component_seconds_total{{component="{self.component}"}}'
        steps = Record(self._steps, Gain(f"{STEPS}_count", window, _of_all_phases))
        took = Record(self._took, Gain(f"{STEPS}_sum", window, _of_all_phases, joined=True) & steps)
        enough = (
            f"  and ({steps} > {parameters.patience} or {steps} >= {LONG_STEPS} "
            f"and {took} >= {MINUTE / 2 * parameters.live_window:.12g})"
        )
        return PrometheusRules(
            targets=steps,
            every=self.every,
            records=[steps, took, Record(self._record, Gain(spent, window, joined=True) / (took > 0))],
            alerts=[
                Alert(
                    f"{self._record} > {ratio(parameters.threshold)}\n{enough}"
                    + (f"\n  unless ignoring (rank) {ended}" if self.until_the_end else ""),
                    summary=self.summary,
                    description=of_all(self._record)
                    + "{{ if gt (len $all) 1 }}Rank {{ $labels.rank }} of run{{ else }}Run{{ end }} "
                    "{{ $labels.run }} on {{ $labels.instance }} "
                    f"{self.verb} for {{{{ $value | humanizePercentage }}}} of its step time in the "
                    f"last {parameters.live_window:g} minutes (fires above {parameters.threshold:g} %)."
                    f"{spread('ranks')}",
                    lost=self.lost,
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Portion]:
        counted, taken, shares = (now.recorded(name) for name in (self._steps, self._took, self._record))
        ended = now.held(END, scraping.hold) if self.until_the_end else {}
        labels = [rank for rank in shares if rank in taken and without(rank, "rank") not in ended]
        whole = column(taken, labels)
        return Scraped(labels, Portion(column(counted, labels), whole, column(shares, labels) * whole))

    @property
    def _steps(self) -> str:
        return f"run_instance_rank:stepscope_{self.component}:steps"

    @property
    def _took(self) -> str:
        return f"run_instance_rank:stepscope_{self.component}:step_seconds"

    @property
    def _record(self) -> str:
        return f"run_instance_rank:stepscope_{self.component}:ratio"
