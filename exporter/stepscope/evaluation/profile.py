"""Sums up the traces of a run's profile windows: operators per rank and device, and findings."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.evaluation.analysis import Analysis, DeviceProfile, Profile
from stepscope.evaluation.problems import problems_of
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.step_outlier import StepOutlier
from stepscope.runs.model import OperatorTime, RunFacts

OPERATORS = 20  # per device
OF_THE_RUN = {rule.__name__ for rule in (DataStarved, StepOutlier)}  # they judge all steps, not a few


def profile_of(analysis: Analysis, facts: RunFacts) -> Profile:
    """Returns the profile, from the evaluation of the traces and from their facts.

    Findings are those that only a trace can give.
    """
    findings = tuple(
        (problem.title, problem.rule.finding, problem.rule.recommendation)
        for problem in problems_of(analysis)
        if problem.rule.rule not in OF_THE_RUN
    )
    return Profile(tuple(_devices(facts)), findings, tuple(gap.reason for gap in facts.gaps))


def _devices(facts: RunFacts) -> Iterator[DeviceProfile]:
    found: dict[tuple[int, str, str], list[OperatorTime]] = {}
    for operator in facts.operators:
        found.setdefault((operator.rank, operator.node, operator.device), []).append(operator)
    for (rank, node, device), operators in sorted(found.items()):
        steps = next((each for each in facts.ranks if (each.node, each.rank) == (node, rank)), None)
        most_first = sorted(operators, key=lambda each: (-own(each), each.operator))
        yield DeviceProfile(
            node=node,
            rank=rank,
            device=device,
            steps=steps.steps["train"] if steps else 0,
            step_seconds=steps.phase_seconds["train"] if steps else 0.0,
            seconds=sum(map(own, operators)),
            operators=tuple(most_first[:OPERATORS]),
        )


def own(operator: OperatorTime) -> float:
    """Returns the seconds of an operator without those that it called; kernels call none."""
    return operator.seconds if operator.self_seconds is None else operator.self_seconds
