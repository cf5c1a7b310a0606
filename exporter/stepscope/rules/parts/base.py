"""Defines what a rule is: a question, parameters, a measurement, a judgement, its PromQL, and words."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args

from stepscope.common.status import Status
from stepscope.measurements.measure import Measure, RunMeasurements
from stepscope.measurements.scraped import Moment, Scraped
from stepscope.rules.parts.bands import Band, Bands
from stepscope.rules.parts.judgement import Judgement, Tallies
from stepscope.rules.parts.other_exporters import OtherExporters
from stepscope.rules.parts.parameters import Parameters
from stepscope.rules.parts.promql import Alert, Audience, PrometheusRules, Scraping
from stepscope.rules.parts.starting import Beginning
from stepscope.rules.parts.topics import About, Effect, Symptom

P = TypeVar("P", bound=Parameters)
V = TypeVar("V")


@dataclass(frozen=True)
class Verdict:
    """The conclusion of a rule about a run; RuleResult has the same fields."""

    status: Status
    finding: str
    triggered: int = 0
    violations: int = 0
    datapoints: int = 0
    seconds_lost: float = 0.0
    recommendation: str | None = None  # None for the rule's own recommendation
    details: dict[str, Any] = field(default_factory=dict)
    debugger_triggered: int | None = None  # the scans that fire by Debugger's definition, if ours differs
    held: Sequence[Band] = ()  # the bands of a rule without live windows
    cause_known: bool = True  # whether it was measured what took the time, not only that it was lost


class Rule(ABC, Generic[P, V]):
    """A rule, named like its class; the module's docstring names the source of the definition.

    It requests measurements, judges views of one of them, and concludes from all scans. It has no state.
    """

    parameters_type: ClassVar[type[Parameters]]  # that of the base
    subject: ClassVar[str]  # of a sentence: "Waiting for data" cost this run 8 min
    question: ClassVar[str]
    description: ClassVar[str]
    recommendation: ClassVar[str]
    effect: ClassVar[Effect] = Effect.TIME
    # Rules with the same topic detect the same problem; the one closest to the cause reports it.
    topic: ClassVar[str] = ""
    distance: ClassVar[int] = 0
    effect_of: ClassVar[str] = ""  # the topic of rules whose findings explain what the rule sees, too
    # The view of the report's section "Details" that shows the finding; empty for its own view.
    view: ClassVar[str] = ""
    # A symptom (an idle GPU) is listed after the causes (a busy core) that explain it.
    is_symptom: ClassVar[bool] = False
    # Whether it judges GPUs: those that the run uses.
    about_gpus: ClassVar[bool] = False
    # Whether it reads the cores of a node too.
    reads_cores: ClassVar[bool] = False
    # The other measurements that the rule's words and details need.
    details_of: ClassVar[Sequence[Measure[Any]]] = ()
    # How the report names when the rule's live window met a condition; None: it has no bands.
    bands: ClassVar[Bands | None] = None
    # Whether it judges views, scan by scan; if not, only the run as a whole.
    by_scan: ClassVar[bool] = True
    # The symptom that the rule sees or, if it is a cause, explains.
    symptom: ClassVar[Symptom | None] = None
    # Whether it judges only the start or pauses: it does not know where the rest of the time goes.
    only_pauses: ClassVar[bool] = False
    # Whether runs without what it judges do not list it: its verdict then has no details.
    is_optional: ClassVar[bool] = False
    # Whether it finds that data comes too late: the machine would be used differently with faster loading.
    waits_for_data: ClassVar[bool] = False
    # Above 0 if it explains why data is late: dashboards then show its recommendation for DataStarved. If
    # several such rules fire, they show that of the highest number.
    explains_late_data: ClassVar[int] = 0

    audience: ClassVar[Audience] = "owner"
    # Whether it also judges processes that do not use Stepscope: they may be notebooks or servers.
    any_process: ClassVar[bool] = False

    # The components of steps whose share of the time the rule judges: no other finding is made of them.
    judges: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Takes the type of the parameters from the base: `Rule[MyParameters, MyView]`."""
        super().__init_subclass__()
        given = [each for base in cls.__dict__.get("__orig_bases__", ()) for each in get_args(base)]
        for each in given:
            if isinstance(each, type) and issubclass(each, Parameters):
                cls.parameters_type = each

    def __init__(self, parameters: P | None = None) -> None:
        self.parameters = parameters if parameters is not None else cast("P", self.parameters_type())

    @property
    def name(self) -> str:
        return type(self).__name__

    @classmethod
    def about(cls) -> About:
        symptom = cls.symptom.name if cls.symptom else ""
        return About(
            *(cls.subject, cls.effect, cls.topic, cls.distance, cls.view, cls.is_symptom),
            symptom,
            cls.judges,
            cls.effect_of,
        )

    @property
    def kind(self) -> str:
        return "symptom" if self.is_symptom else "cause"

    @property
    @abstractmethod
    def measure(self) -> Measure[Any]:
        """Returns the measurement that decides: `judge` gets its views, scan by scan."""

    @abstractmethod
    def judge(self, view: V) -> Judgement:
        """Judges every element of a view: scans, or series that Prometheus had scraped at a moment."""

    def judge_whole(self, view: V) -> Judgement:
        """Judges a trace over its span: without patience, as no more of the run will be seen."""
        return self.judge(view)

    def judge_live(self, view: V, sample_interval: float) -> Judgement:
        """Judges live windows: views that are the difference of two moments.

        Alerts and bands follow this judgement; the whole run follows `judge`.
        """
        return self.judge(view)

    def is_usual(self, beginning: Beginning) -> bool:
        """Returns whether what holds now is usual so early in a run: live, it is no finding yet."""
        return False

    @abstractmethod
    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        """Returns the conclusion from all scans, in words and numbers."""

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules | None:
        """Returns the same rule in PromQL; None if it has no alerts.

        Raises ValueError if a parameter is not a bound of the exporter's counters.
        """
        return None

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[V]:
        """Returns the view at a moment, computed from the exporter's counters in Prometheus."""
        raise NotImplementedError(f"{self.name} has no rules in Prometheus")

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules | None:
        """Returns the rule over series of dcgm-exporter and node_exporter; None if they do not suffice."""
        return None

    def debugger_parameters(self) -> dict[str, float | int | str | None] | None:
        """Returns the lines of Debugger's RuleParameters; None if they are the rule's own parameters."""
        return None

    def alert_labels(self, alert: Alert) -> dict[str, str]:
        """Returns the labels that an alert's expression does not provide.

        alertmanager.yml uses them for inhibition: a cause silences the symptom that both name, in its scope.
        """
        symptom = {"symptom": self.symptom.name, "scope": self.symptom.scope} if self.symptom else {}
        return {
            "rule": self.name,
            "severity": alert.severity,
            "audience": self.audience,
            "kind": self.kind,
            **symptom,
            **alert.labels,
        }


class OfWholeRun(Rule[P, None]):
    """A rule that judges the facts of a whole run."""

    by_scan = False

    def judge(self, view: None) -> Judgement:
        raise TypeError(f"{self.name} judges no scan")


class Overview(OfWholeRun[P]):
    """An overview that the findings of other rules refer to; it never fires."""

    effect = Effect.OVERVIEW


RuleClass = type[Rule[Any, Any]]


def status_of(triggered: int, judged: int) -> Status:
    """Returns the status: found if any scan fired, healthy if any was judged."""
    return Status.FOUND if triggered else Status.HEALTHY if judged else Status.NOT_ENOUGH_DATA
