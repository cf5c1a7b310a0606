"""LossNotFinite: the training loss has become NaN or infinite, and stays so.

Source: our own. Once a weight is NaN, every later loss is. A single batch, or a step that loss scaling skips,
makes one value NaN and no more: so the loss must stay that way for several times the usual time between two
values. Prometheus does not know that time: its rules wait for ten minutes. Until then nothing is judged.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from stepscope.common.words import duration, gauge, number
from stepscope.measurements.training_gauges import Gauges, Lasting, lasting
from stepscope.rules.parts.lasting import LastingParameters, OfNotFinite
from stepscope.rules.parts.parameters import Factor, Minutes
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.training_gauge import at
from stepscope.runs.gauge_history import GaugeHistory


@dataclass(frozen=True)
class LossNotFiniteParameters(LastingParameters):
    factor: Annotated[Factor, "the loss was not finite for this many times the usual time between values"] = 3
    minimum: Annotated[Minutes, "and for longer than this"] = 0.25


@rule
class LossNotFinite(OfNotFinite[LossNotFiniteParameters]):
    recorded = "loss"
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

    def seen(self, history: GaugeHistory, gauges: Gauges) -> Lasting:
        return lasting(history, gauges, np.isfinite(history.values))

    def since(self, history: GaugeHistory, gauges: Gauges, view: Lasting) -> tuple[float, str]:
        seconds = float(view.seconds[0])
        since, finite = gauges.until - seconds, history.values[np.isfinite(history.values)]
        before = f"; the last finite value was {number(float(finite[-1]))}" if len(finite) else ""
        words = f"{self.called(history)} has been {gauge(history.last)} for {duration(seconds)}, {at(since)}"
        return since, f"{words}{before}."
