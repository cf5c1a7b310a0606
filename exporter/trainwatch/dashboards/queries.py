"""PromQL as the panels ask it: selectors by the dashboard's variables, and the targets of a panel.

A target is a plain dictionary as Grafana stores it, but for its letter, which the panel gives it.
"""

from __future__ import annotations

from textwrap import dedent
from typing import Any

from trainwatch.rules.groups import PARAMETER

Target = dict[str, Any]

# The datasource is a variable, so that the same file fits every Grafana.
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# Matchers of the variables. A variable with "All" is `.*`, which also matches where the label is missing.
OF_RUN = 'run="$run", instance=~"$instance"'
OF_GPU = f'{OF_RUN}, gpu=~"$gpu"'
OF_RANK = f'{OF_RUN}, rank=~"$rank"'
OF_NODE = 'instance=~"$instance"'
OF_NODE_GPU = f'{OF_NODE}, gpu=~"$gpu"'

THRESHOLD = "fires"  # legends of thresholds begin with it, which is how they get their look


def last(selector: str) -> str:
    """The last value in the dashboard's time range: that of a run which ended an hour ago, too."""
    return f"last_over_time({selector}[$__range])"


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


def threshold(rule: str, parameter: str, side: str = "above", percent: bool = True) -> Target:
    """A line at what a rule's parameter is in the rules that Prometheus evaluates, whoever rendered them."""
    value = f'max({PARAMETER}{{rule="{rule}", parameter="{parameter}"}})'
    return lines(f"{value} / 100" if percent else value, f"{THRESHOLD} {side} ({rule}.{parameter})")


def _target(expression: str, legend: str) -> Target:
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": dedent(expression).strip(),
        "legendFormat": legend,
    }
