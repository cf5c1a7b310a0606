"""Measures the components of the steps of each rank, which of them compiled or saved, and the last one.

Saved steps show what restarts of a run by its launcher cost: the time to begin again, and repeated steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepscope.measurements.measure import Measure, Measurement, Views
from stepscope.measurements.state import Scans
from stepscope.runs.model import COMPONENTS, PHASES, RankFacts, Steps, Times

COMPILE, CHECKPOINT = COMPONENTS.index("compile"), COMPONENTS.index("checkpoint")


@dataclass(frozen=True)
class LastStep:
    """The last finished step of a rank; `end` is in seconds since the epoch."""

    node: str
    rank: int
    phase: str
    number: int
    end: float


class StepTotals(Measurement[None]):
    """The sums over the recorded steps of a node."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[int, str], Times] = {}  # by rank and phase, (len(COMPONENTS),)
        self.compiled: dict[int, int] = {}  # by rank: steps in which something was compiled
        # (n,) since the epoch: the ends of steps in which a rank saved a checkpoint, or before which it did
        self.saved: Times = np.empty(0)
        self._ends: dict[int, tuple[float, int, str]] = {}  # by rank: the last end, number and phase

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[None]:
        if not len(steps):
            return ()
        compiled = int(np.count_nonzero(steps.components[:, COMPILE]))
        self.compiled[steps.rank] = self.compiled.get(steps.rank, 0) + compiled
        for phase in np.unique(steps.phases):
            key = steps.rank, PHASES[phase]
            known = self.seconds.get(key, np.zeros(len(COMPONENTS)))
            self.seconds[key] = known + steps.components[steps.phases == phase].sum(axis=0)
        saved = steps.components[:, CHECKPOINT] > 0
        self.saved = np.concatenate([self.saved, steps.ends[saved]])
        row = int(np.argmax(steps.ends))
        last = float(steps.ends[row]), int(steps.numbers[row]), PHASES[steps.phases[row]]
        self._ends[steps.rank] = max(last, self._ends.get(steps.rank, last))
        return ()

    def last_steps(self, node: str) -> list[LastStep]:
        """Returns the last step of each rank of the node."""
        return [LastStep(node, rank, phase, number, end) for rank, (end, number, phase) in self._ends.items()]


STEP_TOTALS = Measure(StepTotals)


@dataclass(frozen=True)
class Restart:
    """An attempt that took steps, and that a later one followed."""

    steps: int  # of all phases, that its rank with most had finished
    start: float  # the end of its last step, in seconds since the epoch
    seconds: float  # from then to the first step of the next attempt that takes any
    unsaved_seconds: float | None  # of steps since its last checkpoint; None: no checkpoint was seen


def restarts(ranks: Iterable[RankFacts], totals: Sequence[StepTotals]) -> list[Restart]:
    """Returns the restarts of a run, oldest first. An attempt lasts until its last rank ends a step."""
    attempts: dict[int, list[RankFacts]] = {}
    for rank in ranks:
        if rank.first_step_start is not None and rank.last_step_end is not None:
            attempts.setdefault(rank.attempt, []).append(rank)
    saved = np.concatenate([np.empty(0), *(each.saved for each in totals)])
    found = []
    for earlier, later in pairwise(ranks for _, ranks in sorted(attempts.items())):
        begin = min(rank.first_step_start or 0.0 for rank in earlier)
        end = max(rank.last_step_end or 0.0 for rank in earlier)
        again = max(rank.first_step_start or 0.0 for rank in later)
        of_attempt = saved[(saved >= begin) & (saved <= end)]
        unsaved = end - float(of_attempt.max()) if len(of_attempt) else None
        steps = max(sum(rank.steps.values()) for rank in earlier)
        found.append(Restart(steps, end, max(again - end, 0.0), unsaved))
    return found
