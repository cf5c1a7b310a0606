"""PromQL of the panels: selectors by the dashboard's variables, and the targets of a panel.

A target is a plain dictionary as Grafana stores it; the panel adds its letter.
"""

from textwrap import dedent
from typing import Any

from stepscope.prometheus.rules.groups import PARAMETER
from stepscope.prometheus.rules.usage import RUN_UTILIZATION, RUN_WAITING
from stepscope.rules.parts.base import RuleClass
from stepscope.rules.parts.parameters import specifications

Target = dict[str, Any]

# The datasource is a variable, so that the same file fits every Grafana.
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# Matchers of the variables. Series without the label `cluster` belong to every cluster: it is not required.
OF_CLUSTER = 'cluster=~"$cluster|"'
OF_JOB = f'{OF_CLUSTER}, job=~"$job"'
OF_NODE = f'{OF_JOB}, instance=~"$instance"'
# Grafana escapes `"` and `'` in a double-quoted value wrongly, or not at all.
THE_RUN = "run=`${run:raw}`"
OF_RUN = f"{OF_NODE}, {THE_RUN}"
OF_GPU = f'{OF_RUN}, gpu=~"$gpu"'
OF_RANK = f'{OF_RUN}, rank=~"$rank"'
# Also matches series that are recorded without the label, whatever is chosen.
OF_RANK_IF_KNOWN = f'{OF_RUN}, rank=~"$rank|"'
OF_NODE_GPU = f'{OF_NODE}, gpu=~"$gpu"'
# Alerts of rules on runs. Those on hardware and on Stepscope itself have none of these kinds.
OF_RULES = 'kind=~"cause|symptom"'
FIRING = f'ALERTS{{alertstate="firing", {OF_RULES}, {OF_CLUSTER}}}'

THRESHOLD = "fires"  # legends of thresholds begin with it; dashed_thresholds matches it


def last(selector: str) -> str:
    """Returns the last value in the dashboard's time range, also of a run that has ended."""
    return f"last_over_time({selector}[$__range])"


def per_second(selector: str) -> str:
    """Returns the rate of a counter per point of the chart, over at least four scrapes."""
    return f"rate({selector}[$__rate_interval])"


def gained(selector: str) -> str:
    """Returns the increase of a counter in the same time."""
    return f"increase({selector}[$__rate_interval])"


def in_range(selector: str) -> str:
    """Returns the increase of a counter in the dashboard's time range, also of a run that has ended."""
    return f"increase({selector}[$__range])"


def integral(expression: str) -> str:
    """Returns the sum over the dashboard's time range, times hours.

    It reads one value per point of a chart: a month is as cheap as an hour.
    """
    return f"(sum_over_time(({expression})[$__range:$__interval]) * $__interval_ms / 3.6e6)"


def share_of_column(histogram: str, of: str, bounds: str = "") -> str:
    """Returns cumulative counts by `le` as shares of all of them; `bounds` matches those that are drawn."""
    drawn, every = (f"{histogram}{{{', '.join(filter(None, (of, le)))}}}" for le in (bounds, 'le="+Inf"'))
    return f"sum by (le) ({gained(drawn)}) / on () group_left () (sum({gained(every)}) > 0)"


def or_zero(expression: str, measured: str) -> str:
    """Returns 0 instead of nothing only if `measured`, the series that are counted, exist."""
    return f"{expression} or 0 * count({measured})"


def lines(expression: str, legend: str, exemplars: bool = False) -> Target:
    """Returns series over time; `legend` has labels as `{{gpu}}`."""
    return {**_target(expression, legend), "range": True, "format": "time_series", "exemplar": exemplars}


def buckets(expression: str, exemplars: bool = False) -> Target:
    """Returns a histogram over time; the expression has cumulative counts by `le`."""
    return {**_target(expression, "{{le}}"), "range": True, "format": "heatmap", "exemplar": exemplars}


def now(expression: str, legend: str = "__auto") -> Target:
    """Returns one value per series, at the end of the time range."""
    return {**_target(expression, legend), "instant": True, "range": False, "format": "time_series"}


def rows(expression: str) -> Target:
    """Returns one row of a table per series, with its labels and its value in columns."""
    return {**_target(expression, "__auto"), "instant": True, "range": False, "format": "table"}


def named_device(expression: str, word: str, label: str, digits: int) -> str:
    """Returns one series per device, with only the label `device`: `GPU 07`, so that they sort by number."""
    named = f'label_replace({expression}, "device", "{word} $1", "{label}", "(.+)")'
    for length in range(1, digits):
        zeros = "0" * (digits - length)
        named = f'label_replace({named}, "device", "{word} {zeros}$1", "{label}", "(.{{{length}}})")'
    return f"max by (device) ({named})"


def threshold(rule: RuleClass, name: str, measured: str, side: str = "above", percent: bool = True) -> Target:
    """Returns a line at a rule's parameter, as in the rules that Prometheus evaluates.

    It is there only while the series `measured` are: a lone line would look like a value that is not near it.
    """
    value = f"max({parameter(rule, name)}){' / 100' if percent else ''}"
    return lines(f"{value} and on () {measured}", f"{THRESHOLD} {side} ({rule.__name__}.{name})")


def parameter(rule: RuleClass, name: str) -> str:
    """Returns the value of a rule's parameter."""
    assert name in specifications(rule.parameters_type), name
    return f'{PARAMETER}{{rule="{rule.__name__}", parameter="{name}", {OF_CLUSTER}}}'


def wasted(matchers: str) -> str:
    """Returns the wasted share of the time range, by run; of runs without GPUs, the share of waiting.

    GPU time is wasted if the GPU was idle, or if steps only waited. A GPU that waits in a collective counts
    as busy, and one without work while data is late as idle. Both shares may count the same time, so waste
    is the larger of them: at least so much is wasted.
    """
    idle, waiting = (
        f"avg by (cluster, run) (avg_over_time({series}{{{matchers}}}[$__range]))"
        for series in (RUN_UTILIZATION, RUN_WAITING)
    )
    return _larger(f"(1 - {idle})", f"({waiting} >= 0)")


def wasted_now(matchers: str) -> str:
    """Returns the wasted share at a moment, by run and node."""
    return _larger(f"(1 - {RUN_UTILIZATION}{{{matchers}}})", f"({RUN_WAITING}{{{matchers}}} >= 0)")


def _larger(one: str, other: str) -> str:
    """Returns the larger of two values, or the one that exists."""
    return f"({one} > {other} or {other} or {one})"


def _target(expression: str, legend: str) -> Target:
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": dedent(expression).strip(),
        "legendFormat": legend,
    }
