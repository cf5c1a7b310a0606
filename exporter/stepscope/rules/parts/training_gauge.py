"""Concludes from a gauge of training, such as its loss, of the newest process of its first rank."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from stepscope.common.status import Status
from stepscope.common.words import gauge, time_of_day
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.steps import STEP_DURATIONS
from stepscope.measurements.training_gauges import LOSSES, Gauges, named_first, newest_gauges
from stepscope.rules.parts.bands import Band
from stepscope.rules.parts.base import P, Rule, V, Verdict, status_of
from stepscope.rules.parts.judgement import Tallies
from stepscope.rules.parts.topics import Effect
from stepscope.runs.gauge_history import GaugeHistory

MAY_RISE = "The loss of reinforcement or adversarial learning may rise."


class OfGauge(Rule[P, V]):
    """A rule on a gauge. It estimates no seconds lost: the run may have to be repeated, or not."""

    by_scan = False
    only_pauses = True
    is_optional = True
    effect = Effect.RISK
    topic = "loss"
    view = "training"
    measure = STEP_DURATIONS
    names: ClassVar[Sequence[str]] = LOSSES  # of the gauge, plain, in the order of preference
    thing: ClassVar[str] = "loss"
    healthy: ClassVar[str]  # the finding if it is judged and nothing holds

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        gauges = newest_gauges(run.facts)
        named = named_first(gauges.histories, self.names) if gauges else []
        if gauges is None or not named:
            name = self.names[0]
            call = f'stepscope.gauge("{name}", {name})'
            absent = f"No {self.thing} is published: {call} does, and hooks do if the framework logs it."
            return Verdict(Status.NOT_ENOUGH_DATA, absent)
        history = named[-1]
        view = self.seen(history, gauges)
        judged = self.judge(view)
        fired = bool(judged.fired.any())
        status = status_of(int(fired), int(judged.enough.any()))
        since: float | None = None
        held: list[Band] = []
        if fired:
            since, finding = self.since(history, gauges, view)
            held = [self._held(history, gauges, since, run.facts.end is None)]
        else:
            finding = self.healthy if judged.enough.any() else self.why_not(history, gauges, view)
        return Verdict(
            status,
            finding,
            int(fired),
            int(fired),
            len(history.values),
            held=held,
            details={"name": history.name, "last": history.last, "since": since},
        )

    def called(self, history: GaugeHistory) -> str:
        """Returns "The loss", with the gauge's name if it has another one."""
        named = "" if history.name in (self.thing, self.names[0]) else f" ({history.name})"
        return f"The {self.thing}{named}"

    def _held(self, history: GaugeHistory, gauges: Gauges, since: float, lasts: bool) -> Band:
        span, words = gauges.until - since, gauge(history.last)
        return Band(history.node, f"rank {history.rank}", since, gauges.until, lasts, span, words)

    @abstractmethod
    def seen(self, history: GaugeHistory, gauges: Gauges) -> V:
        """Returns the view of the gauge: one element."""

    @abstractmethod
    def since(self, history: GaugeHistory, gauges: Gauges, view: V) -> tuple[float, str]:
        """Returns since when the finding holds, in epoch seconds, and the finding."""

    @abstractmethod
    def why_not(self, history: GaugeHistory, gauges: Gauges, view: V) -> str:
        """Returns why the gauge cannot be judged."""


def at(time: float) -> str:
    return f"since {time_of_day(time)}"
