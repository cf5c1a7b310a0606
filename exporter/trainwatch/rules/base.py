"""Rule: a question, parameters, what is measured, a judgement, the same in PromQL, and words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, cast

from trainwatch.measurements.measure import Measure, RunMeasurements
from trainwatch.measurements.scraped import Moment, Scraped
from trainwatch.rules.judgement import Judgement, Tallies
from trainwatch.rules.other_exporters import OtherExporters
from trainwatch.rules.parameters import Parameters
from trainwatch.rules.promql import Alert, PrometheusRules, Scraping
from trainwatch.rules.topics import About, Effect, Symptom
from trainwatch.status import Status

P = TypeVar("P", bound=Parameters)
V = TypeVar("V")


@dataclass(frozen=True)
class Verdict:
    """What a heuristic makes of a run; RuleResult has the same fields."""

    status: Status
    finding: str
    triggered: int = 0
    violations: int = 0
    datapoints: int = 0
    seconds_lost: float = 0.0
    recommendation: str | None = None  # None: the heuristic's own words fit
    details: dict[str, Any] = field(default_factory=dict)


class Rule(ABC, Generic[P, V]):
    """A rule: its class's name is the rule's, and its docstring says where the definition comes from.

    It asks for measurements, judges views of one of them, and says what became of all scans. It has no state.
    """

    parameters_type: ClassVar[type[Parameters]]
    subject: ClassVar[str]  # of a sentence: "Waiting for data" cost this run 8 min
    question: ClassVar[str]
    description: ClassVar[str]
    recommendation: ClassVar[str]
    effect: ClassVar[Effect] = Effect.TIME
    # Rules with the same topic see the same thing; the one at the least distance from the cause speaks.
    topic: ClassVar[str] = ""
    distance: ClassVar[int] = 0
    # The view of the report's section "Details" that shows the finding; none: a view of its own.
    view: ClassVar[str] = ""
    # A symptom (an idle GPU) is listed after the causes (a busy core) that explain it.
    is_symptom: ClassVar[bool] = False
    # The symptom that the rule sees or, if it is a cause, explains.
    symptom: ClassVar[Symptom | None] = None

    def __init__(self, parameters: P | None = None) -> None:
        self.parameters = parameters if parameters is not None else cast("P", self.parameters_type())

    @property
    def name(self) -> str:
        return type(self).__name__

    @classmethod
    def about(cls) -> About:
        return About(cls.subject, cls.effect, cls.topic, cls.distance, cls.view)

    @property
    def kind(self) -> str:
        return "symptom" if self.is_symptom else "cause"

    @property
    @abstractmethod
    def measure(self) -> Measure[Any]:
        """Returns what the rule decides by: `judge` sees the views of this measurement, scan by scan."""

    @property
    def details_of(self) -> Sequence[Measure[Any]]:
        """Returns what else the rule's words and details need."""
        return ()

    @abstractmethod
    def judge(self, view: V) -> Judgement:
        """Decides on every element of a view: on scans, or on what Prometheus had scraped at a moment."""

    @abstractmethod
    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        """Returns what became of all scans, in words and in numbers."""

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules | None:
        """Returns the same in PromQL; None if there is nothing to alert on.

        Raises ValueError if the exporter has no bound at one of the parameters.
        """
        return None

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[V]:
        """Returns the view that Prometheus has at a moment, made of the exporter's counters."""
        raise NotImplementedError(f"{self.name} has no rules in Prometheus")

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules | None:
        """The same from the series of dcgm-exporter and node_exporter; None: these do not tell."""
        return None

    def debugger_parameters(self) -> dict[str, float | int | str | None] | None:
        """The lines of Debugger's RuleParameters; None: they are our own parameters."""
        return None

    def alert_labels(self, alert: Alert) -> dict[str, str]:
        """Returns the labels of an alert that its expression does not give it.

        alertmanager.yml inhibits by them: a cause silences the symptom that both name, within its scope.
        """
        symptom = {"symptom": self.symptom.name, "scope": self.symptom.scope} if self.symptom else {}
        return {"rule": self.name, "severity": alert.severity, "kind": self.kind, **symptom, **alert.labels}


class Overview(Rule[P, None]):
    """Shows what the findings of other rules refer to, and never fires."""

    effect = Effect.OVERVIEW

    def judge(self, view: None) -> Judgement:
        raise TypeError(f"{self.name} decides nothing")


def status_of(triggered: int, judged: int) -> Status:
    """A rule has fired if any scan did; it was judged if any scan could be."""
    return Status.FOUND if triggered else Status.HEALTHY if judged else Status.NOT_ENOUGH_DATA
