"""`--fail-if`: conditions under which a comparison ends with exit status 1, as a gate for CI.

    condition = RULE | "any_rule" ["except" RULE {"," RULE}] | FIGURE (">" | "<") limit
    limit     = ("+" | "-") NUMBER "%"      a change from A to B; of a share, in points
              | NUMBER [UNIT]               a value of B

A condition is inconclusive if its data are missing, or if the runs did different work. A change is, if its
confidence interval contains the limit.

RULE is the name of a rule: it must not fire in B unless it fired in A. FIGURE is one of `figures.KINDS` or
`figures.USAGE_KINDS`. UNIT is ms, s, m or h for times, % for shares, and may be $ in front of a cost.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stepscope.common.errors import UserError, did_you_mean
from stepscope.common.status import Status
from stepscope.common.words import amount, change, listing, points
from stepscope.compare.bootstrap import STEPS_NEEDED, Interval
from stepscope.compare.changes import decided
from stepscope.compare.figures import ALIASES, KINDS, USAGE_KINDS, Figure, change_in_percent, change_of
from stepscope.compare.work import Work
from stepscope.evaluation.analysis import Analysis
from stepscope.report.ended import failed
from stepscope.report.verdict import status_of_run
from stepscope.rules import all_rules
from stepscope.rules.parts.topics import Effect

ANY_RULE = "any_rule"
_EXCEPT = re.compile(rf"{ANY_RULE} except (?P<rules>.+)")
_CONDITION = re.compile(r"\s*(?P<name>\w+)\s*(?:(?P<sign>[<>])\s*(?P<limit>\S(?:.*\S)?)\s*)?")
_CHANGE = re.compile(r"[+-](\d+(?:\.\d*)?|\.\d+)\s*%")
_VALUE = re.compile(r"\$?\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>ms|s|m|h|%)?")
STEP_TIMES = ("step_mean", "step_p50", "step_p95", "item_mean", "steps_per_second", "items_per_second")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

State = Literal["passed", "failed", "inconclusive"]
STATUSES: dict[State, int] = {"failed": 1, "inconclusive": 3}  # what the command exits with


@dataclass(frozen=True)
class Condition:
    """One `--fail-if`. A rule has no limit; a change is a ratio, or points of a share."""

    text: str
    name: str
    above: bool = True
    limit: float = 0.0
    is_change: bool = False
    excepted: tuple[str, ...] = ()  # rules that `any_rule` leaves out


@dataclass(frozen=True)
class Outcome:
    condition: Condition
    state: State
    reason: str


def parse(text: str) -> Condition:
    """Parses a condition. Raises UserError if it is not valid."""
    text = " ".join(text.split())
    if match := _EXCEPT.fullmatch(text):
        excepted = tuple(rule.strip() for rule in match["rules"].split(","))
        for rule in excepted:
            if rule not in _rules():
                raise _unknown(text, rule)
        return Condition(text, ANY_RULE, excepted=excepted)
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UserError(f'--fail-if {text}: write a figure and a limit, as in "step_p50>+3%", or a rule')
    name = ALIASES.get(match["name"], match["name"])
    if match["sign"] is None:
        if name in _rules() or name == ANY_RULE:
            return Condition(text, name)
        if name in KINDS | USAGE_KINDS:
            raise UserError(f'--fail-if {text}: give a limit, as in "{match["name"]}>+3%"')
        raise _unknown(text, name)
    if name not in KINDS | USAGE_KINDS:
        if name in _rules() or name == ANY_RULE:
            raise UserError(f"--fail-if {text}: {name} is a rule and takes no limit; write --fail-if {name}")
        raise _unknown(text, name)
    above, limit = match["sign"] == ">", match["limit"]
    if _CHANGE.fullmatch(limit):
        number = float(limit.rstrip("% "))
        is_share = (KINDS | USAGE_KINDS)[name][1] == "%"
        return Condition(text, name, above, number if is_share else number / 100, is_change=True)
    return Condition(text, name, above, _value(text, name, limit))


def judge(
    conditions: Sequence[Condition],
    figures: Mapping[str, Figure],
    work: Work,
    a: Analysis,
    b: Analysis,
) -> list[Outcome]:
    """Returns the outcome of each condition, in the order given. A run that failed passes no condition."""
    outcomes = [
        _judge_figure(condition, figures, work)
        if condition.name in KINDS | USAGE_KINDS
        else _judge_rule(condition, a, b)
        for condition in conditions
    ]
    names = [name for name, run in (("A", a), ("B", b)) if failed(run)]
    if not names:
        return outcomes
    why = f"{listing(names)} failed"
    return [
        Outcome(outcome.condition, "inconclusive", f"{why}: {outcome.reason}")
        if outcome.state == "passed"
        else outcome
        for outcome in outcomes
    ]


def _judge_rule(condition: Condition, a: Analysis, b: Analysis) -> Outcome:
    before, after = (
        {
            name: rule
            for name, rule in run.items()
            if condition.name in (rule.rule, ANY_RULE) and rule.rule not in condition.excepted
        }
        for run in decided(a, b)
    )
    fired = [rule for rule in after.values() if rule.status is Status.FOUND]
    new = [rule for rule in fired if rule.name in before and before[rule.name].status is not Status.FOUND]
    if new:
        names = listing([rule.name for rule in new])
        unsure = listing([rule.name for rule in new if not before[rule.name].status.judged])
        why = f", which has not enough data to judge {unsure}" if unsure else ""
        return Outcome(condition, "failed", f"{names} fired in B and not in A{why}: {new[0].finding}")
    judged = {name for name, rule in after.items() if rule.status.judged}
    unknown = [name for name, rule in before.items() if rule.status.judged and name not in judged]
    if unknown or not judged:
        names = listing(unknown) or (condition.name if condition.name != ANY_RULE else "any rule")
        return Outcome(condition, "inconclusive", f"B has not enough data to judge {names}")
    if condition.name == ANY_RULE:
        if status_of_run(b) in (Status.NOT_ENOUGH_DATA, Status.COLLECTING):
            return Outcome(condition, "inconclusive", "B has not enough data to be called healthy")
        return Outcome(condition, "passed", "no rule fired in B that did not in A")
    how = "fired in B, but in A as well" if fired else "did not fire in B"
    return Outcome(condition, "passed", f"{condition.name} {how}")


def _judge_figure(condition: Condition, figures: Mapping[str, Figure], work: Work) -> Outcome:
    figure = figures.get(condition.name)
    if condition.is_change:
        return _judge_change(condition, figure, work, has_steps="step_mean" in figures)
    if figure is None or figure.b is None:
        return Outcome(condition, "inconclusive", "B does not have it")
    holds, said = not _beyond(figure.b, condition), f"{amount(figure.b, figure.unit)} in B"
    return _outcome(condition, holds, said, amount(condition.limit, figure.unit))


def _judge_change(condition: Condition, figure: Figure | None, work: Work, has_steps: bool) -> Outcome:
    if figure is None or figure.change is None:
        missing = "it is 0 in A, so there is no change in percent"
        if figure is None:
            missing = "neither run has it"
        elif figure.a is None or figure.b is None:
            missing = f"{'A' if figure.a is None else 'B'} does not have it"
        return Outcome(condition, "inconclusive", missing)
    limit = points(condition.limit) if figure.is_share else change(condition.limit)
    if obstacle := work.obstacle(figure.key):
        return Outcome(condition, "inconclusive", f"{change_in_percent(figure)}, but {obstacle}")
    if figure.interval is None and figure.key in STEP_TIMES and has_steps:
        too_few = f"{change_in_percent(figure)}, but too few steps to be sure ({STEPS_NEEDED} are needed)"
        return Outcome(condition, "inconclusive", too_few)
    interval = figure.interval or Interval(figure.change, figure.change)
    beyond = [_beyond(bound, condition) for bound in (interval.low, interval.high)]
    if beyond[0] != beyond[1]:
        straddles = f"the limit of {limit} is inside the interval, which more steps narrow"
        return Outcome(condition, "inconclusive", f"{change_of(figure)}: {straddles}")
    return _outcome(condition, not beyond[0], change_of(figure), limit)


def _outcome(condition: Condition, holds: bool, said: str, limit: str) -> Outcome:
    relation = "not " * holds + ("above" if condition.above else "below")
    return Outcome(condition, "passed" if holds else "failed", f"{said}, {relation} {limit}")


def _beyond(number: float, condition: Condition) -> bool:
    return number > condition.limit if condition.above else number < condition.limit


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
    hint = did_you_mean(name, known, "`stepscope compare --help` lists them")
    return UserError(f"--fail-if {text}: there is no figure or rule {name!r}; {hint}")
