"""Concludes from the loss that training publishes, of the newest process of its first rank."""

from abc import abstractmethod
from typing import ClassVar

from stepscope.common.status import Status
from stepscope.common.words import gauge, time_of_day
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.steps import STEP_DURATIONS
from stepscope.measurements.training_gauges import LOSSES, Gauges, named_first, newest_gauges
from stepscope.rules.parts.bands import Interval
from stepscope.rules.parts.base import P, Rule, V, Verdict, status_of
from stepscope.rules.parts.judgement import Tallies
from stepscope.rules.parts.topics import Effect
from stepscope.runs.gauge_history import GaugeHistory

NO_LOSS = 'No loss is published: stepscope.gauge("loss", loss) does, and hooks do if the framework logs it.'


class OfLoss(Rule[P, V]):
    """A rule on the loss. It estimates no seconds lost: the run may have to be repeated, or not."""

    by_scan = False
    only_pauses = True
    is_optional = True
    effect = Effect.RISK
    topic = "loss"
    view = "training"
    measure = STEP_DURATIONS
    healthy: ClassVar[str]  # the finding if it is judged and nothing holds

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        gauges = newest_gauges(run.facts)
        losses = named_first(gauges.histories, LOSSES) if gauges else []
        if gauges is None or not losses:
            return Verdict(Status.NOT_ENOUGH_DATA, NO_LOSS)
        loss = losses[-1]
        view = self.seen(loss, gauges)
        judged = self.judge(view)
        fired = bool(judged.fired.any())
        status = status_of(int(fired), int(judged.enough.any()))
        since: float | None = None
        held: list[Interval] = []
        if fired:
            since, finding = self.since(loss, gauges, view)
            held = [self._held(loss, gauges, since, run.facts.end is None)]
        else:
            finding = self.healthy if judged.enough.any() else self.why_not(loss, gauges, view)
        return Verdict(
            status,
            finding,
            int(fired),
            int(fired),
            len(loss.values),
            held=held,
            details={"name": loss.name, "last": loss.last, "since": since},
        )

    def _held(self, loss: GaugeHistory, gauges: Gauges, since: float, lasts: bool) -> Interval:
        span, words = gauges.until - since, gauge(loss.last)
        return Interval(loss.node, f"rank {loss.rank}", since, gauges.until, lasts, span, words)

    @abstractmethod
    def seen(self, loss: GaugeHistory, gauges: Gauges) -> V:
        """Returns the view of the loss: one element."""

    @abstractmethod
    def since(self, loss: GaugeHistory, gauges: Gauges, view: V) -> tuple[float, str]:
        """Returns since when the finding holds, in epoch seconds, and the finding."""

    @abstractmethod
    def why_not(self, loss: GaugeHistory, gauges: Gauges, view: V) -> str:
        """Returns why the loss cannot be judged."""


def called(loss: GaugeHistory) -> str:
    """Returns "The loss", with its name if it has another one."""
    return "The loss" if loss.name == "loss" else f"The loss ({loss.name})"


def at(time: float) -> str:
    return f"since {time_of_day(time)}"
