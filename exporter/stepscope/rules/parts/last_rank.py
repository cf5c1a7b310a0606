"""Judges for Straggler, from traces of all ranks: who arrives last at collectives, and why.

A trace has few steps, but each collective of each rank. So the lateness of a rank is measured, not inferred
from step times: see measurements/arrivals.py.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from stepscope.measurements.arrivals import Arrivals
from stepscope.measurements.matched_collectives import Integers
from stepscope.measurements.process_groups import Stage
from stepscope.rules.parts.judgement import Booleans
from stepscope.rules.parts.parameters import fraction
from stepscope.runs.model import WORK, Times

MOST_STEPS = 2 / 3  # a rank that is late in fewer of the steps is not late by itself
FEW = 3  # steps: fewer have no standard error, and do not show whether the last rank changes
CHANGING = 2  # times the limits: in any step, the last of many equal ranks is above their median
CERTAIN = 3  # times the residual of the clocks


class Limits(Protocol):
    """The parameters of Straggler that apply."""

    @property
    def threshold(self) -> float: ...
    @property
    def minimum(self) -> float: ...
    @property
    def deviations(self) -> float: ...
    @property
    def waiting(self) -> float: ...


class LongestStage(NamedTuple):
    """The stage of a pipeline that computes longest; seconds per step."""

    stage: Stage
    computes: float
    others: float  # their median
    waits_less: float  # than the others' median

    @property
    def excess(self) -> float:
        return self.computes - self.others


@dataclass(frozen=True)
class LastRank:
    """The comparison of ranks in a trace, judged. Seconds per step are means over all steps."""

    arrivals: Arrivals
    limits: Limits

    @cached_property
    def limit(self) -> float:
        """Returns the lateness per step that is too much."""
        step = float(self.arrivals.durations.mean())
        unsure = CERTAIN * float(np.nan_to_num(self.arrivals.residual))
        return max(fraction(self.limits.threshold) * step, self.limits.minimum / 1000, unsure)

    @cached_property
    def excess(self) -> Times:
        """Returns (ranks, len(WORK)) seconds of own work beyond the median of the peers."""
        return self.arrivals.beyond(self.arrivals.work.mean(axis=1))

    @cached_property
    def late(self) -> Times:
        """Returns (ranks, steps) by how much a rank is late: waits, or distance to the others."""
        return np.maximum(self.arrivals.late, self.arrivals.behind)

    @cached_property
    def own(self) -> Times:
        """Returns (ranks,) seconds of own work, of all kinds, beyond the median of the peers."""
        return np.asarray(self.excess.sum(axis=1))

    @cached_property
    def communicates_less(self) -> Times:
        """Returns (ranks,) seconds of exposed communication below the median of the peers."""
        return -self.arrivals.beyond(self.arrivals.communicated.mean(axis=1))

    @cached_property
    def last(self) -> Integers:
        """Returns (steps,) the rank that the others wait for longest; -1: for none."""
        late = self.arrivals.late
        return np.where(late.max(axis=0) > 0, late.argmax(axis=0), -1)

    @cached_property
    def late_steps(self) -> Booleans:
        """Returns (ranks, steps): where a rank is late by half of the limit or more."""
        return np.asarray(self.late > self.limit / 2)

    @cached_property
    def slow(self) -> Booleans:
        """Returns (ranks,): it comes late, consistently, because of its own work, and the others wait for it.

        A rank that waits in another group, and is late therefore, does no more work than its peers.
        """
        late, steps = self.late.mean(axis=1), self.late.shape[1]
        own = self.arrivals.beyond(self.arrivals.work.sum(axis=2))
        error = own.std(axis=1, ddof=1) / np.sqrt(steps) if steps >= FEW else np.zeros(len(late))
        part = fraction(self.limits.waiting) * self.own
        return np.asarray(
            (self.own > self.limit)
            & (self.own > self.limits.deviations * error)
            & (self.late_steps.mean(axis=1) >= (MOST_STEPS if steps >= FEW else 1))
            & (late > part)
            & (self.communicates_less > part)
        )

    @cached_property
    def longest_stage(self) -> LongestStage | None:
        """Returns the stage that computes longest; None without a pipeline."""
        stages = self.arrivals.stages
        if len(stages) < 2:
            return None
        compute = self.arrivals.work[:, :, WORK.index("compute")].mean(axis=1)
        waits = self.arrivals.communicated.mean(axis=1)
        mine, waited = (
            np.array([np.median(values[stage.rows]) for stage in stages]) for values in (compute, waits)
        )
        worst = int(mine.argmax())
        others, wait = (float(np.median(np.delete(values, worst))) for values in (mine, waited))
        return LongestStage(stages[worst], float(mine[worst]), others, wait - float(waited[worst]))

    @cached_property
    def slow_stage(self) -> LongestStage | None:
        """Returns the stage that computes longest, if it is too long."""
        stage = self.longest_stage
        if stage is None or stage.excess <= self.limit:
            return None
        return stage if stage.waits_less > fraction(self.limits.waiting) * stage.excess else None

    @cached_property
    def changing(self) -> str | None:
        """Returns what the last ranks do longer, if the last rank changes from step to step."""
        late = self.arrivals.late
        lost = late.max(axis=0)
        last = late.argmax(axis=0)[lost > self.limit]
        if late.shape[1] < FEW or len(set(last.tolist())) < 2 or lost.mean() <= CHANGING * self.limit:
            return None
        beyond = self.arrivals.beyond(self.arrivals.work).max(axis=0).mean(axis=0)  # of the ranks; per step
        if beyond.sum() <= fraction(self.limits.waiting) * lost.mean():
            return None
        return WORK[int(beyond.argmax())]
