"""Groups findings by problem and orders them: the one order of terminal, report, JSON and comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainwatch.evaluation.analysis import RuleResult
from trainwatch.rules.topics import ANY_TOPIC, Effect
from trainwatch.status import Status

SLOW_RANKS = "Straggler"
# What only a slow rank does longer is its problem: the component that Straggler names, and the rule about it.
OF_SLOW_RANK = {"data_wait": "DataStarved", "host": "HostBound"}


@dataclass(frozen=True)
class Problem:
    """One problem: the rule that explains it best, and the other rules that saw it."""

    title: str
    rule: RuleResult
    also: list[RuleResult]

    @property
    def estimate(self) -> RuleResult:
        """Returns the rule that estimates the time lost: the first one, or otherwise the highest estimate."""
        return self.rule if self.rule.seconds_lost > 0 else max((self.rule, *self.also), key=_seconds)

    @property
    def seconds_lost(self) -> float:
        """Returns an estimate; 0 if no time was lost, or if an amount makes no sense."""
        return self.estimate.seconds_lost

    @property
    def is_risk(self) -> bool:
        """Returns whether the problem endangers the run instead of slowing it down."""
        return self.rule.about.effect is Effect.RISK


def problems(results: Iterable[RuleResult]) -> list[Problem]:
    """Returns the problems without accepted ones, by the time that they explain; symptoms after causes."""
    groups: dict[str, list[RuleResult]] = {}
    for result in results:
        if result.decides:
            groups.setdefault(result.about.topic or result.rule, []).append(result)
    for group in groups.values():
        group.sort(key=lambda result: (result.about.distance, -result.seconds_lost, result.rule))
    every = [Problem(first.about.subject, first, also) for first, *also in _joined(groups.values())]
    found = sorted(every, key=lambda problem: _place(problem, every))
    causes = [problem for problem in found if problem.rule.about.topic != ANY_TOPIC]
    effects = [problem for problem in found if problem.rule.about.topic == ANY_TOPIC]
    explains = next((cause for cause in causes if any(_explains(cause, effect) for effect in effects)), None)
    if explains is None:
        return found
    explains.also.extend(effect.rule for effect in effects)
    return causes


def in_order(results: Iterable[RuleResult]) -> list[RuleResult]:
    """Returns the findings in the order of their problems, then accepted ones, then other rules by state."""
    every = list(results)
    found = [rule for problem in problems(every) for rule in (problem.rule, *problem.also)]
    rest = [result for result in every if not result.decides]
    states = list(Status)
    rest.sort(key=lambda result: (states.index(result.status), result.about.is_symptom, result.rule))
    return found + rest


def _seconds(result: RuleResult) -> float:
    return result.seconds_lost


def _place(problem: Problem, found: list[Problem]) -> tuple[float, bool, int, str]:
    """Returns the sort key. A symptom explains no more time than any cause of it that was found."""
    rule, seconds = problem.rule, problem.seconds_lost
    if rule.about.is_symptom:
        causes = (
            other.seconds_lost
            for other in found
            if not other.rule.about.is_symptom and rule.about.symptom == other.rule.about.symptom != ""
        )
        seconds = min((seconds, *causes))
    return -seconds, rule.about.is_symptom, -rule.triggered, rule.rule


def _explains(cause: Problem, effect: Problem) -> bool:
    """Returns whether a problem explains what anything that costs time may cause, such as idle GPUs."""
    return cause.seconds_lost > 0 or cause.rule.about.symptom == effect.rule.about.symptom != ""


def _joined(groups: Iterable[list[RuleResult]]) -> list[list[RuleResult]]:
    """Joins the group of a rule that fired only for slow ranks to that of the rule that names these."""
    every = list(groups)
    slow = next((group for group in every if group[0].rule == SLOW_RANKS), None)
    if slow is None:
        return every
    name = OF_SLOW_RANK.get(slow[0].details.get("component", ""))
    same = [group for group in every if group[0].rule == name and _ranks(group[0]) <= _ranks(slow[0])]
    return [
        [*group, *(rule for other in same for rule in other)] if group is slow else group
        for group in every
        if group not in same
    ]


def _ranks(result: RuleResult) -> set[tuple[str, int]]:
    """Returns node and rank of each row of a finding that fired."""
    rows = result.details.get("ranks") or result.details.get("devices") or []
    return {(row["node"], row["rank"]) for row in rows if row["triggered"]}
