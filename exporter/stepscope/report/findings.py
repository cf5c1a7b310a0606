"""The findings of a run, in words and amounts: every view shows these, and derives nothing again."""

from dataclasses import dataclass

from stepscope.common.words import duration, money, share
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.problems import Problem, problems_of
from stepscope.report.figures import cost_of_finding
from stepscope.report.held import held


@dataclass(frozen=True)
class Finding:
    """A problem with what it cost and why."""

    problem: Problem
    evidence: str  # in one line: numbers, ranks, baseline, and when it held
    seconds: float  # lost; 0 if no time was, or if that is not known
    part: float | None  # of the run, 0..1; None: as before, or the seconds of several ranks together
    dollars: float | None

    @property
    def cost(self) -> str:
        """Returns "52 % of the run, 42.7 s"; "" if no time was lost, or if that is not known."""
        of = "" if self.part is None else f"{share(self.part, 1.0)} of the run, "
        return f"{of}{duration(self.seconds)}" if self.seconds else ""

    @property
    def amounts(self) -> list[str]:
        """Returns the same as time, share of the run and money, as far as they are known."""
        if not self.seconds:
            return []
        of = "of all ranks and GPUs" if self.part is None else f"{share(self.part, 1.0)} of the run"
        return [duration(self.seconds), of, *([] if self.dollars is None else [money(self.dollars)])]

    @property
    def why(self) -> str:
        """Returns the evidence without the cost."""
        return self.evidence.removeprefix(f"{self.cost}. ")

    @property
    def bill(self) -> str:
        """Returns " ($1.20)", to follow the time; "" without a price."""
        return "" if self.dollars is None else f" ({money(self.dollars)})"


def findings(analysis: Analysis, price: float | None = None) -> list[Finding]:
    """Returns the findings, the most expensive one first. `price`: dollars per hour of one node."""
    return [_finding(analysis, problem, price) for problem in problems_of(analysis)]


def _finding(analysis: Analysis, problem: Problem, price: float | None) -> Finding:
    lost, whole = problem.seconds_lost, analysis.run_seconds
    return Finding(
        problem,
        evidence(analysis, problem),
        max(lost, 0.0),
        lost / whole if whole and 0 < lost <= whole else None,
        cost_of_finding(analysis, problem.estimate, price),
    )


def evidence(analysis: Analysis, problem: Problem) -> str:
    """Returns the evidence of a problem in one line: numbers, ranks, baseline, and when it held."""
    parts = [problem.rule.finding, held(analysis, problem.rule)]
    if problem.shared_seconds:
        parts.append(f"Without this, computing may take up to {duration(problem.shared_seconds)} less, too.")
    return " ".join(filter(None, parts))
