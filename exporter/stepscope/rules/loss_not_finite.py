"""LossNotFinite: the training loss has become NaN or infinite, and stays so.

Source: our own. Once a weight is NaN, every later loss is. A single batch, or a step that loss scaling skips,
makes one value NaN and no more: so the loss must stay that way for several times the usual time between two
values. Prometheus does not know that time: its rules wait for ten minutes. Until then nothing is judged.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from stepscope.common.words import duration, gauge, number
from stepscope.measurements.scraped import Moment, Scraped, column
from stepscope.measurements.training_gauges import LOSSES, Gauges, NotFinite, not_finite
from stepscope.rules.parts.expressions import Record, time_span
from stepscope.rules.parts.judgement import Judgement, judgement
from stepscope.rules.parts.loss import OfLoss, at, called
from stepscope.rules.parts.parameters import Factor, Minutes, Parameters
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, Scraping
from stepscope.rules.parts.registry import rule
from stepscope.runs.gauge_history import GaugeHistory

# The gauges whose plain name (training_gauges.plain_name) is that of a loss.
LOSS = f'stepscope_run_gauge{{name=~"(?i){"|".join(LOSSES).replace("_", "[^a-z0-9]+")}"}}'
AGE = "stepscope_run_age_seconds"
NOT_FINITE = "run_instance:stepscope_loss_not_finite:age_seconds"
FINITE = "run_instance:stepscope_loss_finite:age_seconds"
LASTING = 10 * MINUTE


@dataclass(frozen=True)
class LossNotFiniteParameters(Parameters):
    factor: Annotated[Factor, "the loss was not finite for this many times the usual time between values"] = 3
    minimum: Annotated[Minutes, "and for longer than this"] = 0.25


@rule
class LossNotFinite(OfLoss[LossNotFiniteParameters, NotFinite]):
    parameters_type = LossNotFiniteParameters
    subject = "A loss that is not finite"
    question = "Has the loss become NaN or infinite?"
    description = (
        "Follows the loss that training publishes. Weights that are NaN once stay NaN: nothing that the run "
        "computes from then on is of use."
    )
    recommendation = (
        "Stop the run, and continue from the last checkpoint before. Look for bad values in the data, "
        "divisions by 0 and logarithms of 0; lower the learning rate, clip gradients, or use bfloat16 "
        "instead of float16. torch.autograd.set_detect_anomaly names the operation."
    )
    healthy = "The loss is finite."

    def judge(self, view: NotFinite) -> Judgement:
        limit = np.maximum(self.parameters.factor * view.usual, 60 * self.parameters.minimum)
        lasts = ~view.finite & (view.seconds > limit)
        return judgement(view.finite | lasts, (view.seconds, lasts))

    def judge_live(self, view: NotFinite, sample_interval: float) -> Judgement:
        """Judges by what lasts already, without the usual time between values."""
        lasts = ~view.finite & ~np.isnan(view.seconds)
        return judgement(view.finite | lasts, (view.seconds, lasts))

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules on the losses of a node's ranks; the value is the age of the run."""
        loss, age = scraping.held(LOSS), scraping.held(AGE)
        # 0 times NaN or infinity is NaN.
        finite = Record(FINITE, age & ((loss * 0).sum_without("rank", "name") >= 0))
        not_finite = Record(NOT_FINITE, (age & loss.max_without("rank", "name")).unless(finite))
        span = time_span(LASTING)
        return PrometheusRules(
            targets=finite,
            every=MINUTE,
            records=[finite, not_finite],
            alerts=[
                Alert(
                    f"{NOT_FINITE} and {NOT_FINITE} offset {span} unless last_over_time({FINITE}[{span}])",
                    summary="The loss of run {{ $labels.run }} on {{ $labels.instance }} is not finite",
                    description="Run {{ $labels.run }} on {{ $labels.instance }} has published a loss that "
                    f"is NaN or infinite for {LASTING / MINUTE:g} min. "
                    "The run is {{ $value | humanizeDuration }} old.",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[NotFinite]:
        finite, not_finite = now.recorded(FINITE), now.recorded(NOT_FINITE)
        before, lately = now.recorded(NOT_FINITE, LASTING), now.recorded_over(FINITE, LASTING)
        # The alert's value is the age of the run: since when the loss is not finite is not recorded.
        lasting = {node: age for node, age in not_finite.items() if node in before and node not in lately}
        nodes = [*finite, *not_finite]
        is_finite = np.array([node in finite for node in nodes], bool)
        return Scraped(nodes, NotFinite(is_finite, column(lasting, nodes), np.full(len(nodes), np.nan)))

    def seen(self, loss: GaugeHistory, gauges: Gauges) -> NotFinite:
        return not_finite(loss, gauges)

    def since(self, loss: GaugeHistory, gauges: Gauges, view: NotFinite) -> tuple[float, str]:
        seconds = float(view.seconds[0])
        since, finite = gauges.until - seconds, loss.values[np.isfinite(loss.values)]
        before = f"; the last finite value was {number(float(finite[-1]))}" if len(finite) else ""
        words = f"{called(loss)} has been {gauge(loss.last)} for {duration(seconds)}, {at(since)}"
        return since, f"{words}{before}."

    def why_not(self, loss: GaugeHistory, gauges: Gauges, view: NotFinite) -> str:
        lasted = f"{gauge(loss.last)} for {duration(float(view.seconds[0]))}"
        return f"{called(loss)} has been {lasted}: too short to know whether it stays so."
