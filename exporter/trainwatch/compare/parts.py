"""Splits a difference into parts that sum to it, for a step and for the whole run.

All times are per rank, as the mean over the ranks: ranks work in parallel, so their times must not be added.
The time before the first training process starts and after the last one ends is a separate part. So the
parts of a run always sum to its duration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trainwatch.compare.compared_run import ComparedRun
from trainwatch.report import shares
from trainwatch.runs.model import COMPONENTS, PHASES

OUTSIDE = "outside"
COUNT = "count"  # the part due to a different number of steps
REST = "rest"
NAMES = {OUTSIDE: "Before and after the ranks"}


@dataclass(frozen=True)
class Part:
    """One part of a difference, in seconds; `a` and `b` are its time in each run."""

    key: str
    name: str
    a: float | None  # None if the part exists only as a difference between the runs
    b: float | None
    difference: float  # b - a, without the effect of a different number of steps


@dataclass(frozen=True)
class Difference:
    """The totals of both runs, and the parts that sum to their difference."""

    a: float
    b: float
    parts: list[Part]  # without those of zero time in both runs

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
    """Returns the phase whose steps are compared: training, or otherwise the longest phase of both runs."""
    both = [phase for phase in PHASES if phase in a.steps and phase in b.steps]
    if not both or "train" in both:
        return both[0] if both else None
    return max(both, key=lambda phase: sum(rank.seconds for rank in (*a.steps[phase], *b.steps[phase])))


def step_time(run: ComparedRun, phase: str) -> StepTime:
    """Returns the mean step of the phase over all ranks, with the components that were recorded.

    Steps whose record was lost count with the time that the ledger has for them.
    """
    series = run.steps[phase]
    count, seconds = sum(rank.count for rank in series), sum(rank.seconds for rank in series)
    ledger_count = sum(rank.steps.get(phase, 0) for rank in run.ranks)
    ledger_seconds = sum(rank.phase_seconds.get(phase, 0.0) for rank in run.ranks)
    sums = np.sum([rank.component_seconds for rank in series], axis=0)
    components = dict(zip(COMPONENTS, (sums / count).tolist(), strict=True))
    if ledger_count > count and ledger_seconds > 0:
        scale = (ledger_seconds / ledger_count) / (seconds / count)
        components = {name: scale * took for name, took in components.items()}
        count, seconds = ledger_count, ledger_seconds
    known = {name: took for name, took in components.items() if took > 0}
    each = seconds / count
    return StepTime(count / len(series), each, {**known, REST: each - sum(known.values())})


def difference_of_a_step(a: ComparedRun, b: ComparedRun, phase: str) -> Difference:
    """Returns the difference of the mean step of the phase, by recorded component."""
    before, after = step_time(a, phase), step_time(b, phase)
    return Difference(before.seconds, after.seconds, _component_parts(before, after))


def difference_of_the_run(a: ComparedRun, b: ComparedRun, phase: str | None) -> Difference | None:
    """Returns the difference of the whole durations; None if one is unknown, or has no phases.

    The steps of `phase` become two parts: n_b x b - n_a x a = (n_b - n_a) x a + n_b x (b - a). The first is
    due to a different number of steps, the second to the time per step.
    """
    whole_a, whole_b = shares.run_seconds(a.analysis), shares.run_seconds(b.analysis)
    times = _phase_seconds(a, phase), _phase_seconds(b, phase)
    if whole_a is None or whole_b is None or not (times[0] and times[1]):
        return None
    parts = [_phase_part("initialization", *times)]
    if phase is not None:
        parts += _parts_of_the_steps(step_time(a, phase), step_time(b, phase), phase)
    other_phases = [name for name in PHASES if name != phase]
    parts += [_phase_part(name, *times) for name in (*other_phases, "other", "finalization")]
    outside_a, outside_b = whole_a - sum(times[0].values()), whole_b - sum(times[1].values())
    parts.append(Part(OUTSIDE, NAMES[OUTSIDE], outside_a, outside_b, outside_b - outside_a))
    return Difference(whole_a, whole_b, [part for part in parts if part.a or part.b or part.difference])


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
    return Part(name, shares.NAMES[name], before, after, after - before)


def _parts_of_the_steps(a: StepTime, b: StepTime, phase: str) -> list[Part]:
    """Returns the parts of the main phase's steps over the whole run."""
    more = b.count - a.count
    name = f"{'More' if more > 0 else 'Fewer'} {phase} steps"
    count = [Part(COUNT, name, None, None, more * a.seconds)] if more else []
    return count + [
        replace(
            part,
            a=a.count * (part.a or 0.0),
            b=b.count * (part.b or 0.0),
            difference=b.count * part.difference,
        )
        for part in _component_parts(a, b)
    ]


def _component_parts(a: StepTime, b: StepTime) -> list[Part]:
    """Returns the parts of one step by component; a single part if none was recorded."""
    names = [name for name in (*COMPONENTS, REST) if name in a.components or name in b.components]
    parts = []
    for name in names:
        before, after = a.components.get(name, 0.0), b.components.get(name, 0.0)
        parts.append(
            Part(name, "The steps" if names == [REST] else shares.NAMES[name], before, after, after - before)
        )
    return parts
