"""Mutants of rendered rules: each differs from its rule in one operator, threshold, window or label."""

import re
from collections.abc import Iterator
from typing import Any

from stepscope.prometheus.rules.groups import INFO, PARAMETER

Group = dict[str, Any]

OPERATORS = {
    r" > ": " < ",
    r" < ": " > ",
    r" >= ": " < ",
    r" <= ": " > ",
    r" / ": " * ",
    r" \* ": " / ",
    r" - ": " + ",
    r"\band\b": "unless",
    r"\bunless\b": "and",
    r"\bmin\b": "max",
    r"\bmax\b": "min",
    r"\bsum\b": "min",
    r"\bmin_over_time\b": "max_over_time",
}
NUMBER = re.compile(r"(?<![\w.:])\d+(?:\.\d+)?(?![\w.])")
WINDOW = re.compile(r"(?<=\[)\d+(?=[smh])|(?<=offset )\d+(?=[smh])")
# What these rules read is not in the recording of test_mutants.py: test_recording.py has changes of them.
UNRECORDED = {"CPUThrottled", "HostMemoryLeak", "IdleGPU", "MemoryPressure", "NoisyNeighbour"}

LABEL = re.compile(r'(?<=[=~])"[^"]+"')
QUOTED = re.compile(r'"[^"]*"')
# What decides nothing: a change there gives the same rule.
SAME_RULE = (
    re.compile(r"0 \* "),  # nothing, for every series that there is
    re.compile(r" [*] ignoring \(run\) group_right \(\)\s+clamp"),  # times one
    re.compile(r", [01], [01]\s*\)|, [01]\s*\)$|, 0\.0+1\)|,\s+[01], [01]\s+\)"),  # bounds of clamp and round
)


def mutants_of(group: Group) -> Iterator[tuple[str, Group]]:
    """What was changed, and the group with that one change."""
    for number, rule in enumerate(group["rules"]):
        if "record" in rule and rule["record"] not in (PARAMETER, INFO):
            for expression in _changed(rule["expr"]):
                rules = [*group["rules"]]
                rules[number] = {**rule, "expr": expression}
                yield f"{rule['record']}: {' '.join(expression.split())}", {**group, "rules": rules}


def _changed(expression: str) -> Iterator[str]:
    same = [match.span() for pattern in SAME_RULE for match in pattern.finditer(expression)]
    quoted = [match.span() for match in QUOTED.finditer(expression)]
    for pattern, other in OPERATORS.items():
        for match in re.finditer(pattern, expression):
            if not _within(match, same):
                yield _with(expression, match, other)
    for match in NUMBER.finditer(expression):
        if not _within(match, [*same, *quoted]):
            value = float(match[0])
            yield _with(expression, match, f"{3 * value if 0 < value < 1 else 20 * value + 3:g}")
    for match in WINDOW.finditer(expression):
        yield _with(expression, match, str(3 * int(match[0])))
    for match in LABEL.finditer(expression):
        yield _with(expression, match, '"another"')


def _within(match: re.Match[str], spans: list[tuple[int, int]]) -> bool:
    return any(start < match.end() and match.start() < end for start, end in spans)


def _with(expression: str, match: re.Match[str], other: str) -> str:
    return f"{expression[: match.start()]}{other}{expression[match.end() :]}"
