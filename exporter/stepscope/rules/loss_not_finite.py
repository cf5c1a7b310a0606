"""LossNotFinite: the training loss has become NaN or infinite, and stays so.

Source: our own. Once a weight is NaN, every later loss is. A single batch, or a step that loss scaling skips,
makes one value NaN and no more: so the loss must stay that way for several times the usual time between two
values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from stepscope.common.words import duration, gauge, number
from stepscope.measurements.training_gauges import Gauges, NotFinite, not_finite
from stepscope.rules.parts.judgement import Judgement, judgement
from stepscope.rules.parts.loss import OfLoss, at, called
from stepscope.rules.parts.parameters import Factor, Minutes, Parameters
from stepscope.rules.parts.registry import rule
from stepscope.runs.gauge_history import GaugeHistory


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
