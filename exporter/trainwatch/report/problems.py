"""Groups findings by problem: rules that see the same problem from different sides belong together."""

from __future__ import annotations

from dataclasses import dataclass

from trainwatch.evaluation.analysis import Analysis, RuleResult
from trainwatch.rules.topics import ANY_TOPIC, Effect
from trainwatch.status import Status


@dataclass(frozen=True)
class Problem:
    """One problem: the rule that explains it best, and the other rules that saw it."""

    title: str
    rule: RuleResult
    also: list[RuleResult]

    @property
    def seconds_lost(self) -> float:
        """Returns an estimate; 0 if no time was lost, or if an amount makes no sense."""
        return self.rule.seconds_lost

    @property
    def is_risk(self) -> bool:
        """Returns whether the problem endangers the run instead of slowing it down."""
        return self.rule.about.effect is Effect.RISK


def problems(analysis: Analysis) -> list[Problem]:
    """Returns the problems, the most expensive one first."""
    topics: dict[str, list[RuleResult]] = {}
    for rule in analysis.rules:
        if rule.status is Status.FOUND:
            topics.setdefault(rule.about.topic or rule.rule, []).append(rule)
    nearest_first = (sorted(rules, key=lambda rule: rule.about.distance) for rules in topics.values())
    found = [Problem(first.about.subject, first, also) for first, *also in nearest_first]
    found.sort(key=lambda problem: -problem.seconds_lost)
    causes = [problem for problem in found if problem.rule.about.topic != ANY_TOPIC]
    if causes and causes[0].seconds_lost > 0:
        causes[0].also.extend(problem.rule for problem in found if problem not in causes)
        return causes
    return found
