"""Judges for DataStarved and CommunicationBound: a component takes too much of a rank's step time."""

from __future__ import annotations

from typing import ClassVar, TypeVar

import numpy as np

from trainwatch.measurements.component_time import ComponentCounts, ComponentTime
from trainwatch.measurements.scraped import STEPS, Moment, Scraped, column, dropped, summed, without
from trainwatch.rules.base import Rule
from trainwatch.rules.judgement import Judgement, judgement
from trainwatch.rules.parameters import Parameters, fraction
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping, ratio


class ShareParameters(Parameters):
    """The parameters of both rules: a percentage, and a number of steps."""

    @property
    def threshold(self) -> float:
        raise NotImplementedError

    @property
    def patience(self) -> int:
        raise NotImplementedError


S = TypeVar("S", bound=ShareParameters)


class ComponentShare(Rule[S, ComponentCounts]):
    """Fires if a component is more than a share of a rank's step time."""

    component: ClassVar[str]
    summary: ClassVar[str]  # of the alert
    verb: ClassVar[str]  # of the rank: "waited for data"
    until_the_end: ClassVar[bool] = False  # whether alerts end with their run

    @property
    def measure(self) -> ComponentTime:
        return ComponentTime(self.component)

    def judge(self, view: ComponentCounts) -> Judgement:
        share = view.ratio
        return judgement(
            view.steps > self.parameters.patience, (share, share > fraction(self.parameters.threshold))
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        threshold = self.parameters.threshold
        steps = f"sum without (phase) ({STEPS}_count)"
        only = "unless ignoring (rank) trainwatch_run_end_time_seconds" if self.until_the_end else ""
        condition = f"{self._record} > {ratio(threshold)}\n  and {steps} > {self.parameters.patience}"
        return PrometheusRules(
            targets=steps,
            every=2 * MINUTE,
            records=[
                Record(
                    self._record,
                    f"""
                    trainwatch_step_component_seconds_total{{component="{self.component}"}}
                      / ignoring (component) sum without (phase) ({STEPS}_sum)
                    """,
                )
            ],
            alerts=[
                Alert(
                    f"{condition}\n  {only}".rstrip(),
                    summary=self.summary,
                    description=f"Rank {{{{ $labels.rank }}}} of run {{{{ $labels.run }}}} on "
                    f"{{{{ $labels.instance }}}} {self.verb} for {{{{ $value | humanizePercentage }}}} of "
                    f"its step time (fires above {threshold:g} %).",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[ComponentCounts]:
        spent = dropped(
            now("trainwatch_step_component_seconds_total", f'component="{self.component}"'), "component"
        )
        steps, took = (summed(now(f"{STEPS}_{part}"), "phase") for part in ("count", "sum"))
        ended = now("trainwatch_run_end_time_seconds") if self.until_the_end else {}
        known = [rank for rank in spent if rank in took]
        counts = ComponentCounts(column(steps, known), column(took, known), column(spent, known))
        records = {self._record: dict(zip(known, counts.ratio.tolist(), strict=True))}
        judged = np.array([without(rank, "rank") not in ended for rank in known], bool)
        view = ComponentCounts(*(values[judged] for values in counts[:3]))
        labels = [rank for rank, is_judged in zip(known, judged, strict=True) if is_judged]
        return Scraped(labels, view, steps, records)

    @property
    def _record(self) -> str:
        return f"run_instance_rank:trainwatch_{self.component}:ratio"
