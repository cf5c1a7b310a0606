"""Mutants of rendered rules: each differs from its rule in one operator, number, window or label."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

NUMBER = r"(?<![\w.:\"\[])(\d+(?:\.\d+)?)(?![\w.\"\]])"
MUTATIONS: tuple[tuple[str, str], ...] = (
    # what is looked for, and what takes its place
    (r" > ", " < "),
    (r" < ", " > "),
    (r" >= ", " < "),
    (r" <= ", " > "),
    (r" / ", " * "),
    (r" \* ", " / "),
    (r" - ", " + "),
    (r"\band\b", "unless"),
    (r"\bunless\b", "and"),
    (r"\bmin\b", "max"),
    (r"\bmax\b", "min"),
    (r"\bsum\b", "min"),
    (r"\bmin_over_time\b", "max_over_time"),
)


def mutants(expression: str) -> Iterator[str]:
    """Every expression that differs from the given one in one place."""
    for pattern, other in MUTATIONS:
        for match in re.finditer(pattern, expression):
            yield expression[: match.start()] + other + expression[match.end() :]
    for match in re.finditer(NUMBER, expression):
        yield expression[: match.start()] + f"{3 * float(match[1]) + 0.01:g}" + expression[match.end() :]
    for match in re.finditer(r"(?<=\[)\d+(?=[smh])|(?<=offset )\d+(?=[smh])", expression):
        yield expression[: match.start()] + str(3 * int(match[0])) + expression[match.end() :]
    for match in re.finditer(r'(?<==)"([^"]+)"', expression):
        yield expression[: match.start()] + '"another"' + expression[match.end() :]


def mutants_of_group(group: dict[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """What was changed, and the group with that one change; alerts repeat the condition of their finding."""
    rules = group["rules"]
    assert isinstance(rules, list)
    for number, rule in enumerate(rules):
        if "record" in rule:
            for changed in mutants(rule["expr"]):
                others = [*rules[:number], {**rule, "expr": changed}, *rules[number + 1 :]]
                yield f"{rule['record']}: {changed}", {**group, "rules": others}


def read(text: str) -> tuple[str, list[dict[str, object]]]:
    """The comment that says how the rules were rendered, and their groups."""
    header = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    return header, yaml.safe_load(text)["groups"]
