"""Splits a difference into parts that sum to it, for a step and for the whole run.

All times are per rank, as the mean over the ranks: ranks work in parallel, so their times must not be added.
The time before the first training process starts and after the last one ends is a separate part. So the
parts of a run always sum to its duration.
"""

from dataclasses import dataclass

import numpy as np

from stepscope.compare.compared_run import ComparedRun
from stepscope.report import shares
from stepscope.runs.model import COMPONENTS, PHASES

OUTSIDE = "outside"
REST = "rest"
NAMES = {OUTSIDE: "Before and after the ranks"}


@dataclass(frozen=True)
class Part:
    """One part of a difference, in seconds; `a` and `b` are its time in each run."""

    key: str
    name: str
    a: float
    b: float

    @property
    def difference(self) -> float:
        return self.b - self.a


@dataclass(frozen=True)
class Difference:
    """The totals of both runs, and the parts that sum to their difference."""

    a: float  # the time of A for the work of B
    b: float
    parts: list[Part]  # without those of zero time in both runs
    measured_a: float  # differs from `a` if A did other work

    @property
    def total(self) -> float:
        return self.b - self.a

    @property
    def largest(self) -> Part | None:
        """Returns the part that explains most of the difference: the largest of the same sign."""
        same = [part for part in self.parts if part.difference * self.total > 0]
        return max(same, key=lambda part: abs(part.difference), default=None)


@dataclass(frozen=True)
class StepTime:
    """The steps of one phase: their number per rank, and the mean duration in seconds."""

    count: float  # the mean over the ranks
    seconds: float
    components: dict[str, float]  # including REST they sum to `seconds`


def main_phase(a: ComparedRun, b: ComparedRun) -> str | None:
    """Returns the phase whose steps are compared: training, or otherwise the longest phase of both runs.

    Marks of steps without a length say nothing about their time.
    """
    both = [phase for phase in PHASES if _took_time(a, phase) and _took_time(b, phase)]
    if not both or "train" in both:
        return both[0] if both else None
    return max(both, key=lambda phase: sum(rank.seconds for rank in (*a.steps[phase], *b.steps[phase])))


def _took_time(run: ComparedRun, phase: str) -> bool:
    return any(rank.seconds > 0 for rank in run.steps.get(phase, ()))


def step_time(run: ComparedRun, phase: str) -> StepTime:
    """Returns the mean step of the phase over all ranks, with the components that were recorded.

    Steps whose record was lost count with the time that the ledger has for them.
    """
    series = run.steps[phase]
    count, seconds = sum(rank.count for rank in series), sum(rank.seconds for rank in series)
    ranks = len(series)
    ledger_count = sum(rank.steps.get(phase, 0) for rank in run.ranks)
    ledger_seconds = sum(rank.phase_seconds.get(phase, 0.0) for rank in run.ranks)
    sums = np.sum([rank.component_seconds for rank in series], axis=0)
    components = dict(zip(COMPONENTS, (sums / count).tolist(), strict=True))
    if ledger_count > count and ledger_seconds > 0:
        scale = (ledger_seconds / ledger_count) / (seconds / count)
        components = {name: scale * took for name, took in components.items()}
        count, seconds = ledger_count, ledger_seconds
        counted = {(rank.node, rank.rank) for rank in run.ranks if rank.steps.get(phase)}
        ranks = max(ranks, len(counted))  # every record of a rank may be lost
    known = {name: took for name, took in components.items() if took > 0}
    each = seconds / count
    return StepTime(count / ranks, each, {**known, REST: each - sum(known.values())})


def difference_of_a_step(
    a: ComparedRun, b: ComparedRun, phase: str, items: tuple[float, float] = (1, 1)
) -> Difference:
    """Returns the difference of the mean step of the phase, by recorded component.

    `items`: the items of a step of A and of B; times are then per item.
    """
    parts = _component_parts(step_time(a, phase), step_time(b, phase), (1 / items[0], 1 / items[1]))
    before, after = (step_time(run, phase).seconds / each for run, each in zip((a, b), items, strict=True))
    return Difference(before, after, parts, before)


def difference_of_the_run(
    a: ComparedRun, b: ComparedRun, phase: str | None, work: float = 1
) -> Difference | None:
    """Returns the difference of the whole durations; None if one is unknown, or has no phases.

    `work`: how many times the work of A was done by B. The steps of A count that often, so that what is left
    is the difference for the same work. What is outside the steps counts as it was.
    """
    whole_a, whole_b = a.analysis.run_seconds, b.analysis.run_seconds
    times = _phase_seconds(a, phase), _phase_seconds(b, phase)
    if whole_a is None or whole_b is None or not (times[0] and times[1]):
        return None
    parts = [_phase_part("initialization", *times)]
    longer = 0.0
    if phase is not None:
        steps = step_time(a, phase), step_time(b, phase)
        parts += _component_parts(*steps, (work * steps[0].count, steps[1].count))
        longer = (work - 1) * steps[0].count * steps[0].seconds
    other_phases = [name for name in PHASES if name != phase]
    parts += [_phase_part(name, *times) for name in (*other_phases, "other", "finalization")]
    outside_a, outside_b = whole_a - sum(times[0].values()), whole_b - sum(times[1].values())
    parts.append(Part(OUTSIDE, NAMES[OUTSIDE], outside_a, outside_b))
    return Difference(whole_a + longer, whole_b, [part for part in parts if part.a or part.b], whole_a)


def _phase_seconds(run: ComparedRun, main: str | None) -> dict[str, float]:
    """Returns the mean seconds per rank in each phase and around them; for `main` those of its steps."""
    number = len({(rank.node, rank.rank) for rank in run.ranks})
    sums: dict[str, float] = {}
    for rank in run.ranks:
        for name, seconds in rank.phase_seconds.items():
            sums[name] = sums.get(name, 0.0) + seconds / number
    if main is not None:
        steps = step_time(run, main)
        sums[main] = steps.count * steps.seconds
    return sums


def _phase_part(name: str, a: dict[str, float], b: dict[str, float]) -> Part:
    before, after = a.get(name, 0.0), b.get(name, 0.0)
    return Part(name, shares.NAMES[name], before, after)


def _component_parts(a: StepTime, b: StepTime, counts: tuple[float, float]) -> list[Part]:
    """Returns the parts of `counts` steps of A and B by component; one part if none was recorded."""
    names = [name for name in (*COMPONENTS, REST) if name in a.components or name in b.components]
    return [
        Part(
            name,
            "The steps" if names == [REST] else shares.NAMES[name],
            counts[0] * a.components.get(name, 0.0),
            counts[1] * b.components.get(name, 0.0),
        )
        for name in names
    ]
