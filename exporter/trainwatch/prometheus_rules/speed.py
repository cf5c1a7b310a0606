"""Rules for a simulated node that runs faster than the clock: each duration is so many times shorter.

`trainwatch demo --speed 10` counts, and tells the ages of moments, in simulated time. What Prometheus itself
measures by its own clock (windows, `for`, how often rules are evaluated) must be ten times as short, and a
gain a second a tenth, for a rule to see exactly what it would see of a node that runs so long.
"""

from __future__ import annotations

import re

from trainwatch.durations import parse_duration
from trainwatch.prometheus_rules.groups import Entry, Group
from trainwatch.rules.promql import time_span

_DURATION = r"(?:\d+(?:ms|[smhdw]))+"
_WINDOW = re.compile(rf"(?<=\[){_DURATION}(?=\])|(?<=\boffset ){_DURATION}")
_GAIN_A_SECOND = re.compile(r"\b(?:rate|irate|deriv)\([^()\[\]]*\[[^\]]*\]\)")


def at_speed(group: Group, speed: float) -> Group:
    """The group for `speed` simulated seconds a second."""
    if speed == 1:
        return group
    return {
        **group,
        "interval": _shorter(group["interval"], speed),
        "rules": [_rule_at_speed(rule, speed) for rule in group["rules"]],
    }


def _rule_at_speed(rule: Entry, speed: float) -> Entry:
    held: Entry = {name: _shorter(rule[name], speed) for name in ("for", "keep_firing_for") if name in rule}
    return {**rule, "expr": _expression_at_speed(rule["expr"], speed), **held}


def _expression_at_speed(expression: str, speed: float) -> str:
    a_second = _GAIN_A_SECOND.sub(lambda gain: f"({gain[0]} / {speed:g})", expression)
    return _WINDOW.sub(lambda window: _shorter(window[0], speed), a_second)


def _shorter(duration: str, speed: float) -> str:
    return time_span(parse_duration(duration) / speed)
