"""Rule groups: what each rule records and alerts on, and its status, parameters and words as series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from textwrap import dedent, indent
from typing import Any

from trainwatch.errors import UserError
from trainwatch.prometheus_rules.options import Options
from trainwatch.rules.base import Rule
from trainwatch.rules.parameters import Bounds, specifications
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Severity, time_span

Group = dict[str, Any]
Entry = dict[str, Any]

FINDING = "trainwatch:rule_finding"
STATUS = "trainwatch:rule_status"
PARAMETER = "trainwatch:rule_parameter"
INFO = "trainwatch:rule_info"

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")  # the least first
# Grafana's dashboard of one run, and the variables that it takes.
DASHBOARD = "/d/trainwatch-run?var-run={{$labels.run|urlquery}}&var-instance={{$labels.instance|urlquery}}"


def rule_groups(options: Options) -> list[Group]:
    """A group per rule that alerts, and one of what dashboards show of all of them.

    Raises UserError where a setting is wrong, or cannot be told in Prometheus.
    """
    given = [(rule, _rules(rule, options)) for rule in options.settings.rules()]
    with_rules = [(rule, rules) for rule, rules in given if rules is not None]
    groups = [_group(rule, rules, options) for rule, rules in with_rules]
    described = [entry for rule, rules in with_rules for entry in _description(rule, rules)]
    return [*groups, {"name": "trainwatch-descriptions", "interval": time_span(MINUTE), "rules": described}]


def laid_out(expression: str) -> str:
    """An expression without the indentation of the code that it is written in."""
    return dedent(expression).strip()


def record(name: str, expression: str, labels: Mapping[str, str] | None = None) -> Entry:
    """A recording rule."""
    return {"record": name, "expr": laid_out(expression), **({"labels": dict(labels)} if labels else {})}


def alerting(
    name: str, alert: Alert, labels: Mapping[str, str], recommendation: str, page: str, options: Options
) -> Entry:
    """An alerting rule; `page` of the docs has a section on it."""
    holds = {"for": alert.pending, "keep_firing_for": alert.keep_firing}
    return {
        "alert": name,
        "expr": laid_out(alert.expression),
        **{field: time_span(seconds) for field, seconds in holds.items() if seconds},
        "labels": dict(labels),
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "recommendation": recommendation,
            "dashboard_url": options.grafana_url + DASHBOARD,
            "runbook_url": f"{options.docs_url}/{page}#{name.lower()}",
        },
    }


def _rules(rule: Rule[Any, Any], options: Options) -> PrometheusRules | None:
    try:
        return rule.prometheus_rules(options.scraping)
    except ValueError as error:
        raise UserError(f"--set {rule.name}.{error}") from None


def _group(rule: Rule[Any, Any], rules: PrometheusRules, options: Options) -> Group:
    return {
        "name": f"trainwatch-{rule.name}",
        "interval": time_span(max(rules.every, options.scraping.interval)),
        "rules": [
            *(record(one.name, one.expression) for one in rules.records),
            *(_finding(rule.name, alert) for alert in rules.alerts),
            _status_of_findings(rule.name, rules),
            *(
                alert_rule(rule, replace(alert, expression=_found(rule.name, alert)), options)
                for alert in rules.alerts
            ),
        ],
    }


def _finding(name: str, alert: Alert) -> Entry:
    """An alert's value where its condition holds: evaluated once, for the status and for the alert."""
    return record(FINDING, alert.expression, _labels(name, alert))


def _found(name: str, alert: Alert) -> str:
    """Selects what `_finding` records."""
    matchers = ", ".join(f'{label}="{value}"' for label, value in _labels(name, alert).items())
    return f"{FINDING}{{{matchers}}}"


def _labels(name: str, alert: Alert) -> dict[str, str]:
    return {"rule": name, **alert.labels}


def _status_of_findings(name: str, rules: PrometheusRules) -> Entry:
    """1 where a condition holds, else 0 for every target."""
    findings = f'{FINDING}{{rule="{name}"}}'
    own = sorted({label for alert in rules.alerts for label in alert.labels})
    if own:
        findings = f"max without ({', '.join(own)}) ({findings})"
    expression = f"{_clamped(findings, 1)}\nor ignoring (rule)\n{_clamped(rules.targets, 0)}"
    return record(STATUS, expression, {"rule": name})


def status(name: str, rules: PrometheusRules) -> Entry:
    """1 where a condition holds, else 0 for every target."""
    conditions = [_clamped(alert.expression, 1) for alert in rules.alerts]
    return record(STATUS, "\nor\n".join([*conditions, _clamped(rules.targets, 0)]), {"rule": name})


def _clamped(expression: str, value: int) -> str:
    """`value` for whatever the expression has a value."""
    text = laid_out(expression)
    if "\n" in text:
        text = f"\n{indent(text, '  ')},\n  "
        return f"clamp({text}{value}, {value}\n)"
    return f"clamp({text}, {value}, {value})"


def alert_rule(rule: Rule[Any, Any], alert: Alert, options: Options) -> Entry:
    return alerting(rule.name, alert, rule.alert_labels(alert), rule.recommendation, "heuristics.md", options)


def _in_words(rule: Rule[Any, Any]) -> str:
    """All parameters in a line, for tables: "threshold 50 %, patience 1000 samples"."""
    parts = []
    for name, specification in specifications(type(rule.parameters)).items():
        value = getattr(rule.parameters, name)
        if isinstance(specification.limits, Bounds):
            parts.append(f"{name} {value:.12g} {specification.limits.unit}")
        elif value is not None:
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def _description(rule: Rule[Any, Any], rules: PrometheusRules) -> list[Entry]:
    severity = max((alert.severity for alert in rules.alerts), key=SEVERITIES.index)
    words = {
        "rule": rule.name,
        "severity": severity,
        "kind": rule.kind,
        "parameters": _in_words(rule),
        "question": rule.question,
        "description": rule.description,
        "recommendation": rule.recommendation,
    }
    parameters = []
    for name, specification in specifications(type(rule.parameters)).items():
        value = getattr(rule.parameters, name)
        if isinstance(specification.limits, Bounds):
            labels = {"rule": rule.name, "parameter": name, "unit": specification.limits.unit}
            parameters.append(record(PARAMETER, f"vector({value:.12g})", labels))
        elif value is not None:  # a word is no number: it is a label
            words[name] = value
    return [record(INFO, "vector(1)", words), *parameters]
