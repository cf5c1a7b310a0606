"""Options of rendering. Rule files have them in their header, so that they can be checked."""

import re
import shlex
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from stepscope.common import PUBLIC_DOCS
from stepscope.common.durations import parse_speed, positive_duration
from stepscope.common.errors import UserError, did_you_mean
from stepscope.evaluation.arguments import add_parameters, url
from stepscope.evaluation.settings import Settings
from stepscope.rules import all_rules
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.other_exporters import GPU_SOURCES, HOST_SOURCES, STEPSCOPE
from stepscope.rules.parts.parameters import specifications
from stepscope.rules.parts.promql import MINUTE, Scraping

# The servers that evaluate rules, and how they differ: docs/engines.md has the sources.
PROMETHEUS = "prometheus"

_OF_FILE = '{rule_group=~".*;stepscope-.*"}[5m]'  # groups are called FILE;GROUP
_OF_GROUP = '{group=~"stepscope-.*"}[5m]'


@dataclass(frozen=True)
class Engine:
    """A server that evaluates rules."""

    title: str
    failures: str  # PromQL: the failures of our rules in the last five minutes
    reason: str  # what says why a rule failed
    group: str = "rule_group"  # the label that names the rule's group
    stores_at_once: bool = True  # a rule sees what a rule before it in its group has just recorded
    keeps_firing: bool = True  # it knows `keep_firing_for`


ENGINES: Mapping[str, Engine] = {
    PROMETHEUS: Engine(
        "Prometheus",
        f"increase(prometheus_rule_evaluation_failures_total{_OF_FILE}) > 0",
        "Prometheus's page /rules",
    ),
    "mimir": Engine(
        "Mimir's ruler",
        f"increase(cortex_prometheus_rule_evaluation_failures_total{_OF_FILE}) > 0",
        "The log of Mimir's ruler",
    ),
    # A stateless Thanos Rule sends what it records to a receiver, and does not wait.
    "thanos": Engine(
        "Thanos Rule",
        f"increase(prometheus_rule_evaluation_failures_total{_OF_FILE}) > 0",
        "Thanos Rule's page /rules",
        stores_at_once=False,
    ),
    # vmalert never waits. Old versions refuse `keep_firing_for`. Before 1.96, a gauge has the last failure.
    "victoriametrics": Engine(
        "vmalert",
        "\nor ".join(
            f"increase(vmalert_{kind}_rules_errors_total{_OF_GROUP}) > 0\n"
            f"or max_over_time(vmalert_{kind}_rules_error{_OF_GROUP}) > 0"
            for kind in ("alerting", "recording")
        ),
        "vmalert's page /vmalert/groups",
        group="group",
        stores_at_once=False,
        keeps_firing=False,
    ),
}

ALERT_PREFIX = "Stepscope"
# Labels of alerts that expressions, Alertmanager's inhibition and notifications rely on.
OWN_LABELS = re.compile(
    "alertname|rule|severity|kind|symptom|scope|trouble|stage|standstill|limit|reason|"
    "cluster|job|instance|run|rank|phase|gpu|collector|"
    "audience|user|pod|scheduler_job|fault|type|place|idle|resolution|"
    "device|port|mountpoint|pid|group|rule_group"
)
LABEL_IN_TEMPLATE = re.compile(r"{{ *\$(?:labels|externalLabels)\.[a-zA-Z_]\w* *}}", re.ASCII)
LONGEST_SCRAPE_INTERVAL = 2 * MINUTE
COMMAND = "stepscope rules render"


def _prefix(text: str) -> str:
    if not re.fullmatch(r"(?:[A-Za-z_]\w*)?", text, re.ASCII):
        raise ArgumentTypeError(f"{text!r} must consist of letters, digits and underscores")
    return text


def _scrape_interval(text: str) -> float:
    interval = positive_duration(text)
    if interval > LONGEST_SCRAPE_INTERVAL:
        raise ArgumentTypeError(
            f"{text!r} is too long: rates over 5 minutes need several scrapes; use 2m or less"
        )
    return interval


def _label(text: str) -> str:
    name, _, value = text.partition("=")
    if not re.fullmatch(r"[a-zA-Z_]\w*=.+", text, re.ASCII):
        raise ArgumentTypeError(f"{text!r} is not a label such as team=ml")
    if "{{" in LABEL_IN_TEMPLATE.sub("", value):
        raise ArgumentTypeError(
            f"{text!r}: Prometheus takes {{{{ for a template; the only ones allowed are such as "
            "{{ $labels.namespace }}"
        )
    if OWN_LABELS.fullmatch(name):
        raise ArgumentTypeError(f"{text!r}: alerts have a label {name!r} already; choose another name")
    return text


def _rule_name(text: str) -> str:
    rules = [name for name, rule in all_rules().items() if rule().prometheus_rules(Scraping()) is not None]
    if text not in rules:
        hint = did_you_mean(text, rules, f"the rules are {', '.join(rules)}")
        raise ArgumentTypeError(f"there is no rule {text!r} with alerts; {hint}")
    return text


def _flag(default: Any, help: str, shown: str = "%(default)s", also: str = "", **argument: Any) -> Any:
    """Returns a field that a flag of its name sets, and one called `also`.

    The help ends with the default as it is `shown`. `argument` is what else `add_argument` gets.
    """
    words = f"{help} (default: {shown})" if shown else help
    return field(default=default, metadata={"also": also.split(), "argument": {"help": words, **argument}})


