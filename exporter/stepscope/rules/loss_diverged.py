"""LossDiverged: the training loss had fallen, and has gone back to where it began.

Source: our own. It compares running medians, so noise does not matter, and asks that the loss stays back for
longer than its first fall took. A restart of the learning rate raises the loss, but not to where it began. A
new model in the same process falls again as fast as the first one. A plateau is no finding.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from stepscope.common.words import duration, number, too_few
from stepscope.measurements.training_gauges import Course, Gauges, course
from stepscope.rules.parts.judgement import Judgement, judgement
from stepscope.rules.parts.parameters import Factor, Minutes, Parameters, Values
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.training_gauge import MAY_RISE, OfGauge, at
from stepscope.runs.gauge_history import GaugeHistory

UNDONE = 0.75  # of its fall: a loss above is back up
LONGER = 2  # times that half of the first fall took: a new model in the same process has fallen by then


@dataclass(frozen=True)
class LossDivergedParameters(Parameters):
    fall: Annotated[Factor, "the loss began at more than this many times its lowest level"] = 1.5
    patience: Annotated[Values, "and has been back up for more values than this"] = 20
    minimum: Annotated[Minutes, "and for longer than this"] = 1


@rule
class LossDiverged(OfGauge[LossDivergedParameters, Course]):
    distance = 1
    subject = "A loss that went back up"
    question = "Has the loss gone back up to where it began?"
    description = (
        "Follows the running median of the loss. A loss that had fallen and has stayed near its first level "
        "for longer than its fall took has lost what the run had learned."
    )
    recommendation = (
        "Continue from the last checkpoint before it rose, with a lower learning rate, a longer warm-up or "
        "clipped gradients. Look at the batches of that time, and at how a resumed run restores its "
        "optimizer."
    )
    healthy = "The loss has not gone back up."

    def judge(self, view: Course) -> Judgement:
        parameters = self.parameters
        enough = ~np.isnan(view.first)
        lasts = view.back_seconds > np.maximum(LONGER * view.fall_seconds, 60 * parameters.minimum)
        lasts &= (view.back_values > parameters.patience) & (view.apart > 0)
        return judgement(enough, (view.back_seconds, lasts & (view.first > parameters.fall * view.best)))

    def seen(self, history: GaugeHistory, gauges: Gauges) -> Course:
        if not gauges.is_minimised or len(history.values) <= self.parameters.patience:
            return Course.unknown()
        return course(history, UNDONE, gauges.until)

    def since(self, history: GaugeHistory, gauges: Gauges, view: Course) -> tuple[float, str]:
        first, best, seconds = (float(each[0]) for each in (view.first, view.best, view.back_seconds))
        since = gauges.until - seconds
        return since, (
            f"{self.called(history)} had fallen from {number(first)} to {number(best)}, and has been back up "
            f"for {duration(seconds)}, {at(since)}: it is {number(history.last)} now."
        )

    def why_not(self, history: GaugeHistory, gauges: Gauges, view: Course) -> str:
        if not gauges.is_minimised:
            return MAY_RISE
        if len(history.values) <= self.parameters.patience:
            return too_few("values of the loss", len(history.values), self.parameters.patience)
        return "The loss is not above 0 all the time, so its fall has no scale."
