"""PromQL as the panels ask it: selectors by the dashboard's variables, and the targets of a panel.

A target is a plain dictionary as Grafana stores it, but for its letter, which the panel gives it.
"""

from __future__ import annotations

from textwrap import dedent
from typing import Any

from trainwatch.prometheus_rules.groups import PARAMETER

Target = dict[str, Any]

# The datasource is a variable, so that the same file fits every Grafana.
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# Matchers of the variables.
OF_RUN = 'run="$run", instance=~"$instance"'
OF_GPU = f'{OF_RUN}, gpu=~"$gpu"'
OF_RANK = f'{OF_RUN}, rank=~"$rank"'
# For series that are recorded without the label, too: these are shown whatever is chosen.
OF_RANK_IF_KNOWN = f'{OF_RUN}, rank=~"$rank|"'
OF_NODE = 'instance=~"$instance"'
OF_NODE_GPU = f'{OF_NODE}, gpu=~"$gpu"'

THRESHOLD = "fires"  # legends of thresholds begin with it, which is how they get their look


def last(selector: str) -> str:
    """The last value in the dashboard's time range: that of a run which ended an hour ago, too."""
    return f"last_over_time({selector}[$__range])"


def per_second(selector: str) -> str:
    """The rate of a counter, over what one point of the chart stands for, and at least four scrapes."""
    return f"rate({selector}[$__rate_interval])"


def gained(selector: str) -> str:
    """What a counter gained in the same time."""
    return f"increase({selector}[$__rate_interval])"


def lines(expression: str, legend: str, exemplars: bool = False) -> Target:
    """Series over time; `legend` with labels as `{{gpu}}`."""
    return {**_target(expression, legend), "range": True, "format": "time_series", "exemplar": exemplars}


def buckets(expression: str, exemplars: bool = False) -> Target:
    """A histogram over time: the expression gives cumulative counts by `le`, which Grafana takes apart."""
    return {**_target(expression, "{{le}}"), "range": True, "format": "heatmap", "exemplar": exemplars}


def now(expression: str, legend: str = "__auto") -> Target:
    """One value a series, at the end of the time range."""
    return {**_target(expression, legend), "instant": True, "range": False, "format": "time_series"}


def rows(expression: str) -> Target:
    """A row of a table for each series, its labels and its value in columns."""
    return {**_target(expression, "__auto"), "instant": True, "range": False, "format": "table"}


def named_device(expression: str, word: str, label: str, digits: int) -> str:
    """One series a device, with nothing but the label `device`: `GPU 07`, in the order of the numbers."""
    named = f'label_replace({expression}, "device", "{word} $1", "{label}", "(.+)")'
    for length in range(1, digits):
        zeros = "0" * (digits - length)
        named = f'label_replace({named}, "device", "{word} {zeros}$1", "{label}", "(.{{{length}}})")'
    return f"max by (device) ({named})"


def threshold(rule: str, name: str, side: str = "above", percent: bool = True) -> Target:
    """A line at what a rule's parameter is in the rules that Prometheus evaluates, whoever rendered them."""
    value = f"max({parameter(rule, name)})"
    return lines(f"{value} / 100" if percent else value, f"{THRESHOLD} {side} ({rule}.{name})")


def parameter(rule: str, name: str) -> str:
    """What a rule's parameter is."""
    return f'{PARAMETER}{{rule="{rule}", parameter="{name}"}}'


def _target(expression: str, legend: str) -> Target:
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": dedent(expression).strip(),
        "legendFormat": legend,
    }
