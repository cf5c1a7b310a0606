"""Options of rendering. Rule files have them in their header, so that they can be checked."""

import re
import shlex
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepscope.common import PUBLIC_DOCS
from stepscope.common.durations import parse_speed, positive_duration
from stepscope.common.errors import UserError, did_you_mean
from stepscope.evaluation.arguments import add_docs_url, add_parameters, url
from stepscope.evaluation.settings import Settings
from stepscope.prometheus.rules.engines import ENGINES, PROMETHEUS
from stepscope.rules import all_rules
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.other_exporters import GPU_SOURCES, HOST_SOURCES, STEPSCOPE
from stepscope.rules.parts.parameters import specifications
from stepscope.rules.parts.promql import MINUTE, Scraping

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
# Options whose value is their flag's.
PLAIN = ("alert_prefix", "profile", "speed", "engine", "window", "gpu_source", "host_source")


@dataclass(frozen=True)
class Options:
    words: tuple[str, ...] = ()  # Rule.parameter=value
    scraping: Scraping = field(default_factory=Scraping)
    alert_prefix: str = ALERT_PREFIX
    grafana_url: str = ""  # without it, alerts have no link to a dashboard
    docs_url: str = PUBLIC_DOCS  # "": alerts have no link to their rule's section
    profile: str = "default"  # of the exporters' metrics: default, or lean
    speed: float = 1.0  # of a simulated node; all other times here are simulated ones
    engine: str = PROMETHEUS  # that evaluates the rules
    window: float | None = None  # seconds, of all live windows; those in `words` override it
    added_labels: tuple[str, ...] = ()  # name=value, of every alert
    only: tuple[str, ...] = ()  # names of rules; without any, all of them
    gpu_source: str = STEPSCOPE  # of nodes whose GPUs our exporter does not measure
    host_source: str = STEPSCOPE  # the same of their cores

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
        return dict(label.split("=", 1) for label in self.added_labels)

    def command(self) -> str:
        """Returns the command that renders with these options, without `--out`."""
        words = [
            *COMMAND.split(),
            *("--scrape-interval", time_span(self.scraping.interval)),
            *("--sample-interval", time_span(self.scraping.sample_interval)),
        ]
        for flag, value, default in (
            ("--engine", self.engine, PROMETHEUS),
            ("--gpu-source", self.gpu_source, STEPSCOPE),
            ("--host-source", self.host_source, STEPSCOPE),
            ("--window", "" if self.window is None else time_span(self.window), ""),
            ("--alert-prefix", self.alert_prefix, ALERT_PREFIX),
            ("--grafana-url", self.grafana_url, ""),
            ("--docs-url", self.docs_url, PUBLIC_DOCS),
            ("--profile", self.profile, "default"),
            ("--speed", f"{self.speed:g}", "1"),
        ):
            if value != default:
                words += [flag, value]
        for flag, values in (("--label", self.added_labels), ("--only", self.only), ("--set", self.words)):
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
        return cls(
            (*in_file, *flags["set"]),
            Scraping(flags["scrape_interval"], flags["sample_interval"]),
            grafana_url=flags["grafana_url"].rstrip("/"),
            docs_url=flags["docs_url"].rstrip("/"),
            added_labels=tuple(flags["label"]),
            only=tuple(flags["only"]),
            **{name: flags[name] for name in PLAIN},
        )


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
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=PROMETHEUS,
        help="what evaluates the rules (default: %(default)s)",
    )
    parser.add_argument(
        "--gpu-source",
        choices=GPU_SOURCES,
        default=STEPSCOPE,
        help="also judge GPUs that only dcgm-exporter measures (default: %(default)s)",
    )
    parser.add_argument(
        "--host-source",
        choices=HOST_SOURCES,
        default=STEPSCOPE,
        help="also judge cores that only node_exporter measures (default: %(default)s)",
    )
    parser.add_argument(
        "--window",
        type=positive_duration,
        metavar="DURATION",
        help="the live window of all rules that have one: how much of the past they judge (default: 15m)",
    )
    parser.add_argument(
        "--only",
        type=_rule_name,
        nargs="+",
        action="extend",
        default=[],
        metavar="RULE",
        help="render only these rules (default: all)",
    )
    parser.add_argument(
        "--label",
        type=_label,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="add a label to every alert, for the routes of your Alertmanager; may be repeated",
    )
    parser.add_argument(
        "--alert-prefix",
        type=_prefix,
        default=ALERT_PREFIX,
        metavar="PREFIX",
        help="of the alerts' names; their label `rule` has none (default: %(default)s)",
    )
    parser.add_argument(
        "--grafana-url",
        "--external-url",
        type=url,
        default="",
        metavar="URL",
        help="of your Grafana with Stepscope's dashboards (default: alerts link to no dashboard)",
    )
    add_docs_url(parser, "the public docs", "--runbook-url", default=PUBLIC_DOCS)
    parser.add_argument(
        "--profile",
        choices=("lean", "default"),
        default="default",
        help="with lean, only the rules that work with `stepscope exporter --metrics.profile=lean` "
        "(default: %(default)s, all rules)",
    )
    parser.add_argument(
        "--speed",
        type=parse_speed,
        default=1.0,
        metavar="FACTOR",
        help="for `stepscope demo --speed FACTOR`: divides all durations by it, the scrape interval too "
        "(default: 1)",
    )
