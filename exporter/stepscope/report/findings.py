"""The findings of a run, in words and amounts: every view shows these, and derives nothing again."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.common.words import duration, money, share
from stepscope.evaluation.account import Account, Key
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.claims import part_of
from stepscope.evaluation.problems import Problem, problems_of
from stepscope.report.figures import cost_of_finding
from stepscope.report.held import held


@dataclass(frozen=True)
class Finding:
    """A problem with what it cost and why."""

    problem: Problem
    evidence: str  # in one line: numbers, ranks, baseline, and when it held
    seconds: float  # lost; 0 if no time was, or if that is not known
    of_run: float | None  # share of the run, 0..1; None: as before, or the seconds of several ranks together
    dollars: float | None
    key: Key | None = None  # the part of the account that it is about; None: none, or several

    def explains(self, leaf: Key) -> bool:
        """Returns whether it is about this part of the account, or about the phase that the part is in."""
        return self.key in (leaf, Key(leaf.part))

    @property
    def cost(self) -> str:
        """Returns "52 % of the run, 42.7 s"; "" if no time was lost, or if that is not known."""
        of = "" if self.of_run is None else f"{share(self.of_run, 1.0)} of the run, "
        return f"{of}{duration(self.seconds)}" if self.seconds else ""

    @property
    def amounts(self) -> list[str]:
        """Returns the same as time, share of the run and money, as far as they are known."""
        if not self.seconds:
            return []
        of = "of all ranks and GPUs" if self.of_run is None else f"{share(self.of_run, 1.0)} of the run"
        return [duration(self.seconds), of, *([] if self.dollars is None else [money(self.dollars)])]

    @property
    def why(self) -> str:
        """Returns the evidence without the cost and when it held, which nobody acts on."""
        return " ".join(self.problem.evidence).removeprefix(f"{self.cost}. ")

    @property
    def bill(self) -> str:
        """Returns " ($1.20)", to follow the time; "" without a price."""
        return "" if self.dollars is None else f" ({money(self.dollars)})"


def findings(analysis: Analysis, price: float | None = None) -> list[Finding]:
    """Returns the findings, the most expensive one first. `price`: dollars per hour of one node."""
    return [_finding(analysis, problem, price) for problem in problems_of(analysis)]


def cut_across(findings: Sequence[Finding], account: Account) -> list[RuleResult]:
    """Returns the causes that cost time in several parts of the account, whose seconds contain it."""
    rules = [rule for each in findings for rule in (each.problem.rule, *each.problem.also)]
    parts = {part for leaf in account.leaves for part in (leaf.key, Key(leaf.key.part))}
    return [
        rule
        for rule in rules
        if rule.seconds_lost > 0
        and not rule.about.is_symptom
        and part_of(rule, account.main_phase) not in parts
    ]


def _finding(analysis: Analysis, problem: Problem, price: float | None) -> Finding:
    lost, whole = problem.seconds_lost, analysis.run_seconds
    return Finding(
        problem,
        evidence(analysis, problem),
        max(lost, 0.0),
        lost / whole if whole and 0 < lost <= whole else None,
        cost_of_finding(analysis, lost, price),
        part_of(problem.rule, analysis.account.main_phase) if analysis.account else None,
    )


def evidence(analysis: Analysis, problem: Problem) -> str:
    """Returns the evidence of a problem in one line: numbers, ranks, baseline, and when it held."""
    finding, *shared = problem.evidence
    return " ".join(filter(None, (finding, held(analysis, problem.rule), *shared)))
