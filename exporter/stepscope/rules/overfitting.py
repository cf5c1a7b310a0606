"""Overfitting: the loss of evaluations has risen from its lowest level, while the training loss has fallen.

Source: SageMaker Debugger's Overfit, whose ratio_threshold is 0.1. It compares the validation loss with the
training loss, but regularization, augmentation and running means make those differ. Ours compares it with its
own lowest level. The rise must be clear of the noise of small validation sets. No alert: levels are medians
of evaluations, and Prometheus has only the values of scrapes.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from stepscope.common.words import number, percent, too_few
from stepscope.measurements.training_gauges import (
    LOSSES,
    VALIDATION_LOSSES,
    Gauges,
    Overfit,
    named_first,
    overfit,
)
from stepscope.rules.parts.judgement import Judgement, judgement
from stepscope.rules.parts.parameters import Parameters, Percent, StandardErrors, Values, fraction
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.training_gauge import MAY_RISE, OfGauge, at
from stepscope.runs.gauge_history import GaugeHistory


@dataclass(frozen=True)
class OverfittingParameters(Parameters):
    threshold: Annotated[Percent, "the validation loss was above its lowest level by more than this"] = 10
    patience: Annotated[Values, "in each of this many last evaluations; levels are medians of as many"] = 5
    clear: Annotated[StandardErrors, "and their level was above by more than this"] = 4


@rule
class Overfitting(OfGauge[OverfittingParameters, Overfit]):
    names = VALIDATION_LOSSES
    thing = "validation loss"
    topic = "overfitting"
    subject = "An overfitted model"
    question = "Does the validation loss rise while the training loss falls?"
    description = (
        "Follows the loss of evaluations and that of training. A run whose validation loss has risen while "
        "its training loss fell learns its training data by heart: later checkpoints are worse."
    )
    recommendation = (
        "Stop early, and use the checkpoint of the lowest validation loss. More data, augmentation, weight "
        "decay, dropout or a smaller model help the next run."
    )
    healthy = "The validation loss has not risen while the training loss fell."

    @property
    def _width(self) -> int:
        return max(1, self.parameters.patience)

    def judge(self, view: Overfit) -> Judgement:
        limit = fraction(self.parameters.threshold)
        rose = (view.rise > limit) & (view.clear > self.parameters.clear) & view.falls
        return judgement(~np.isnan(view.best), (view.rise, rose))

    def seen(self, history: GaugeHistory, gauges: Gauges) -> Overfit:
        losses = named_first(gauges.histories, LOSSES)
        if not gauges.is_minimised or not losses:
            return Overfit.unknown()
        return overfit(history, losses[-1], self._width)

    def since(self, history: GaugeHistory, gauges: Gauges, view: Overfit) -> tuple[float, str]:
        best, rise, since = (float(each[0]) for each in (view.best, view.rise, view.since))
        return since, (
            f"{self.called(history)} is {number(history.last)}: its last {self._width} values are at least "
            f"{percent(100 * rise)} above its lowest level, {number(best)}, "
            f"while the training loss has fallen {at(since)}."
        )

    def why_not(self, history: GaugeHistory, gauges: Gauges, view: Overfit) -> str:
        if not gauges.is_minimised:
            return MAY_RISE
        if not named_first(gauges.histories, LOSSES):
            return "No training loss is published: it is not known whether it falls."
        if len(history.values) <= 2 * self._width:
            return too_few("values of the validation loss", len(history.values), 2 * self._width)
        return "The validation loss is not above 0 all the time, so its rise has no scale."
