"""Sums up the traces of a run's profile windows: operators per rank and device, and findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from stepscope.common.errors import UserError
from stepscope.evaluation.analysis import Analysis, DeviceProfile, Profile
from stepscope.evaluation.problems import problems_of
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.step_outlier import StepOutlier
from stepscope.runs.model import PYTHON, OperatorTime, PythonWindow, RunFacts

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


def with_python(profile: Profile | None, windows: Iterable[PythonWindow | UserError]) -> Profile | None:
    """Returns the profile with the Python functions of each rank; None if there is nothing."""
    unread, found = [], defaultdict[tuple[int, str], list[PythonWindow]](list)
    for each in windows:
        if isinstance(each, PythonWindow):
            found[each.rank, each.node].append(each)
        else:
            unread.append(str(each))
    if not found and not unread:
        return profile
    known = profile or Profile((), (), ())
    devices = [_of_python(*of_rank) for of_rank in found.values()]
    together = sorted([*known.devices, *devices], key=lambda device: (device.rank, device.device == PYTHON))
    return replace(known, devices=tuple(together), unread=(*known.unread, *unread))


def _of_python(*windows: PythonWindow) -> DeviceProfile:
    """Returns the sum of the windows of one rank."""
    first = windows[0]
    sums: dict[str, OperatorTime] = {}
    for each in (function for window in windows for function in window.functions):
        before = sums.get(each.operator)
        if before is not None:
            each = replace(
                each,
                calls=before.calls + each.calls,
                seconds=before.seconds + each.seconds,
                self_seconds=own(before) + own(each),
            )
        sums[each.operator] = each
    return _device(
        first.node,
        first.rank,
        PYTHON,
        sum(window.steps for window in windows),
        sum(window.step_seconds for window in windows),
        list(sums.values()),
    )


def _device(
    node: str, rank: int, device: str, steps: int, step_seconds: float, operators: list[OperatorTime]
) -> DeviceProfile:
    most_first = sorted(operators, key=lambda each: (-own(each), each.operator))
    return DeviceProfile(
        node=node,
        rank=rank,
        device=device,
        steps=steps,
        step_seconds=step_seconds,
        seconds=sum(map(own, operators)),
        operators=tuple(most_first[:OPERATORS]),
    )


def _devices(facts: RunFacts) -> Iterator[DeviceProfile]:
    found: dict[tuple[int, str, str], list[OperatorTime]] = {}
    for operator in facts.operators:
        found.setdefault((operator.rank, operator.node, operator.device), []).append(operator)
    for (rank, node, device), operators in sorted(found.items()):
        steps = next((each for each in facts.ranks if (each.node, each.rank) == (node, rank)), None)
        known = (steps.steps["train"], steps.phase_seconds["train"]) if steps else (0, 0.0)
        yield _device(node, rank, device, *known, operators)


def own(operator: OperatorTime) -> float:
    """Returns the seconds of an operator without those that it called; kernels call none."""
    return operator.seconds if operator.self_seconds is None else operator.self_seconds
