"""Sums up the traces of a run's profile windows: operators per rank and device, and findings."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from stepscope.common.errors import UserError
from stepscope.common.status import Status
from stepscope.common.words import duration
from stepscope.evaluation.analysis import (
    Analysis,
    DevicePasses,
    DeviceProfile,
    ModuleTime,
    OperatorChange,
    OperatorExcess,
    Profile,
    RuleResult,
)
from stepscope.evaluation.kernel_kinds import kernel_kinds
from stepscope.evaluation.problems import problems_of
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.step_outlier import StepOutlier
from stepscope.rules.straggler import Straggler
from stepscope.runs.model import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    PYTHON,
    FunctionTime,
    OperatorTime,
    PassTime,
    PythonWindow,
    RunFacts,
    StepPicture,
    TracedSteps,
)

SHOWN = 10
CPU = "cpu"
LEAST = 0.01  # of all self time on the device, in the one that has more
PerStep = Mapping[str, Mapping[str, float]]  # self seconds by kind of device and operator
OPERATORS = 20  # per device, also modules
NUMBER = re.compile(r"\.\d+(?=[. ]|$)")  # of a layer in the name of a module
LEAST_SHARE, LEAST_SECONDS = 0.05, 0.002  # of a step: a smaller excess is no evidence; as in Straggler
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
    unread = (*(gap.reason for gap in facts.gaps), *facts.damaged)
    steps = {each.rank: each.steps["train"] for each in facts.ranks if each.steps["train"]}
    per_step = _per_step(facts.operators, steps)
    memory = tuple(replace(each, operators=each.operators[:OPERATORS]) for each in facts.memory)
    profile = Profile(tuple(_devices(facts)), findings, unread, tuple(_excess(facts)), memory, (), per_step)
    first, last = (_of_windows([pair[end] for pair in facts.first_and_last]) for end in (0, 1))
    changes = tuple(operator_changes(first, last, profile.places()))
    flops = {rank.rank: rank.flops_per_step for rank in facts.ranks if rank.flops_per_step is not None}
    passes = tuple(_passes(facts))
    pictures = _slow_and_median(facts)
    return replace(profile, changes=changes, passes=passes, flops=flops, pictures=pictures, traces=analysis)


def _slow_and_median(facts: RunFacts) -> tuple[StepPicture, ...]:
    """Returns the pictures of two ranks, by their time in steps without communication; () of one rank."""
    own = {
        (rank.node, rank.rank): (rank.phase_seconds["train"] - rank.component_seconds["communication"])
        / rank.steps["train"]
        for rank in facts.ranks
        if rank.steps["train"]
    }
    known = sorted(
        (each for each in facts.pictures if (each.node, each.rank) in own),
        key=lambda each: own[each.node, each.rank],
    )
    return (known[-1], known[(len(known) - 1) // 2]) if len(known) > 1 else ()


def _of_windows(windows: Sequence[TracedSteps]) -> dict[str, dict[str, float]]:
    """Returns self seconds per step by kind of device and operator, of one window per rank."""
    operators = (operator for window in windows for operator in window.operators)
    return _per_step(operators, {window.rank: window.steps for window in windows})


def with_evidence(results: Sequence[RuleResult], profile: Profile | None) -> list[RuleResult]:
    """Returns the results; one that accuses a rank says which operator its peers do not spend as long in."""
    excess = {each.rank: each for each in profile.excess} if profile else {}
    return [_with_evidence(result, excess.get(result.details.get("rank", -1))) for result in results]


def _with_evidence(result: RuleResult, excess: OperatorExcess | None) -> RuleResult:
    accuses = result.status is Status.FOUND and result.rule == Straggler.__name__
    if not accuses or excess is None:
        return result
    if excess.seconds - excess.others <= max(LEAST_SHARE * excess.step_seconds, LEAST_SECONDS):
        return result
    place = f", called from {excess.place}" if excess.place else ""
    said = (
        f"In profile windows, it spends {duration(excess.seconds)} per step in {excess.operator}{place}; its "
        f"peers {duration(excess.others)}."
    )
    return replace(result, finding=f"{result.finding} {said}")


def _excess(facts: RunFacts) -> Iterator[OperatorExcess]:
    """Yields the largest excess of each rank over the median of the others, per step."""
    steps = {each.rank: each.steps["train"] for each in facts.ranks if each.steps["train"]}
    sums: dict[str, dict[int, float]] = {}
    places = {(each.rank, each.operator): each.place for each in facts.operators if each.place}
    for each in facts.operators:
        if each.rank in steps:
            of_ranks = sums.setdefault(each.operator, dict.fromkeys(steps, 0.0))
            of_ranks[each.rank] += own(each) / steps[each.rank]
    if len(steps) < 2:
        return
    for rank in facts.ranks:
        found = [
            OperatorExcess(
                rank=rank.rank,
                operator=operator,
                seconds=of_ranks[rank.rank],
                others=median(value for other, value in of_ranks.items() if other != rank.rank),
                step_seconds=rank.phase_seconds["train"] / steps[rank.rank],
                place=places.get((rank.rank, operator), ""),
            )
            for operator, of_ranks in sums.items()
            if rank.rank in steps
        ]
        if found:
            yield max(found, key=lambda each: each.seconds - each.others)


def with_python(profile: Profile | None, windows: Iterable[PythonWindow | UserError]) -> Profile | None:
    """Returns the profile with the Python functions of each rank; None if there is nothing."""
    unread, found = [], defaultdict[tuple[int, str, str], list[PythonWindow]](list)
    for each in windows:
        if isinstance(each, PythonWindow):
            found[each.rank, each.node, each.device].append(each)
        else:
            unread.append(str(each))
    if not found and not unread:
        return profile
    known = profile or Profile((), (), ())
    devices = [_of_python(*of_rank) for of_rank in found.values()]
    together = sorted(
        [*known.devices, *devices], key=lambda each: (each.rank, each.device.startswith(PYTHON))
    )
    per_step = dict(known.per_step)
    for kind in {device.device for device in devices}:
        steps = {device.rank: device.steps for device in devices if device.device == kind}
        windows_of_kind = (window for each in found.values() for window in each if window.device == kind)
        functions = (function for window in windows_of_kind for function in window.functions)
        per_step |= _per_step(functions, steps)
    return replace(known, devices=tuple(together), unread=(*known.unread, *unread), per_step=per_step)


def _per_step(operators: Iterable[OperatorTime], steps: Mapping[int, int]) -> dict[str, dict[str, float]]:
    """Returns self seconds per step by kind of device and operator, the mean of its ranks."""
    sums: dict[str, dict[str, float]] = {}
    ranks: dict[str, set[int]] = {}
    for each in operators:
        if each.rank in steps:
            device = each.device.rstrip("0123456789")
            of_device = sums.setdefault(device, {})
            of_device[each.operator] = of_device.get(each.operator, 0.0) + own(each) / steps[each.rank]
            ranks.setdefault(device, set()).add(each.rank)
    return {
        device: {operator: seconds / len(ranks[device]) for operator, seconds in of_device.items()}
        for device, of_device in sums.items()
    }


def _of_python(*windows: PythonWindow) -> DeviceProfile:
    """Returns the sum of the windows of one rank."""
    first = windows[0]
    sums: dict[str, FunctionTime] = {}
    for each in (function for window in windows for function in window.functions):
        before = sums.get(each.operator)
        if before is not None:
            each = replace(
                each,
                calls=before.calls + each.calls,
                seconds=before.seconds + each.seconds,
                self_seconds=own(before) + own(each),
                primitive_calls=_sum(before.primitive_calls, each.primitive_calls),
            )
        sums[each.operator] = each
    device = _device(
        first.node,
        first.rank,
        first.device,
        sum(window.steps for window in windows),
        sum(window.step_seconds for window in windows),
        list(sums.values()),
    )
    return replace(device, windows=windows)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _device(
    node: str, rank: int, device: str, steps: int, step_seconds: float, operators: Sequence[OperatorTime]
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


def _passes(facts: RunFacts) -> Iterator[DevicePasses]:
    found: dict[tuple[int, str, str], list[PassTime]] = {}
    for each in facts.passes:
        found.setdefault((each.rank, each.node, each.device), []).append(each)
    for (rank, node, device), times in sorted(found.items()):
        forward, backward, optimizer = (
            sum(each.seconds for each in times if each.part == part)
            for part in (FORWARD, BACKWARD, OPTIMIZER)
        )
        yield DevicePasses(
            node,
            rank,
            device,
            *_steps_of(facts, node, rank),
            forward,
            backward,
            optimizer,
            tuple(_modules(times)),
        )


def _modules(times: Sequence[PassTime]) -> list[ModuleTime]:
    """Returns the modules with most time; layers that differ in their number are one if there are many."""
    sums: dict[str, list[float]] = {}  # calls, forward, backward
    for each in times:
        if each.module:
            of_module = sums.setdefault(each.module, [0, 0.0, 0.0])
            of_module[0] += each.calls
            of_module[1 if each.part == FORWARD else 2] += each.seconds
    inside = dict.fromkeys((module.partition(" (")[0] for module in sums), 0.0)  # totals by path
    for module, (_, forward, backward) in sums.items():
        path = module.partition(" (")[0]
        while path:
            if path in inside:
                inside[path] += forward + backward
            path = path.rpartition(".")[0]
    merges = len(sums) > OPERATORS
    found: dict[str, ModuleTime] = {}
    for module, (calls, forward, backward) in sums.items():
        name = NUMBER.sub(".*", module) if merges else module
        before = found.get(name, ModuleTime(name, 0, 0.0, 0.0, 0.0))
        found[name] = ModuleTime(
            name,
            before.calls + int(calls),
            before.forward + forward,
            before.backward + backward,
            before.total + inside[module.partition(" (")[0]],
        )
    most_first = sorted(found.values(), key=lambda each: (-each.forward - each.backward, each.module))
    return most_first[:OPERATORS]


def _steps_of(facts: RunFacts, node: str, rank: int) -> tuple[int, float]:
    """Returns how many steps the windows of a rank have, and their seconds."""
    known = next((each for each in facts.ranks if (each.node, each.rank) == (node, rank)), None)
    return (known.steps["train"], known.phase_seconds["train"]) if known else (0, 0.0)


def _devices(facts: RunFacts) -> Iterator[DeviceProfile]:
    found: dict[tuple[int, str, str], list[OperatorTime]] = {}
    for operator in facts.operators:
        found.setdefault((operator.rank, operator.node, operator.device), []).append(operator)
    for (rank, node, device), operators in sorted(found.items()):
        each = _device(node, rank, device, *_steps_of(facts, node, rank), operators)
        if device != CPU:
            of_device = (found for found in facts.devices if (found.node, found.rank) == (node, rank))
            did = next((found for found in of_device if found.device == device), None)
            each = replace(each, kinds=kernel_kinds(operators, did))
        yield each


def own(operator: OperatorTime) -> float:
    """Returns the seconds of an operator without those that it called; kernels call none."""
    return operator.seconds if operator.self_seconds is None else operator.self_seconds


def operator_changes(a: PerStep, b: PerStep, places: Mapping[str, str]) -> list[OperatorChange]:
    """Returns what changed most, on devices that both have. `places`: the lines of operators, if known."""
    found = []
    for device in sorted(a.keys() & b.keys()):
        before, after = a[device], b[device]
        least = LEAST * max(sum(before.values()), sum(after.values()))
        for operator in sorted({*before, *after}):
            seconds = before.get(operator, 0.0), after.get(operator, 0.0)
            each = OperatorChange(device, operator, *seconds, places.get(operator, ""))
            if abs(each.difference) >= least > 0:
                found.append(each)
    return sorted(found, key=lambda each: -abs(each.difference))[:SHOWN]
