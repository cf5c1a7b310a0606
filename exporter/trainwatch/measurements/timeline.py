"""Measures what the ranks of a node did over time: seconds per phase and column, and some marked steps."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.heatmap import MOST_COLUMNS, SHORTEST_COLUMN
from trainwatch.measurements.measure import Measure, Measurement, Views
from trainwatch.measurements.state import Scans, State
from trainwatch.runs.model import PHASES, Steps, Times

MOST_MARKS = 512


@dataclass(frozen=True)
class StepMark:
    """A marked step, which shows how far the run was. Times are seconds; `start` is since the epoch."""

    number: int
    phase: str
    start: float
    seconds: float


@dataclass(frozen=True)
class StepTimeline:
    """The phases of the ranks of one node over time, in a limited number of columns.

    `phase_seconds` are by column, summed over ranks. Every `every`-th step of `rank` is marked.
    """

    node: str
    start: float  # of the first column, seconds since the epoch
    column_seconds: float
    ranks: int
    phase_seconds: dict[str, list[float]]
    rank: int
    every: int
    marks: list[StepMark]


class StepsOfNode(Measurement[None]):
    """Columns are numbered from the epoch; when there are too many, each two neighbours are merged."""

    def __init__(self) -> None:
        self.column_seconds = SHORTEST_COLUMN
        self.first = 0  # the number of the first column
        self.seconds: NDArray[np.float64] = np.zeros((0, len(PHASES)))  # (columns, phases), all ranks
        self.marks: dict[int, _Marks] = {}  # by rank

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[None]:
        if not len(steps):
            return ()
        self.marks.setdefault(steps.rank, _Marks()).add(steps)
        ends = steps.starts + steps.durations
        self._reach(float(steps.starts.min()), float(ends.max()))
        columns = np.arange(self.first, self.first + len(self.seconds) + 1, dtype=np.float64)
        seconds = self.seconds.copy()
        edges = columns * self.column_seconds
        for phase in np.unique(steps.phases):
            its = steps.phases == phase
            seconds[:, phase] += _seconds_between(edges, steps.starts[its], steps.durations[its])
        self.seconds = seconds
        return ()

    def timeline(self, node: str) -> StepTimeline | None:
        """Returns the timeline, or None if no step was recorded."""
        if not self.marks:
            return None
        rank = min(self.marks)
        return StepTimeline(
            node=node,
            start=self.first * self.column_seconds,
            column_seconds=self.column_seconds,
            ranks=len(self.marks),
            phase_seconds={
                phase: np.round(self.seconds[:, index], 3).tolist()
                for index, phase in enumerate(PHASES)
                if self.seconds[:, index].any()
            },
            rank=rank,
            every=self.marks[rank].every,
            marks=self.marks[rank].steps(),
        )

    def _reach(self, start: float, end: float) -> None:
        """Adds the missing columns from `start` to `end`, and merges columns until there is room."""
        while True:
            low, high = floor(start / self.column_seconds), ceil(end / self.column_seconds)
            high = max(high, low + 1)
            if len(self.seconds):
                low, high = min(low, self.first), max(high, self.first + len(self.seconds))
            if high - low <= MOST_COLUMNS:
                break
            self._halve()
        before = self.first - low if len(self.seconds) else 0
        after = high - low - before - len(self.seconds)
        self.seconds = np.pad(self.seconds, ((before, after), (0, 0)))
        self.first = low

    def _halve(self) -> None:
        self.column_seconds *= 2
        if not len(self.seconds):
            return
        odd = self.first % 2
        padded = np.pad(self.seconds, ((odd, (odd + len(self.seconds)) % 2), (0, 0)))
        self.first //= 2
        self.seconds = padded.reshape(-1, 2, len(PHASES)).sum(axis=1)


@dataclass(frozen=True)
class Timeline(Measure[StepsOfNode]):
    """Asks for what the ranks did over time."""

    def new(self) -> StepsOfNode:
        return StepsOfNode()


class _Marks(State):
    """Every `every`-th step of one rank: all steps at first, and never more than `MOST_MARKS`."""

    def __init__(self) -> None:
        self.every = 1
        self.count = 0
        self.rows: Times = np.empty((0, 4))  # number, phase, start, seconds

    def add(self, steps: Steps) -> None:
        kept = np.flatnonzero((self.count + np.arange(len(steps))) % self.every == 0)
        self.count += len(steps)
        columns = (steps.numbers, steps.phases, steps.starts, steps.durations)
        self.rows = np.concatenate((self.rows, np.column_stack([column[kept] for column in columns])))
        while len(self.rows) > MOST_MARKS:
            self.rows = self.rows[::2]
            self.every *= 2

    def steps(self) -> list[StepMark]:
        return [
            StepMark(int(number), PHASES[int(phase)], start, seconds)
            for number, phase, start, seconds in self.rows.tolist()
        ]


def _seconds_between(edges: Times, starts: Times, durations: Times) -> Times:
    """Returns (edges - 1,): the seconds of steps between each two edges; steps do not overlap."""
    order = np.argsort(starts, kind="stable")
    starts, durations = starts[order], durations[order]
    moments = np.maximum.accumulate(np.column_stack((starts, starts + durations)).ravel())
    done = np.repeat(np.cumsum(durations), 2)
    done[0::2] -= durations
    seconds: Times = np.diff(np.interp(edges, moments, done))
    return seconds
