"""Finds what a rank did at given moments, from its last steps."""

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.state import State
from stepscope.runs.model import COMPONENTS, PHASES, Steps, Times

# Steps that end within the same half second, the time between two samples, are kept as one span: a reading
# of a core or a GPU is a mean over about that time.
SPAN_SECONDS = 0.5
# Times since the epoch are precise to a quarter of a microsecond, and shares of half a second to this.
DIGITS = 5
SPANS_KEPT = 12_000  # the last 100 minutes or more of uninterrupted steps

START, END, PHASE, SECONDS, FIRST_COMPONENT = range(5)  # columns


class RecentSteps(State):
    """The last spans of one rank: consecutive steps of one phase that end within the same half second.

    Each step of half a second or more has its own span.
    """

    def __init__(self) -> None:
        self.spans: Times = np.empty((0, FIRST_COMPONENT + len(COMPONENTS)))

    def add(self, steps: Steps) -> None:
        if not len(steps):
            return
        ends = steps.starts + steps.durations
        added = np.column_stack((steps.starts, ends, steps.phases, steps.durations, steps.components))
        rows = np.concatenate((self.spans[-1:], added))  # the last span may continue
        halves = np.floor(rows[:, END] / SPAN_SECONDS)
        changes = (np.diff(halves) != 0) | (np.diff(rows[:, PHASE]) != 0)
        firsts = np.flatnonzero(np.concatenate(([True], changes)))
        joined = np.add.reduceat(rows, firsts, axis=0)
        joined[:, START] = np.minimum.reduceat(rows[:, START], firsts)
        joined[:, END] = np.maximum.reduceat(rows[:, END], firsts)
        joined[:, PHASE] = rows[firsts, PHASE]
        self.spans = np.concatenate((self.spans[:-1], joined))[-SPANS_KEPT:]

    def during(self, moments: Times) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Returns the number of moments in the kept time, and how many were in each phase and component.

        The order of components in a step is unknown, so a moment counts for each by its share of the step.
        """
        phases, components = np.zeros(len(PHASES)), np.zeros(len(COMPONENTS))
        if not len(self.spans):
            return 0, phases, components
        known = moments[(moments >= self.spans[0, START]) & (moments < self.spans[-1, END])]
        spans = self.spans[np.searchsorted(self.spans[:, END], known, side="right")]
        spans = spans[spans[:, START] <= known]
        lengths = spans[:, END] - spans[:, START]
        shares = np.round(spans[:, SECONDS] / lengths, DIGITS)
        phases += np.bincount(spans[:, PHASE].astype(np.intp), shares, minlength=len(PHASES))
        components += (spans[:, FIRST_COMPONENT:] / lengths[:, None]).sum(axis=0)
        return len(known), phases, components