@dataclass(frozen=True)
class Options:
    """Fields with flags are in the order of the help."""

    words: tuple[str, ...] = ()  # Rule.parameter=value
    scraping: Scraping = field(default_factory=Scraping)
    engine: str = _flag(PROMETHEUS, "what evaluates the rules", choices=ENGINES)
    gpu_source: str = _flag(
        STEPSCOPE, "also judge GPUs that only dcgm-exporter measures", choices=GPU_SOURCES
    )
    host_source: str = _flag(
        STEPSCOPE, "also judge cores that only node_exporter measures", choices=HOST_SOURCES
    )
    window: float | None = _flag(  # those in `words` override it
        *(None, "the live window of all rules that have one: how much of the past they judge", "15m"),
        type=positive_duration,
        metavar="DURATION",
    )
    only: tuple[str, ...] = _flag(
        *((), "render only these rules", "all"), type=_rule_name, nargs="+", action="extend", metavar="RULE"
    )
    label: tuple[str, ...] = _flag(
        *((), "add a label to every alert, for the routes of your Alertmanager; may be repeated", ""),
        type=_label,
        action="append",
        metavar="NAME=VALUE",
    )
    alert_prefix: str = _flag(
        ALERT_PREFIX, "of the alerts' names; their label `rule` has none", type=_prefix, metavar="PREFIX"
    )
    grafana_url: str = _flag(
        *("", "of your Grafana with Stepscope's dashboards", "alerts link to no dashboard"),
        also="--external-url",
        type=url,
        metavar="URL",
    )
    docs_url: str = _flag(
        *(PUBLIC_DOCS, "of a copy of docs/", "the public docs", "--runbook-url"), type=url, metavar="URL"
    )
    profile: str = _flag(  # of the exporters' metrics
        "default",
        "with lean, only the rules that work with `stepscope exporter --metrics.profile=lean`",
        "%(default)s, all rules",
        choices=("lean", "default"),
    )
    speed: float = _flag(  # all other times here are simulated ones
        1.0,
        "for `stepscope demo --speed FACTOR`: divides all durations by it, the scrape interval too",
        "1",
        type=parse_speed,
        metavar="FACTOR",
    )

    @property
    def settings(self) -> Settings:
        """Returns the parsed settings. Raises UserError for a bad one."""
        windows = [
            f"{name}.live_window={self.window / MINUTE:.12g}"
            for name, rule in all_rules().items()
            if self.window is not None and "live_window" in specifications(rule.parameters_type)
        ]
        return Settings.parse((*windows, *self.words))

    def rules(self) -> list[Rule[Any, Any]]:
        """Returns the rules to render."""
        return [rule for rule in self.settings.rules() if rule.name in self.only or not self.only]

    def labels(self) -> dict[str, str]:
        """Returns the labels that every alert gets."""
        return dict(label.split("=", 1) for label in self.label)

    def command(self) -> str:
        """Returns the command that renders with these options, without `--out`."""
        words = [
            *COMMAND.split(),
            *("--scrape-interval", time_span(self.scraping.interval)),
            *("--sample-interval", time_span(self.scraping.sample_interval)),
        ]
        for each in fields(self):
            value = getattr(self, each.name)
            if each.metadata and value != each.default and not isinstance(value, tuple):
                shown = f"{value:g}" if each.name == "speed" else value
                words += [_name_of(each), time_span(value) if each.name == "window" else shown]
        for flag, values in (("--label", self.label), ("--only", self.only), ("--set", self.words)):
            for value in values:
                words += [flag, value]
        return shlex.join(words)

    @classmethod
    def from_command(cls, command: str) -> "Options":
        """Returns the options in the result of `command`. Raises UserError for any other command."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"{command}: cannot be read ({error})") from None
        if words[: len(COMMAND.split())] != COMMAND.split():
            raise UserError(f"{command}: is not `{COMMAND} ...`")
        parser = _RaisingParser(add_help=False)
        add_options(parser)
        return cls.from_flags(vars(parser.parse_args(words[len(COMMAND.split()) :])))

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> "Options":
        in_file = Settings.read(flags["parameters"]).words() if flags["parameters"] else ()
        given = {each.name: flags[each.name] for each in fields(cls) if each.metadata}
        given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        scraping = Scraping(flags["scrape_interval"], flags["sample_interval"])
        return cls((*in_file, *flags["set"]), scraping, **given)


class _RaisingParser(ArgumentParser):
    def error(self, message: str) -> object:  # type: ignore[override]
        raise UserError(message)


def add_options(parser: ArgumentParser) -> None:
    """Adds the flags that change what is rendered."""
    add_parameters(parser)
    parser.add_argument(
        "--scrape-interval",
        type=_scrape_interval,
        default="15s",
        metavar="DURATION",
        help="how often Prometheus scrapes the exporter; no rule is evaluated more often "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--sample-interval",
        type=positive_duration,
        default="500ms",
        metavar="DURATION",
        help="how often the exporter samples (default: %(default)s)",
    )
    for each in fields(Options):
        if each.metadata:
            default = list(each.default) if isinstance(each.default, tuple) else each.default
            names = [_name_of(each), *each.metadata["also"]]
            parser.add_argument(*names, default=default, **each.metadata["argument"])


def _name_of(option: Field[Any]) -> str:
    return f"--{option.name.replace('_', '-')}"
