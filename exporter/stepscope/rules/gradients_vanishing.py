"""GradientsVanishing: the norm of the gradients stays near 0 although the loss has not fallen.

Source: SageMaker Debugger's VanishingGradient: a mean absolute gradient below 1e-7. Ours compares the norm of
all gradients, which is larger. A run that has converged has small gradients, too: so only one whose loss is
not below its first level is found. No alert: Prometheus does not know the first level.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from stepscope.common.words import duration
from stepscope.measurements.training_gauges import (
    GRADIENT_NORMS,
    LOSSES,
    Gauges,
    Lasting,
    has_fallen,
    lasting,
    named_first,
)
from stepscope.rules.parts.lasting import LastingParameters, OfLasting
from stepscope.rules.parts.parameters import Norm
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.training_gauge import MAY_RISE, at
from stepscope.runs.gauge_history import GaugeHistory


@dataclass(frozen=True)
class GradientsVanishingParameters(LastingParameters):
    threshold: Annotated[Norm, "the norm was at or below this, and the loss had not fallen"] = 1e-7


@rule
class GradientsVanishing(OfLasting[GradientsVanishingParameters]):
    names = GRADIENT_NORMS
    thing = "gradient norm"
    distance = 3
    subject = "Vanishing gradients"
    question = "Do the gradients vanish before the loss has fallen?"
    description = (
        "Follows the gradient norm that training publishes. Gradients near 0 change no weight: a run whose "
        "loss has not fallen by then learns nothing."
    )
    recommendation = (
        "Look for saturated or dead activations, a wrong loss or detached tensors, frozen parameters, and a "
        "loss that underflows in float16. Residual connections, normalization and other initial weights help."
    )
    healthy = "The gradient norm is not near 0, or the loss has fallen."

    def seen(self, history: GaugeHistory, gauges: Gauges) -> Lasting:
        view = lasting(history, gauges, ~(history.values <= self.parameters.threshold))
        losses = named_first(gauges.histories, LOSSES)
        if view.fine.all():
            return view
        if not losses or not gauges.is_minimised:
            return Lasting.unknown()
        return view._replace(fine=np.ones(1, bool)) if has_fallen(losses[-1]) else view

    def since(self, history: GaugeHistory, gauges: Gauges, view: Lasting) -> tuple[float, str]:
        seconds, most = float(view.seconds[0]), f"{self.parameters.threshold:g}"
        since = gauges.until - seconds
        words = f"{self.called(history)} has been at or below {most} for {duration(seconds)}, {at(since)}"
        return since, f"{words}, and the loss is not below its first level."

    def why_not(self, history: GaugeHistory, gauges: Gauges, view: Lasting) -> str:
        if not np.isnan(view.seconds).any():
            return super().why_not(history, gauges, view)
        if not gauges.is_minimised:
            return MAY_RISE
        return f"{self.called(history)} is near 0, and no loss is published: the run may have converged."
