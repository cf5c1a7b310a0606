"""Rule groups of the heuristics: their own rules, and status, parameters and words as series."""

from __future__ import annotations

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
    """A group a heuristic that alerts, and one of what dashboards show of all of them.

    Raises UserError where a setting is wrong, or cannot be told in Prometheus.
    """
    given = [(one, _rules(one, options)) for one in options.settings.rules()]
    alerting = [(one, rules) for one, rules in given if rules is not None]
    groups = [_group(one, rules, options) for one, rules in alerting]
    described = [rule for one, rules in alerting for rule in _description(one, rules)]
    return [*groups, {"name": "trainwatch-descriptions", "interval": time_span(MINUTE), "rules": described}]


def laid_out(expression: str) -> str:
    """An expression without the indentation of the code that it is written in."""
    return dedent(expression).strip()


def annotated(
    options: Options, summary: str, description: str, recommendation: str, anchor: str
) -> dict[str, str]:
    """What an alert says; `anchor` is page and section of the docs."""
    return {
        "summary": summary,
        "description": description,
        "recommendation": recommendation,
        "dashboard_url": options.grafana_url + DASHBOARD,
        "runbook_url": f"{options.docs_url}/{anchor}",
    }


def _rules(heuristic: Rule[Any, Any], options: Options) -> PrometheusRules | None:
    try:
        return heuristic.prometheus_rules(options.scraping)
    except ValueError as error:
        raise UserError(f"--set {heuristic.name}.{error}") from None


def _group(heuristic: Rule[Any, Any], rules: PrometheusRules, options: Options) -> Group:
    interval = max(rules.every, options.scraping.interval)
    records: list[Entry] = [
        {"record": record.name, "expr": laid_out(record.expression)} for record in rules.records
    ]
    return {
        "name": f"trainwatch-{heuristic.name}",
        "interval": time_span(interval),
        "rules": [
            *records,
            *(_finding(heuristic.name, alert) for alert in rules.alerts),
            _status_of_findings(heuristic.name, rules),
            *(
                alert_rule(heuristic, replace(alert, expression=_found(heuristic.name, alert)), options)
                for alert in rules.alerts
            ),
        ],
    }


def _finding(name: str, alert: Alert) -> Entry:
    """An alert's value where its condition holds: evaluated once, for the status and for the alert."""
    return {"record": FINDING, "expr": laid_out(alert.expression), "labels": _labels(name, alert)}


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
    return {
        "record": STATUS,
        "expr": f"{_clamped(findings, 1)}\nor ignoring (rule)\n{_clamped(rules.targets, 0)}",
        "labels": {"rule": name},
    }


def status(name: str, rules: PrometheusRules) -> Entry:
    """1 where a condition holds, else 0 for every target."""
    conditions = [_clamped(alert.expression, 1) for alert in rules.alerts]
    return {
        "record": STATUS,
        "expr": "\nor\n".join([*conditions, _clamped(rules.targets, 0)]),
        "labels": {"rule": name},
    }


def _clamped(expression: str, value: int) -> str:
    """`value` for whatever the expression has a value."""
    text = laid_out(expression)
    if "\n" in text:
        text = f"\n{indent(text, '  ')},\n  "
        return f"clamp({text}{value}, {value}\n)"
    return f"clamp({text}, {value}, {value})"


def alert_rule(heuristic: Rule[Any, Any], alert: Alert, options: Options) -> Entry:
    name = heuristic.name
    holds = {"for": alert.pending, "keep_firing_for": alert.keep_firing}
    return {
        "alert": name,
        "expr": laid_out(alert.expression),
        **{field: time_span(seconds) for field, seconds in holds.items() if seconds},
        "labels": heuristic.alert_labels(alert),
        "annotations": annotated(
            options,
            alert.summary,
            alert.description,
            heuristic.recommendation,
            f"heuristics.md#{name.lower()}",
        ),
    }


def _in_words(heuristic: Rule[Any, Any]) -> str:
    """All parameters in a line, for tables: "threshold 50 %, patience 1000 samples"."""
    parts = []
    for name, specification in specifications(type(heuristic.parameters)).items():
        value = getattr(heuristic.parameters, name)
        if isinstance(specification.limits, Bounds):
            parts.append(f"{name} {value:.12g} {specification.limits.unit}")
        elif value is not None:
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def _description(heuristic: Rule[Any, Any], rules: PrometheusRules) -> list[Entry]:
    severity = max((alert.severity for alert in rules.alerts), key=SEVERITIES.index)
    words = {
        "rule": heuristic.name,
        "severity": severity,
        "kind": heuristic.kind,
        "parameters": _in_words(heuristic),
        "question": heuristic.question,
        "description": heuristic.description,
        "recommendation": heuristic.recommendation,
    }
    parameters = []
    for name, specification in specifications(type(heuristic.parameters)).items():
        value = getattr(heuristic.parameters, name)
        if isinstance(specification.limits, Bounds):
            labels = {"rule": heuristic.name, "parameter": name, "unit": specification.limits.unit}
            parameters.append({"record": PARAMETER, "expr": f"vector({value:.12g})", "labels": labels})
        elif value is not None:  # a word is no number: it is a label
            words[name] = value
    return [{"record": INFO, "expr": "vector(1)", "labels": words}, *parameters]
