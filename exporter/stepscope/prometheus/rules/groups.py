"""Rule groups: the records and alerts of each rule, and its status, parameters and words as series."""

import re
from collections.abc import Mapping
from dataclasses import replace
from textwrap import dedent, indent
from typing import Any

from stepscope.common.errors import UserError
from stepscope.exporter.sampling.active_runs import UNNAMED
from stepscope.measurements.scraped import SAMPLES
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.expressions import Expression, bracketed, time_span
from stepscope.rules.parts.parameters import Bounds, specifications
from stepscope.rules.parts.promql import Alert, PrometheusRules, Severity, owner_labels

Group = dict[str, Any]
Entry = dict[str, Any]

FINDING = "stepscope:rule_finding"
STATUS = "stepscope:rule_status"
PARAMETER = "stepscope:rule_parameter"
INFO = "stepscope:rule_info"
LOST = "stepscope:rule_lost_ratio"  # of a finding: the share of the time that it costs, if that is known
DISTANCE = "stepscope:rule_distance"  # of rules of one topic, the one with the smallest reports the problem

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")  # in ascending order
# Grafana's dashboard of one run, with its variables. External labels are not among an alert's labels yet.
DASHBOARD = (
    "/d/stepscope-run?var-run={{$labels.run|urlquery}}&var-instance={{$labels.instance|urlquery}}"
    "{{with or $labels.cluster $externalLabels.cluster}}&var-cluster={{.|urlquery}}{{end}}"
)
HEURISTICS = "heuristics.md"  # the page of the docs with a section on each rule


def rule_groups(options: Options) -> list[Group]:
    """Returns one group per rule that alerts, with its parameters and words for dashboards.

    Raises UserError for a setting that is wrong or that PromQL cannot express.
    """
    rendered = [(rule, _rules(rule, options)) for rule in options.rules()]
    return [_group(rule, rules, options) for rule, rules in rendered if rules is not None]


def laid_out(expression: Expression | str) -> str:
    """Returns the PromQL of an expression, without the indentation of the surrounding code."""
    return dedent(f"{expression}").strip()


def record(name: str, expression: Expression | str, labels: Mapping[str, str] | None = None) -> Entry:
    """Returns a recording rule."""
    return {"record": name, "expr": laid_out(expression), **({"labels": dict(labels)} if labels else {})}


def alerting(
    name: str,
    alert: Alert,
    labels: Mapping[str, str],
    recommendation: str,
    options: Options,
    page: str = HEURISTICS,
    dashboard: str = DASHBOARD,
) -> Entry:
    """Returns an alerting rule; `page` of the docs has a section on it. Leaves out links that are not set."""
    durations = {"for": alert.pending, "keep_firing_for": alert.keep_firing}
    links = {}
    if options.grafana_url:
        links["dashboard_url"] = options.grafana_url + dashboard
    if options.docs_url:
        links["runbook_url"] = _runbook(name, options, page)
    prefix = "" if name.startswith(options.alert_prefix) else options.alert_prefix
    return {
        "alert": prefix + name,
        "expr": laid_out(alert.expression),
        **{field: time_span(seconds) for field, seconds in durations.items() if seconds},
        # An added `namespace` is that of an AlertmanagerConfig: it goes before the run's.
        "labels": {**labels, **options.labels()},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "recommendation": recommendation,
            **_value(alert.description),
            **links,
        },
    }


def _value(description: str) -> dict[str, str]:
    """Returns annotations for messages on several alerts: the value as the description formats it.

    Alertmanager can only compare text, so `value_order` is the same value with leading zeros.
    """
    formatted = re.search(r"{{[^{}]*\$value[^{}]*}}", description)
    if formatted is None:
        return {}
    return {"value": formatted[0], "value_order": "{{ printf `%024.6f` $value }}"}


def _runbook(name: str, options: Options, page: str = HEURISTICS) -> str:
    return f"{options.docs_url}/{page}#{name.lower()}"


def _rules(rule: Rule[Any, Any], options: Options) -> PrometheusRules | None:
    try:
        return rule.prometheus_rules(options.scraping)
    except ValueError as error:
        raise UserError(f"--set {rule.name}.{error}") from None


