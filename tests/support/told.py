"""What the notifications of each scenario must say, and that they say it."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pwd import getpwuid
from typing import Any

import yaml
from stepscope.prometheus.rules.options import ALERT_PREFIX
from stepscope.rules import all_rules

from tests.support.alertmanager import labels_by_rule
from tests.support.film import DOCS_URL, GRAFANA_URL, node_of, run_of

_BETWEEN = re.compile(r"<([\d.]+)\.\.([\d.]+)( s)?>")
_NUMBER, _DURATION = r"([\d.]+)", r"((?:\d+h )?(?:\d+m )?[\d.]+m?s)"  # as Prometheus writes them


@dataclass(frozen=True)
class Told:
    """The alerts of one rule (and kind of trouble) in a scenario: one for each GPU or rank, or one only."""

    rule: str
    severity: str
    summary: str
    description: str
    gpus: Sequence[int] = ()
    ranks: Sequence[int] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    brief: bool = False  # it may be over before Alertmanager notifies the next time: then nobody is told

    def alerts(self, scenario: str) -> list[dict[str, str]]:
        """The labels that each alert must have; {next} stands for the number after the GPU's or rank's."""
        label, values = ("gpu", self.gpus) if self.gpus else ("rank", self.ranks)
        common = {
            "alertname": f"{ALERT_PREFIX}{self.rule}",
            "rule": self.rule,
            "severity": self.severity,
            **labels_by_rule()[self.rule],
            "run": run_of(scenario),
            "instance": node_of(scenario),
            "user": getpwuid(os.getuid()).pw_name,  # who simulates it
            "job": "stepscope",
            **self.labels,
        }
        return [
            {name: text.format(next=value + 1) for name, text in (common | {label: str(value)}).items()}
            for value in values
        ] or [common]

    def check(self, alert: Mapping[str, Any]) -> None:
        """Raises AssertionError where an alert of it does not say what it must."""
        labels, annotations = alert["labels"], alert["annotations"]
        words = {**labels, "node": labels["instance"]}
        assert annotations["summary"] == self.summary.format(**words)
        assert_says(annotations["description"], self.description.format(**words))
        assert annotations["recommendation"] == all_rules()[self.rule].recommendation
        assert annotations["dashboard_url"] == (
            f"{GRAFANA_URL}/d/stepscope-run?var-run={labels['run']}&var-instance={labels['instance']}"
        )
        assert annotations["runbook_url"] == f"{DOCS_URL}/heuristics.md#{self.rule.lower()}"


@dataclass(frozen=True)
class Expected:
    """Of one scenario: what is told, and how many alerts of which rules are told nobody."""

    told: list[Told]
    silenced: Mapping[str, int]


def read_expected(file: Path) -> dict[str, Expected]:
    """By scenario."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {
        scenario: Expected([Told(**each) for each in its["told"]], its.get("silenced", {}))
        for scenario, its in content.items()
    }


def assert_says(text: str, pattern: str) -> None:
    """The text is the pattern, with a number between the two wherever that has `<1..2>` or `<1..2 s>`."""
    literal, *more = _BETWEEN.split(pattern)  # after each bound: least, most, unit, the text behind it
    bounds = list(zip(more[::4], more[1::4], more[2::4], more[3::4], strict=True))
    expected = re.escape(literal) + "".join(
        (_DURATION if unit else _NUMBER) + re.escape(behind) for _, _, unit, behind in bounds
    )
    match = re.fullmatch(expected, text)
    assert match, f"{text!r} is not {pattern!r}"
    for value, (least, most, *_) in zip(match.groups(), bounds, strict=True):
        assert float(least) <= _in_seconds(value) <= float(most), f"{text!r} is not {pattern!r}"


def _in_seconds(text: str) -> float:
    """1m 18s -> 78, 371.2ms -> 0.3712; a number is itself."""
    if text[-1] != "s":
        return float(text)
    if text.endswith("ms"):
        return float(text[:-2]) / 1000
    return sum(float(part[:-1]) * {"h": 3600, "m": 60, "s": 1}[part[-1]] for part in text.split())


def slack_title(notification: Mapping[str, Any]) -> str:
    """What Slack shows above a notification, given Alertmanager's JSON of the same."""
    firing = [alert for alert in notification["alerts"] if alert["status"] == "firing"]
    severities = {alert["labels"]["severity"] for alert in firing} or {"resolved"}
    severity = next(one for one in ("critical", "warning", "info", "resolved") if one in severities).upper()
    its = notification["groupLabels"]
    (node,) = {alert["labels"]["instance"] for alert in notification["alerts"]}
    number = f" ({len(firing)} alerts)" if len(firing) > 1 else ""
    return f"{severity}: {its['alertname']}, run {its['run']} on {node}{number}"


def in_slack(text: str) -> str:
    """What would be markup is shown as the character that it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def slack_lines(alert: Mapping[str, Any]) -> list[str]:
    """The lines of Slack's message on such an alert, whichever alert is its example."""
    recommendation = in_slack(alert["annotations"]["recommendation"])
    runbook = in_slack(alert["annotations"]["runbook_url"])
    return [f"*What to do:* {recommendation}", f"<{runbook}|What the rule means>"]
