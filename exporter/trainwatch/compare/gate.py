"""`--fail-if`: conditions under which a comparison ends with exit status 1, as a gate for CI.

    condition = RULE | "any_rule" | FIGURE (">" | "<") limit
    limit     = ("+" | "-") NUMBER "%"      a change from A to B
              | NUMBER [UNIT]               a value of B

RULE is the name of a rule: it must not fire in B unless it fired in A. FIGURE is one of `figures.KINDS` or
`figures.USAGE_KINDS`. UNIT is ms, s, m or h for times, % for shares, and may be $ in front of a cost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from trainwatch.compare.figures import ALIASES, KINDS, USAGE_KINDS, Figure, change_of
from trainwatch.compare.rules import ChangedRule
from trainwatch.errors import UserError
from trainwatch.rules import all_rules
from trainwatch.rules.topics import Effect
from trainwatch.words import amount, change, listing

ANY_RULE = "any_rule"
_CONDITION = re.compile(r"\s*(?P<name>\w+)\s*(?:(?P<sign>[<>])\s*(?P<limit>\S(?:.*\S)?)\s*)?")
_CHANGE = re.compile(r"[+-](\d+(?:\.\d*)?|\.\d+)\s*%")
_VALUE = re.compile(r"\$?\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>ms|s|m|h|%)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

State = Literal["passed", "failed", "cannot be judged"]


@dataclass(frozen=True)
class Condition:
    """One `--fail-if`. A rule has no limit; a change is a ratio, a value is in the figure's unit."""

    text: str
    name: str
    above: bool = True
    limit: float = 0.0
    is_change: bool = False

    @property
    def is_rule(self) -> bool:
        return self.name not in KINDS and self.name not in USAGE_KINDS


@dataclass(frozen=True)
class Outcome:
    condition: Condition
    state: State
    reason: str

    @property
    def holds(self) -> bool:
        """Returns whether the condition passed; one that cannot be judged counts as failed."""
        return self.state == "passed"


def parse(text: str) -> Condition:
    """Parses a condition. Raises UserError if it is not valid."""
    text = " ".join(text.split())
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UserError(f'--fail-if {text}: write a figure and a limit, as in "step_p50>+3%", or a rule')
    name = ALIASES.get(match["name"], match["name"])
    if match["sign"] is None:
        if name in _rules() or name == ANY_RULE:
            return Condition(text, name)
        if name in KINDS or name in USAGE_KINDS:
            raise UserError(f'--fail-if {text}: give a limit, as in "{match["name"]}>+3%"')
        raise _unknown(text, name)
    if name not in KINDS and name not in USAGE_KINDS:
        if name in _rules() or name == ANY_RULE:
            raise UserError(f"--fail-if {text}: {name} is a rule and takes no limit; write --fail-if {name}")
        raise _unknown(text, name)
    above, limit = match["sign"] == ">", match["limit"]
    if _CHANGE.fullmatch(limit):
        return Condition(text, name, above, float(limit.rstrip("% ")) / 100, is_change=True)
    return Condition(text, name, above, _value(text, name, limit))


def needs_prices(conditions: Sequence[Condition]) -> bool:
    return any(condition.name.startswith("cost") for condition in conditions)


def judge(
    conditions: Sequence[Condition], figures: Mapping[str, Figure], rules: Sequence[ChangedRule]
) -> list[Outcome]:
    """Returns the outcome of each condition, in the order given."""
    return [
        _judge_rule(condition, rules) if condition.is_rule else _judge_figure(condition, figures)
        for condition in conditions
    ]


def _judge_rule(condition: Condition, rules: Sequence[ChangedRule]) -> Outcome:
    appeared = [rule for rule in rules if rule.fate == "appeared" and condition.name in (rule.rule, ANY_RULE)]
    if appeared:
        names = listing([rule.rule for rule in appeared])
        return Outcome(condition, "failed", f"{names} fired in B and not in A: {appeared[0].b.finding}")
    stayed = any(rule.rule == condition.name and rule.fate == "stayed" for rule in rules)
    if stayed:
        return Outcome(condition, "passed", f"{condition.name} fired in B, but in A as well")
    if condition.name == ANY_RULE:
        return Outcome(condition, "passed", "no rule fired in B that did not in A")
    return Outcome(condition, "passed", f"{condition.name} did not fire in B")


def _judge_figure(condition: Condition, figures: Mapping[str, Figure]) -> Outcome:
    figure = figures.get(condition.name)
    if condition.is_change:
        return _judge_change(condition, figure)
    if figure is None or figure.b is None:
        return Outcome(condition, "cannot be judged", "B does not have it")
    limit = amount(condition.limit, figure.unit)
    holds = not _beyond(figure.b, condition)
    relation = "not " * holds + ("above" if condition.above else "below")
    return _outcome(condition, holds, f"{amount(figure.b, figure.unit)} in B, {relation} {limit}")


def _judge_change(condition: Condition, figure: Figure | None) -> Outcome:
    if figure is None or figure.change is None or figure.seen_change is None:
        missing = (
            "neither run has it"
            if figure is None
            else (
                "A does not have it"
                if figure.a is None
                else "B does not have it"
                if figure.b is None
                else "it is 0 in A, so there is no change in percent"
            )
        )
        return Outcome(condition, "cannot be judged", missing)
    holds = not _beyond(figure.seen_change, condition)
    relation = "not " * holds + ("above" if condition.above else "below")
    return _outcome(condition, holds, f"{change_of(figure)}, {relation} {change(condition.limit)}")


def _beyond(number: float, condition: Condition) -> bool:
    return number > condition.limit if condition.above else number < condition.limit


def _outcome(condition: Condition, holds: bool, reason: str) -> Outcome:
    return Outcome(condition, "passed" if holds else "failed", reason)


def _value(text: str, name: str, limit: str) -> float:
    """Returns a limit for B's value, in the figure's unit."""
    unit = (KINDS | USAGE_KINDS)[name][1]
    match = _VALUE.fullmatch(limit)
    if match is None:
        raise UserError(f"--fail-if {text}: {limit} is not a limit; write +3% for a change, or a number")
    written = match["unit"]
    fits = {"s": ("ms", "s", "m", "h"), "%": ("%",)}.get(unit, ())
    if written is not None and written not in fits:
        if written == "%":
            raise UserError(f"--fail-if {text}: give the direction of the change, as +{limit} or -{limit}")
        raise UserError(f"--fail-if {text}: {name} is not measured in {written}")
    if limit.startswith("$") and unit != "$":
        raise UserError(f"--fail-if {text}: {name} is not measured in $")
    number = float(match["number"]) * _SECONDS.get(written or "s", 1.0)
    if not math.isfinite(number):
        raise UserError(f"--fail-if {text}: {limit} is too large")
    return number


def _rules() -> list[str]:
    return [name for name, rule in all_rules().items() if rule.effect is not Effect.OVERVIEW]


def _unknown(text: str, name: str) -> UserError:
    known = [*KINDS, *ALIASES, *USAGE_KINDS, ANY_RULE, *_rules()]
    same = [other for other in known if other.lower() == name.lower()]
    near = same or get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "`trainwatch compare --help` lists them"
    return UserError(f"--fail-if {text}: there is no figure or rule {name!r}; {hint}")
