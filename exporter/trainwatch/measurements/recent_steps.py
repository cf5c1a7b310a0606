"""What a rank did at given moments, told from its last steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.state import State
from trainwatch.runs.model import COMPONENTS, PHASES, Steps, Times

# Steps that end within the same half second, the time between two snapshots, are kept as one span:
# a reading of a core or a GPU is a mean over about as long.
SPAN_SECONDS = 0.5
# Times since the epoch are known to a quarter of a microsecond, so that shares of half a second are to this.
DIGITS = 5
SPANS_KEPT = 12_000  # of the last: at least 100 minutes where steps follow one another

START, END, PHASE, SECONDS, FIRST_COMPONENT = range(5)  # columns


class RecentSteps(State):
    """The last spans of one rank: consecutive steps of one phase that end within the same half second.

    A step of half a second or more is a span of its own.
    """

    def __init__(self) -> None:
        self.spans: Times = np.empty((0, FIRST_COMPONENT + len(COMPONENTS)))

    def add(self, steps: Steps) -> None:
        if not len(steps):
            return
        ends = steps.starts + steps.durations
        added = np.column_stack((steps.starts, ends, steps.phases, steps.durations, steps.components))
        rows = np.concatenate((self.spans[-1:], added))  # the last span may go on
        halves = np.floor(rows[:, END] / SPAN_SECONDS)
        changes = (np.diff(halves) != 0) | (np.diff(rows[:, PHASE]) != 0)
        firsts = np.flatnonzero(np.concatenate(([True], changes)))
        joined = np.add.reduceat(rows, firsts, axis=0)
        joined[:, START] = np.minimum.reduceat(rows[:, START], firsts)
        joined[:, END] = np.maximum.reduceat(rows[:, END], firsts)
        joined[:, PHASE] = rows[firsts, PHASE]
        self.spans = np.concatenate((self.spans[:-1], joined))[-SPANS_KEPT:]

    def during(self, moments: Times) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Of these moments, those that the kept spans tell of: their number, and how many of them fell into
        each phase and into each component.

        Where in a step a component ran is not known: a moment counts for each by its share of the step.
        """
        phases, components = np.zeros(len(PHASES)), np.zeros(len(COMPONENTS))
        if not len(self.spans):
            return 0, phases, components
        told = moments[(moments >= self.spans[0, START]) & (moments < self.spans[-1, END])]
        spans = self.spans[np.searchsorted(self.spans[:, END], told, side="right")]
        spans = spans[spans[:, START] <= told]
        lengths = spans[:, END] - spans[:, START]
        shares = np.round(spans[:, SECONDS] / lengths, DIGITS)
        phases += np.bincount(spans[:, PHASE].astype(np.intp), shares, minlength=len(PHASES))
        components += (spans[:, FIRST_COMPONENT:] / lengths[:, None]).sum(axis=0)
        return len(told), phases, components
