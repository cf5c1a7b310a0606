"""Judges for DataStarved and CommunicationBound: a component takes too much of a rank's step time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from stepscope.measurements.measure import Measure, Portion
from stepscope.measurements.scraped import (
    STEPS,
    Moment,
    Scraped,
    Window,
    both,
    column,
    divided,
    dropped,
    summed,
    without,
)
from stepscope.measurements.steps import RankComponents
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.judgement import Judgement, judgement, too_large
from stepscope.rules.parts.parameters import (
    LIVE_WINDOW,
    LiveMinutes,
    Parameters,
    Percent,
    StepCount,
    fraction,
)
from stepscope.rules.parts.promql import (
    MINUTE,
    Alert,
    PrometheusRules,
    Record,
    Scraping,
    compared,
    gained,
    gained_like,
    rank_of_run,
    ratio,
)

LONG_STEPS = 5  # enough in a live window if they took half of it


@dataclass(frozen=True)
class ShareParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires above this share of the step time of a rank"] = 20
    patience: Annotated[StepCount, "decisions begin after this many steps of a rank"] = 20
    live_window: Annotated[LiveMinutes, LIVE_WINDOW] = 15


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
        window = self._window(scraping)
        ended = scraping.held("stepscope_run_end_time_seconds")
        spent = f'stepscope_step_component_seconds_total{{component="{self.component}"}}'
        phases = "sum without (phase) ({})"
        took = gained_like(f"{STEPS}_sum", window, phases)
        enough = (
            f"  and ({self._steps} > {parameters.patience} or {self._steps} >= {LONG_STEPS} "
            f"and {self._took} >= {MINUTE / 2 * parameters.live_window:.12g})"
        )
        return PrometheusRules(
            targets=self._steps,
            every=self.every,
            records=[
                Record(self._steps, gained(f"{STEPS}_count", window, phases)),
                Record(self._took, f"{took}\n  and {self._steps}"),
                Record(self._record, f"{gained_like(spent, window)}\n  / ignoring (component) {self._took}"),
            ],
            alerts=[
                Alert(
                    f"{self._record} > {ratio(parameters.threshold)}\n{enough}"
                    + (f"\n  unless ignoring (rank) {ended}" if self.until_the_end else ""),
                    summary=self.summary,
                    description=f"{rank_of_run(self._record, 'Rank', 'Run')} on {{{{ $labels.instance }}}} "
                    f"{self.verb} for {{{{ $value | humanizePercentage }}}} of its step time in the "
                    f"last {parameters.live_window:g} minutes (fires above {parameters.threshold:g} %)."
                    f"{compared(self._record, 'ranks')}",
                    lost=self.lost,
                )
            ],
        )

    def _window(self, scraping: Scraping) -> Window:
        return scraping.last(MINUTE * self.parameters.live_window)

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Portion]:
        window = self._window(scraping)
        component = "stepscope_step_component_seconds_total", f'component="{self.component}"'
        spent = dropped(window.gained(now, *component), "component")
        steps, took = (
            window.gained(now, f"{STEPS}_{part}", each=lambda phases: summed(phases, "phase"))
            for part in ("count", "sum")
        )
        # Each series follows from what was recorded before it: a scrape may come in between.
        counted, taken, shares = (now.recorded(name) for name in (self._steps, self._took, self._record))
        expected = {
            self._steps: steps,
            self._took: {rank: seconds for rank, seconds in took.items() if rank in counted},
            self._record: both(spent, taken, divided),
        }
        ended = now.held("stepscope_run_end_time_seconds", window.hold) if self.until_the_end else {}
        labels = [rank for rank in shares if rank in taken and without(rank, "rank") not in ended]
        whole = column(taken, labels)
        view = Portion(column(counted, labels), whole, column(shares, labels) * whole)
        return Scraped(labels, view, steps, expected)

    @property
    def _steps(self) -> str:
        return f"run_instance_rank:stepscope_{self.component}:steps"

    @property
    def _took(self) -> str:
        return f"run_instance_rank:stepscope_{self.component}:step_seconds"

    @property
    def _record(self) -> str:
        return f"run_instance_rank:stepscope_{self.component}:ratio"
