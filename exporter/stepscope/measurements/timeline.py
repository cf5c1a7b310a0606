"""Measures what the ranks of a node did over time: seconds per phase and of waiting, and marked steps."""

from dataclasses import dataclass, field
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.heatmap import MOST_COLUMNS, SHORTEST_COLUMN
from stepscope.measurements.measure import Measure, Measurement, Views
from stepscope.measurements.state import Scans, State
from stepscope.runs.model import COMPONENTS, PHASES, Steps, Times

MOST_MARKS = 512
DATA_WAIT = COMPONENTS.index("data_wait")
WIDTH = len(PHASES) + 1  # of a column: seconds of each phase, then those of waiting for data


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

    Seconds are by column, summed over ranks; waiting is spread evenly over its step. Every `every`-th step of
    `rank` is marked.
    """

    node: str
    start: float  # of the first column, seconds since the epoch
    column_seconds: float
    ranks: int
    phase_seconds: dict[str, list[float]]
    rank: int
    every: int
    marks: list[StepMark]
    waiting_seconds: list[float] = field(default_factory=list)  # for data; 0 also where it was not timed


class StepsOfNode(Measurement[None]):
    """Columns are numbered from the epoch; when there are too many, each two neighbours are merged."""

    def __init__(self) -> None:
        self.column_seconds = SHORTEST_COLUMN
        self.first = 0  # the number of the first column
        self.seconds: NDArray[np.float64] = np.zeros((0, WIDTH))  # (columns, WIDTH), all ranks
        self.marks: dict[int, _Marks] = {}  # by rank

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[None]:
        if not len(steps):
            return ()
        self.marks.setdefault(steps.rank, _Marks()).add(steps)
        self._reach(float(steps.starts.min()), float(steps.ends.max()))
        columns = np.arange(self.first, self.first + len(self.seconds) + 1, dtype=np.float64)
        seconds = self.seconds.copy()
        edges = columns * self.column_seconds
        for phase in np.unique(steps.phases):
            its = steps.phases == phase
            durations = steps.durations[its]
            seconds[:, phase] += _seconds_between(edges, steps.starts[its], durations, durations)
        waits = np.minimum(steps.components[:, DATA_WAIT], steps.durations)
        seconds[:, -1] += _seconds_between(edges, steps.starts, steps.durations, waits)
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
            waiting_seconds=np.round(self.seconds[:, -1], 3).tolist(),
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
        self.seconds = padded.reshape(-1, 2, WIDTH).sum(axis=1)


TIMELINE = Measure(StepsOfNode)


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


def _seconds_between(edges: Times, starts: Times, durations: Times, amounts: Times) -> Times:
    """Returns (edges - 1,): the part of `amounts` seconds of steps between each two edges.

    Each amount is spread evenly over its step. Steps do not overlap.
    """
    order = np.argsort(starts, kind="stable")
    starts, durations, amounts = starts[order], durations[order], amounts[order]
    moments = np.maximum.accumulate(np.column_stack((starts, starts + durations)).ravel())
    done = np.repeat(np.cumsum(amounts), 2)
    done[0::2] -= amounts
    seconds: Times = np.diff(np.interp(edges, moments, done))
    return seconds
