"""What every heuristic is made of: a question, parameters, words, what it remembers of a node, a verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, cast

from trainwatch.measurements.state import NodeState
from trainwatch.rules.other_exporters import OtherExporters
from trainwatch.rules.parameters import Parameters
from trainwatch.rules.promql import Alert, PrometheusRules, Scraping
from trainwatch.rules.topics import About, Effect, Symptom
from trainwatch.status import Status

P = TypeVar("P", bound=Parameters)
N = TypeVar("N", bound=NodeState)


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


class Rule(ABC, Generic[P, N]):
    """A rule. The class's name is the rule's; its docstring says where the definition comes from.

    `node` gives the state of a new node, which the engine feeds; `judge` makes a verdict of the states of
    all nodes (in the order of their names) at any moment, and leaves them as they are.
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

    @abstractmethod
    def node(self) -> N: ...

    @abstractmethod
    def judge(self, *arguments: Any, **named: Any) -> Any: ...

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules | None:
        """The same in PromQL; None: there is nothing to alert on.

        Raises ValueError where the exporter has no bound at one of the parameters.
        """
        return None

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


def status_of(triggered: int, judged: int) -> Status:
    """A rule has fired if any scan did; it was judged if any scan could be."""
    return Status.FOUND if triggered else Status.HEALTHY if judged else Status.NOT_ENOUGH_DATA
