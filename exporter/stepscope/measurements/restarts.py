"""Measures what restarts of a run by its launcher cost: the time to begin again, and steps that repeat."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepscope.measurements.step_totals import StepTotals
from stepscope.runs.model import RankFacts


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
