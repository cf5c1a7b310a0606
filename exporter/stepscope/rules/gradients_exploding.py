"""GradientsExploding: the norm of the gradients is not finite, or far above its usual, and stays so.

Source: SageMaker Debugger's ExplodingTensor, which fires on a single value that is not finite. Ours waits: at
the start, loss scaling skips several steps with infinite gradients. Norms far above the usual are our own.
They only count while the loss is higher than before and does not fall: the end of a plateau, a restart of the
learning rate and a new model in the same process raise the norm, too. Alerts are only on norms that are not
finite: the usual is a median of values, and Prometheus has only those of scrapes.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from stepscope.common.words import duration, gauge, number
from stepscope.measurements.training_gauges import (
    GRADIENT_NORMS,
    LOSSES,
    Gauges,
    Lasting,
    first_above,
    has_risen,
    lasting,
    named_first,
)
from stepscope.rules.parts.lasting import LastingParameters, OfNotFinite
from stepscope.rules.parts.parameters import Factor, Values
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.training_gauge import at
from stepscope.runs.gauge_history import GaugeHistory


@dataclass(frozen=True)
class GradientsExplodingParameters(LastingParameters):
    rise: Annotated[Factor, "or the norm was above this many times its usual, with a higher loss"] = 10
    patience: Annotated[Values, "for at least this many values, after as many usual ones"] = 20


@rule
class GradientsExploding(OfNotFinite[GradientsExplodingParameters]):
    recorded = "gradients"
    names = GRADIENT_NORMS
    thing = "gradient norm"
    distance = 2
    subject = "Exploding gradients"
    question = "Do the gradients explode?"
    description = (
        "Follows the gradient norm that training publishes. Steps with infinite gradients are skipped or "
        "ruin the weights. Far larger ones than usual, while the loss rises, undo what the run had learned."
    )
    recommendation = (
        "Clip gradients (torch.nn.utils.clip_grad_norm_, max_grad_norm, clipnorm), lower the learning rate "
        "or warm it up for longer, and look at the batches of that time. In float16, use loss scaling, or "
        "use bfloat16 instead."
    )
    healthy = "The gradient norm is finite, and not far above its usual."

    def seen(self, history: GaugeHistory, gauges: Gauges) -> Lasting:
        finite = np.isfinite(history.values)
        losses = named_first(gauges.histories, LOSSES)
        if finite[-1] and gauges.is_minimised and losses:
            values = np.where(finite, history.values, np.inf)
            row = first_above(values, self.parameters.rise, max(1, self.parameters.patience))
            if row < len(values) and has_risen(losses[-1], float(history.times[row])):
                return lasting(history, gauges, np.arange(len(values)) < row)
        return lasting(history, gauges, finite)

    def since(self, history: GaugeHistory, gauges: Gauges, view: Lasting) -> tuple[float, str]:
        seconds = float(view.seconds[0])
        since = gauges.until - seconds
        before = history.values[(history.times < since) & np.isfinite(history.values)]
        usual = f"; its median before was {number(float(np.median(before)))}" if len(before) else ""
        if np.isfinite(history.last):
            words = f"has been above {self.parameters.rise:g} times its usual"
            usual += f", and it is {gauge(history.last)} now. The loss is higher than before"
        else:
            words = f"has been {gauge(history.last)}"
        return since, f"{self.called(history)} {words} for {duration(seconds)}, {at(since)}{usual}."
