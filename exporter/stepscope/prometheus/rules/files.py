"""Renders all rule files as readable YAML, and finds those of a directory that are out of date.

Rules over series of dcgm-exporter and node_exporter, for nodes without readings of ours, have files of their
own. They are read once per scrape, so the rules are as coarse as that: the label `resolution="scrape"`.

`stepscope demo --speed 10` counts in simulated time. Prometheus measures in real time: windows, `for`,
evaluation intervals, rates. So durations and rates are divided by ten.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from stepscope.common.durations import parse_duration
from stepscope.common.errors import UserError
from stepscope.common.rendered import differences, read
from stepscope.prometheus.rules.delayed import for_engine
from stepscope.prometheus.rules.groups import Entry, Group, alert_rule, record, status
from stepscope.prometheus.rules.meta import hardware_group, meta_group, outage_group
from stepscope.prometheus.rules.options import ENGINES, Options
from stepscope.prometheus.rules.profiles import working, working_rules
from stepscope.prometheus.rules.usage import advice_group, usage_groups
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.other_exporters import ON_NODE, STEPSCOPE, OtherExporters, of_runs
from stepscope.rules.parts.promql import PrometheusRules

COARSE = {"resolution": "scrape"}
UNKNOWN = {"run": "unknown", **COARSE}
_DURATION = r"(?:\d+(?:ms|[smhdw]))+"
_WINDOW = re.compile(rf"(?<=\[){_DURATION}(?=[\]:])|(?<=:){_DURATION}(?=\])|(?<=\boffset ){_DURATION}")
_RATE = re.compile(r"\b(?:rate|irate|deriv)\([^()\[\]]*\[[^\]]*\]\)")
RULES = "stepscope.yml"
META = "stepscope-meta.yml"
USAGE = "stepscope-usage.yml"
EXISTING_CLUSTERS = "optional/dcgm-and-node-exporter.yml"  # not among rules/*.yml: loaded only on request

WIDTH = 110
LONG = 80  # characters; longer sentences are folded, longer expressions are written as a block
RENDERED_BY = "#   "


def render(options: Options) -> dict[str, str]:
    """Returns texts by file name. Raises UserError for a setting that PromQL cannot express."""
    scraping, sources = options.scraping, (options.gpu_source, options.host_source)
    others = [] if {*sources} == {STEPSCOPE} else [OtherExporters(scraping, *sources)]
    files = {
        RULES: (
            "Stepscope: why training jobs leave their GPUs idle (docs/rules.md).",
            [*working_rules(options), *(group for each in others for group in _groups(options, each, True))],
        ),
        META: (
            "Stepscope: whether it sees what it should, and whether hardware fails (docs/rules.md).",
            working([meta_group(options), outage_group(options), hardware_group(options)], options),
        ),
        USAGE: (
            "Stepscope: what nodes and runs use, recorded for dashboards (docs/dashboards.md).",
            working([*usage_groups(options), advice_group(options)], options),
        ),
        EXISTING_CLUSTERS: (
            "Stepscope's rules for clusters without its exporter: from the series of dcgm-exporter and\n"
            "node_exporter, as coarse as these are scraped (docs/rules.md).",
            _groups(options, OtherExporters(scraping), knows_runs=False),
        ),
    }
    return {name: _rule_file(title, groups, options) for name, (title, groups) in files.items()}


def stale(directory: Path) -> list[str]:
    """Returns the problems of a directory's rule files, one line per file.

    Compares them with what the command in the header of RULES renders now. Raises UserError if they cannot be
    read, or have no such header.
    """
    first = directory / RULES
    command = command_of(read(first))
    if command is None:
        raise UserError(f"{first}: does not say how it was rendered; render it with `stepscope rules render`")
    try:
        rendered = render(Options.from_command(command))
    except UserError as error:
        raise UserError(f"{first}: {error}") from None
    return differences(rendered, directory, command)


def command_of(text: str) -> str | None:
    """Returns the command in the header of a rule file, None without such a header."""
    lines = (line for line in text.splitlines() if line.startswith("#"))
    return next((line[len(RENDERED_BY) :] for line in lines if line.startswith(RENDERED_BY)), None)


def _rule_file(title: str, groups: Sequence[Group], options: Options) -> str:
    """Returns the text of a rule file that begins with `title`. The same input gives the same text."""
    header = [
        *title.splitlines(),
        "",
        "Rendered; do not edit it, render it again (with --set Rule.parameter=value for other thresholds):",
    ]
    lines = [f"# {line}".rstrip() for line in header]
    adapted = (for_engine(group, ENGINES[options.engine]) for group in groups if group["rules"])
    content: dict[str, Any] = {"groups": [at_speed(group, options.speed) for group in adapted]}
    body = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    return "\n".join([*lines, RENDERED_BY + options.command(), body])


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, and uses no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: _Dumper, value: str) -> yaml.Node:
    style = None
    if "\n" in value or (len(value) > LONG and " " in value):
        style = ">" if value[-1] in ".?" else "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def at_speed(group: Group, speed: float) -> Group:
    """Returns the group for a node that simulates `speed` seconds per second."""
    if speed == 1:
        return group
    return {
        **group,
        "interval": _shorter(group["interval"], speed),
        "rules": [_rule_at_speed(rule, speed) for rule in group["rules"]],
    }


def _rule_at_speed(rule: Entry, speed: float) -> Entry:
    spans: Entry = {name: _shorter(rule[name], speed) for name in ("for", "keep_firing_for") if name in rule}
    with_rates = _RATE.sub(lambda rate: f"({rate[0]} / {speed:g})", rule["expr"])
    return {**rule, "expr": _WINDOW.sub(lambda window: _shorter(window[0], speed), with_rates), **spans}


def _shorter(duration: str, speed: float) -> str:
    return time_span(parse_duration(duration) / speed)


def _groups(options: Options, others: OtherExporters, knows_runs: bool) -> list[Group]:
    """Returns the rules over series of others, for runs that our exporter knows, or for no known run."""
    return [
        {
            "name": f"stepscope-{rule.name}-{'other-sources' if knows_runs else 'existing-clusters'}",
            "interval": time_span(rules.every or options.scraping.interval),
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