def _of_training(rule: Rule[Any, Any], rules: PrometheusRules, options: Options) -> PrometheusRules:
    """Leaves out processes without Stepscope, unless the rule judges them too: they may not train."""
    if rule.any_process:
        return rules
    others = options.scraping.held(f'{SAMPLES}{{run=~"{UNNAMED}"}}')

    def only(expression: Expression | str) -> str:
        return f"(\n{indent(laid_out(expression), '  ')}\n)\nunless on (run) {others}"

    alerts = [replace(alert, expression=only(alert.expression)) for alert in rules.alerts]
    return replace(rules, targets=only(rules.targets), alerts=alerts)


def _group(rule: Rule[Any, Any], rules: PrometheusRules, options: Options) -> Group:
    rules = _of_training(rule, rules, options)
    return {
        "name": f"stepscope-{rule.name}",
        "interval": time_span(rules.every or options.scraping.interval),
        "rules": [
            *(record(each.name, each.expression) for each in rules.records),
            # An alert's value while its condition is true: evaluated once, for both status and alert.
            *(record(FINDING, alert.expression, _labels(rule.name, alert)) for alert in rules.alerts),
            *(
                record(LOST, alert.lost.format(finding(_labels(rule.name, alert))), _labels(rule.name, alert))
                for alert in rules.alerts
                if alert.lost
            ),
            _status_of_findings(rule.name, rules),
            *(
                alert_rule(rule, replace(alert, expression=finding(_labels(rule.name, alert))), options)
                for alert in rules.alerts
            ),
            *_description(rule, rules, options),
        ],
    }


def finding(labels: Mapping[str, str]) -> str:
    """Returns the selector of the findings with these labels."""
    matchers = ", ".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{FINDING}{{{matchers}}}"


def _labels(name: str, alert: Alert) -> dict[str, str]:
    return {"rule": name, **alert.labels}


def _status_of_findings(name: str, rules: PrometheusRules) -> Entry:
    """Records 1 for targets with a finding, 0 for all others."""
    findings = f'{FINDING}{{rule="{name}"}}'
    own = sorted({label for alert in rules.alerts for label in alert.labels})
    if own:
        findings = f"max without ({', '.join(own)}) ({findings})"
    expression = f"{_clamped(findings, 1)}\nor ignoring (rule)\n{_clamped(bracketed(rules.targets), 0)}"
    return record(STATUS, expression, {"rule": name})


def status(name: str, rules: PrometheusRules) -> Entry:
    """Records 1 for targets for which a condition is true, 0 for all others."""
    conditions = [_clamped(alert.expression, 1) for alert in rules.alerts]
    return record(STATUS, "\nor\n".join([*conditions, _clamped(bracketed(rules.targets), 0)]), {"rule": name})


def _clamped(expression: str, value: int) -> str:
    """Returns an expression that is `value` for every series of the given one."""
    text = laid_out(expression)
    if "\n" in text:
        text = f"\n{indent(text, '  ')},\n  "
        return f"clamp({text}{value}, {value}\n)"
    return f"clamp({text}, {value}, {value})"


def alert_rule(rule: Rule[Any, Any], alert: Alert, options: Options) -> Entry:
    labels = {**rule.alert_labels(alert), **owner_labels()}
    return alerting(rule.name, alert, labels, rule.recommendation, options)


def _in_words(rule: Rule[Any, Any]) -> str:
    """Returns all parameters in one line, for tables: "threshold 50 %, patience 1000 samples"."""
    parts = []
    for name, specification in specifications(type(rule.parameters)).items():
        value = getattr(rule.parameters, name)
        if isinstance(specification.limits, Bounds):
            parts.append(f"{name} {value:.12g} {specification.limits.unit}")
        elif value is not None:
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def _description(rule: Rule[Any, Any], rules: PrometheusRules, options: Options) -> list[Entry]:
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
    if options.docs_url:
        words["runbook"] = _runbook(rule.name, options)
    parameters = []
    for name, specification in specifications(type(rule.parameters)).items():
        value = getattr(rule.parameters, name)
        if isinstance(specification.limits, Bounds):
            labels = {"rule": rule.name, "parameter": name, "unit": specification.limits.unit}
            parameters.append(record(PARAMETER, f"vector({value:.12g})", labels))
        elif value is not None:  # words cannot be values of a series: they are labels
            words[name] = value
    distance = record(
        DISTANCE, f"vector({rule.distance})", {"rule": rule.name, "topic": rule.topic or rule.name}
    )
    return [record(INFO, "vector(1)", words), distance, *parameters]
