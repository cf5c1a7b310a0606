"""Renders the rules over series of dcgm-exporter and node_exporter, for nodes without readings of ours.

They are read once per scrape, so the rules are as coarse as that. The label `resolution="scrape"` says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stepscope.prometheus.rules.groups import Entry, Group, alert_rule, record, status
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.other_exporters import ON_NODE, STEPSCOPE, OtherExporters, of_runs
from stepscope.rules.parts.promql import PrometheusRules

COARSE = {"resolution": "scrape"}
UNKNOWN = {"run": "unknown", **COARSE}


def existing_clusters_groups(options: Options) -> list[Group]:
    """Returns the rules for clusters without our exporter: they do not know which run uses a GPU."""
    return _groups(options, OtherExporters(options.scraping), knows_runs=False)


def other_sources_groups(options: Options) -> list[Group]:
    """Returns the rules over the chosen sources, for the runs that our exporter knows; [] by default."""
    if options.gpu_source == options.host_source == STEPSCOPE:
        return []
    others = OtherExporters(options.scraping, options.gpu_source, options.host_source)
    return _groups(options, others, knows_runs=True)


def _groups(options: Options, others: OtherExporters, knows_runs: bool) -> list[Group]:
    return [
        {
            "name": f"stepscope-{rule.name}-{'other-sources' if knows_runs else 'existing-clusters'}",
            "interval": time_span(max(rules.every, options.scraping.interval)),
            "rules": _rules(rule, _restricted(rules, rule, others, knows_runs), options, knows_runs),
        }
        for rule in options.rules()
        if (others.gpus != STEPSCOPE or rule.reads_cores)
        and (rules := rule.without_our_exporter(others)) is not None
    ]


def _restricted(
    rules: PrometheusRules, rule: Rule[Any, Any], others: OtherExporters, knows_runs: bool
) -> PrometheusRules:
    """Leaves out nodes that our exporter measures, which it judges better, and adds the label `run`."""

    def of_others(expression: str) -> str:
        # Records have the labels that all entries get; readings do not have them yet.
        ours = others.measured_by_us(rule.reads_cores)
        found = f"max without (resolution, run) ({expression})\n  unless {ON_NODE} {ours}"
        return of_runs(found) if knows_runs else found

    alerts = [replace(alert, expression=of_others(alert.expression), lost="") for alert in rules.alerts]
    return replace(rules, targets=of_others(f"{rules.targets}"), alerts=alerts)


def _rules(rule: Rule[Any, Any], rules: PrometheusRules, options: Options, knows_runs: bool) -> list[Entry]:
    """Returns the records of a rule, its status and its alerts, with labels."""
    labels = COARSE if knows_runs else UNKNOWN
    judged = [status(rule.name, rules), *(alert_rule(rule, alert, options) for alert in rules.alerts)]
    return [
        *(record(each.name, each.expression, labels) for each in rules.records),
        *({**entry, "labels": entry["labels"] | labels} for entry in judged),
    ]
