"""Rules that fired in one run, in the other, or in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainwatch.compare.compared_run import ComparedRun
from trainwatch.evaluation.analysis import RuleResult
from trainwatch.report.sentences import is_overview
from trainwatch.status import Status

Fate = Literal["went away", "stayed", "appeared", "can no longer be judged"]
FATES: tuple[Fate, ...] = ("appeared", "stayed", "can no longer be judged", "went away")


@dataclass(frozen=True)
class ChangedRule:
    """A rule that fired in A, in B, or in both."""

    rule: str
    fate: Fate
    a: RuleResult
    b: RuleResult


def changed_rules(a: ComparedRun, b: ComparedRun) -> list[ChangedRule]:
    """Returns rules that appeared first and those that went away last, each in the order of B's analysis."""
    before = {result.rule: result for result in a.analysis.rules}
    changed = [
        ChangedRule(result.rule, _fate(before[result.rule], result), before[result.rule], result)
        for result in b.analysis.rules
        if result.rule in before
        and not is_overview(result)
        and Status.FOUND in (result.status, before[result.rule].status)
    ]
    return sorted(changed, key=lambda rule: FATES.index(rule.fate))


def _fate(a: RuleResult, b: RuleResult) -> Fate:
    if b.status is Status.FOUND:
        return "stayed" if a.status is Status.FOUND else "appeared"
    return "went away" if b.status is Status.HEALTHY else "can no longer be judged"
