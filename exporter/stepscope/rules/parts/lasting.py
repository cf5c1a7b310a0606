"""Judges gauges that are not fine, and stay so: for many times the usual time between two of their values."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

import numpy as np

from stepscope.common.words import duration, gauge
from stepscope.measurements.scraped import Moment, Scraped, column
from stepscope.measurements.training_gauges import Gauges, Lasting
from stepscope.rules.parts.expressions import Record, time_span
from stepscope.rules.parts.judgement import Judgement, judgement
from stepscope.rules.parts.parameters import Factor, Minutes, Parameters
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, Scraping
from stepscope.rules.parts.training_gauge import OfGauge
from stepscope.runs.gauge_history import GaugeHistory

AGE = "stepscope_run_age_seconds"
LASTING = 10 * MINUTE


@dataclass(frozen=True)
class LastingParameters(Parameters):
    factor: Annotated[Factor, "it lasted for this many times the usual time between values"] = 20
    minimum: Annotated[Minutes, "and for longer than this"] = 1


L = TypeVar("L", bound=LastingParameters)


class OfLasting(OfGauge[L, Lasting]):
    """A rule on a gauge that must be fine. Until it has lasted, it is neither found nor healthy."""

    def judge(self, view: Lasting) -> Judgement:
        limit = np.maximum(self.parameters.factor * view.usual, 60 * self.parameters.minimum)
        lasts = ~view.fine & (view.seconds > limit)
        return judgement(view.fine | lasts, (view.seconds, lasts))

    def why_not(self, history: GaugeHistory, gauges: Gauges, view: Lasting) -> str:
        lasted = f"{gauge(history.last)} for {duration(float(view.seconds[0]))}"
        return f"{self.called(history)} has been {lasted}: too short to know whether it stays so."


class OfNotFinite(OfLasting[L]):
    """A rule on a gauge that must be finite. It alerts on the ranks of a node, with the age of the run."""

    recorded: ClassVar[str]  # the part of the names of recorded series that names the gauge

    def judge_live(self, view: Lasting, sample_interval: float) -> Judgement:
        """Judges by what lasts already, without the usual time between values."""
        lasts = ~view.fine & ~np.isnan(view.seconds)
        return judgement(view.fine | lasts, (view.seconds, lasts))

    @classmethod
    def records(cls) -> tuple[str, str]:
        """Returns the names of recorded series: of runs whose gauge is finite, and of the others."""
        series = f"run_instance:stepscope_{cls.recorded}"
        return f"{series}_finite:age_seconds", f"{series}_not_finite:age_seconds"

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        run = "run {{ $labels.run }} on {{ $labels.instance }}"
        # Whose plain_name is one of these. Under `i`, Prometheus compiles a negated class for milliseconds.
        names = "|".join(self.names).replace("_", "(?-i)[^a-zA-Z0-9]+(?i)")
        values, age = scraping.held(f'stepscope_run_gauge{{name=~"(?i){names}"}}'), scraping.held(AGE)
        fine, bad = self.records()
        # 0 times NaN or infinity is NaN.
        finite = Record(fine, age & ((values * 0).sum_without("rank", "name") >= 0))
        not_finite = Record(bad, (age & values.max_without("rank", "name")).unless(finite))
        span = time_span(LASTING)
        return PrometheusRules(
            targets=finite,
            every=MINUTE,
            records=[finite, not_finite],
            alerts=[
                Alert(
                    f"{bad} and {bad} offset {span} unless last_over_time({fine}[{span}])",
                    summary=f"The {self.thing} of {run} is not finite",
                    description=f"R{run[1:]} has published a {self.thing} that is NaN or infinite for "
                    f"{LASTING / MINUTE:g} min. The run is {{{{ $value | humanizeDuration }}}} old.",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Lasting]:
        fine, bad = self.records()
        finite, not_finite = now.recorded(fine), now.recorded(bad)
        before, lately = now.recorded(bad, LASTING), now.recorded_over(fine, LASTING)
        # The alert's value is the age of the run: since when the gauge is not finite is not recorded.
        lasts = {node: age for node, age in not_finite.items() if node in before and node not in lately}
        nodes = [*finite, *not_finite]
        is_finite = np.array([node in finite for node in nodes], bool)
        return Scraped(nodes, Lasting(is_finite, column(lasts, nodes), np.full(len(nodes), np.nan)))
