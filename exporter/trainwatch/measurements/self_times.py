"""The time that ranks compute by themselves: training steps without communication, in which ranks wait.

Step times of ranks that wait for each other are all those of the slowest; self times are their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.measure import Measure, Measurement, Views
from trainwatch.measurements.state import Scans, State
from trainwatch.runs.model import COMPONENTS, PHASES, Steps, Times

COMMUNICATION = COMPONENTS.index("communication")
TRAIN = PHASES.index("train")
SLICE = 10  # steps, of which the mean is kept: 1.6 bytes per step
_OF_A_PROCESS = 1 << 40  # slices; the numbers of the slices of a rank's second process begin here
_PIECE = 4096  # slices


class SelfTimes(State):
    """The mean self time of each `SLICE` training steps of one rank, by their numbers."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of all steps
        self.process = 0  # step numbers restart with each process of a rank
        self.last_number = -1
        self.whole: list[Times] = []  # rows: the slice's number, its mean; pieces of bounded length
        self.recent: Times = np.empty((0, 2))
        self.open: Times = np.empty((0, 3))  # at most one row: the last slice's number, sum and steps

    def add(self, numbers: NDArray[np.int64], own: Times) -> None:
        self.seconds += float(own.sum())
        anew = np.cumsum(np.diff(numbers, prepend=self.last_number) <= 0)
        ids = (self.process + anew) * _OF_A_PROCESS + numbers // SLICE
        self.process += int(anew[-1])
        self.last_number = int(numbers[-1])
        starts = np.flatnonzero(np.diff(ids, prepend=-1))
        found = np.column_stack(
            (ids[starts], np.add.reduceat(own, starts), np.diff(starts, append=len(own)))
        ).astype(np.float64)
        if len(self.open) and self.open[0, 0] == found[0, 0]:
            found[0, 1:] += self.open[0, 1:]
        else:
            found = np.concatenate((self.open, found))
        self.open = found[-1:]
        closed = np.column_stack((found[:-1, 0], found[:-1, 1] / found[:-1, 2]))
        self.recent = np.concatenate((self.recent, closed))
        if len(self.recent) >= _PIECE:
            self.whole.append(self.recent)
            self.recent = np.empty((0, 2))

    def means(self) -> Times:
        """Returns rows of a slice's number and its mean; the last slice only once it has ended."""
        number, total, steps = self.open[0]
        ended = self.last_number % SLICE == SLICE - 1
        last = [[number, total / steps]] if ended else np.empty((0, 2))
        return np.concatenate((*self.whole, self.recent, last))


class NodeSelfTimes(Measurement[None]):
    """The self times of the ranks of a node."""

    def __init__(self) -> None:
        self.ranks: dict[int, SelfTimes] = {}

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[None]:
        trained = steps.phases == TRAIN
        if trained.any():
            own = np.maximum(steps.durations - steps.components[:, COMMUNICATION], 0)
            self.ranks.setdefault(steps.rank, SelfTimes()).add(steps.numbers[trained], own[trained])
        return ()


@dataclass(frozen=True)
class SelfTime(Measure[NodeSelfTimes]):
    """Asks for the self times of ranks."""

    def new(self) -> NodeSelfTimes:
        return NodeSelfTimes()


class Peers(NamedTuple):
    """Ranks compared with their peers: elementwise, of ranks or of (ranks, windows)."""

    ratio: Times  # the peers' self time as a share of the rank's own; NaN without peers
    slowest: Times  # the share of the window in which the rank was the slowest


class PeersByWindow:
    """All ranks compared with the median of their peers, window by window: arrays of (ranks, windows)."""

    def __init__(self, ranks: Sequence[SelfTimes], window: int) -> None:
        slices = -(-window // SLICE)
        self.steps = slices * SLICE  # of a window
        table = _table([rank.means() for rank in ranks], slices)
        table[np.isnan(table).any(axis=2)] = np.nan  # only ranks that have all of a window take part in it
        slowest = table == np.fmax.reduce(table, axis=0) if len(ranks) else np.zeros(table.shape, bool)
        self.own: Times = table.mean(axis=2)
        self.peers = _median_of_others(self.own)
        with np.errstate(invalid="ignore", divide="ignore"):
            self.view = Peers(self.peers / self.own, slowest.mean(axis=2))


def _table(means: list[Times], slices: int) -> Times:
    """Returns (ranks, windows, slices of a window), NaN where a rank has no such slice."""
    numbers = np.concatenate([rank[:, 0] for rank in means] or [np.empty(0)]).astype(np.int64)
    window_of = numbers // _OF_A_PROCESS * _OF_A_PROCESS + numbers % _OF_A_PROCESS // slices
    windows, places = np.unique(window_of, return_inverse=True)
    table = np.full((len(means), len(windows), slices), np.nan)
    rows = np.repeat(np.arange(len(means)), [len(rank) for rank in means])
    table[rows, places, numbers % _OF_A_PROCESS % slices] = np.concatenate(
        [rank[:, 1] for rank in means] or [np.empty(0)]
    )
    return table


def _median_of_others(values: Times) -> Times:
    """Returns for each value of a column the median of the others in the column; NaN is no value."""
    places = values.argsort(axis=0).argsort(axis=0)  # NaN come last
    ordered = np.sort(values, axis=0)
    others = (~np.isnan(values)).sum(axis=0) - 1
    low, high = np.maximum((others - 1) // 2, 0), np.maximum(others // 2, 0)
    columns = np.arange(values.shape[1])

    def other(index: NDArray[np.intp]) -> Times:
        """Returns the other at this place in the order of the others: after the value itself one further."""
        found = index + (index >= places)
        return ordered[np.minimum(found, max(len(values) - 1, 0)), columns]

    if not values.size:
        return values
    medians: Times = (other(low) + other(high)) / 2
    medians[np.isnan(values) | (others < 1)] = np.nan
    return medians
