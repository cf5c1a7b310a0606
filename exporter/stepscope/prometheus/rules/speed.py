"""Adapts rules to a simulated node that runs faster than real time.

`stepscope demo --speed 10` counts in simulated time. Prometheus measures in real time: windows, `for`,
evaluation intervals, rates. So durations and rates are divided by ten. Rules then see exactly what they would
see at normal speed.
"""

from __future__ import annotations

import re

from stepscope.common.durations import parse_duration
from stepscope.prometheus.rules.groups import Entry, Group
from stepscope.rules.parts.expressions import time_span

_DURATION = r"(?:\d+(?:ms|[smhdw]))+"
_WINDOW = re.compile(rf"(?<=\[){_DURATION}(?=[\]:])|(?<=:){_DURATION}(?=\])|(?<=\boffset ){_DURATION}")
_RATE = re.compile(r"\b(?:rate|irate|deriv)\([^()\[\]]*\[[^\]]*\]\)")


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
    return {**rule, "expr": _expression_at_speed(rule["expr"], speed), **spans}


def _expression_at_speed(expression: str, speed: float) -> str:
    with_rates = _RATE.sub(lambda rate: f"({rate[0]} / {speed:g})", expression)
    return _WINDOW.sub(lambda window: _shorter(window[0], speed), with_rates)


def _shorter(duration: str, speed: float) -> str:
    return time_span(parse_duration(duration) / speed)
