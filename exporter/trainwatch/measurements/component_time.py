"""How much of its step time each rank spent in one component, over all phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwatch.measurements.measure import Measure, Measurement, Views
from trainwatch.measurements.state import Scans, State
from trainwatch.runs.model import COMPONENTS, Steps, Times


class ComponentCounts(NamedTuple):
    """Steps, and seconds in all of them and in the component; a window is the difference of two of these."""

    steps: Times
    step_seconds: Times
    seconds: Times
    new: NDArray[np.bool_] | None = None  # scans that saw a new step; None: all

    def __sub__(self, earlier: ComponentCounts) -> ComponentCounts:
        return ComponentCounts(
            self.steps - earlier.steps,
            self.step_seconds - earlier.step_seconds,
            self.seconds - earlier.seconds,
        )

    @property
    def ratio(self) -> Times:
        """Returns the component's share of the step time, NaN where there is none."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.divide(self.seconds, self.step_seconds))


class RankComponent(State):
    """The sums of one rank."""

    def __init__(self) -> None:
        self.steps = self.at_last_scan = 0
        self.step_seconds = self.seconds = 0.0

    def add(self, durations: Times, seconds: Times, scans: Scans) -> ComponentCounts:
        spent = self.seconds + np.concatenate(([0.0], np.cumsum(seconds)))
        took = self.step_seconds + np.concatenate(([0.0], np.cumsum(durations)))
        so_far = self.steps + scans
        new = np.diff(so_far, prepend=self.at_last_scan) > 0
        if len(scans):
            self.at_last_scan = int(so_far[-1])
        self.steps += len(durations)
        self.seconds, self.step_seconds = float(spent[-1]), float(took[-1])
        return ComponentCounts(so_far.astype(float), took[scans], spent[scans], new)

    @property
    def percent(self) -> float:
        """Returns the component's share of the step time, in percent; 0 without steps."""
        return 100 * self.seconds / self.step_seconds if self.step_seconds else 0.0


class RankComponents(Measurement[ComponentCounts]):
    """One component of the ranks of a node; subjects are ranks."""

    def __init__(self, component: int) -> None:
        self.component = component
        self.ranks: dict[int, RankComponent] = {}

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[ComponentCounts]:
        rank = self.ranks.setdefault(steps.rank, RankComponent())
        return [(steps.rank, rank.add(steps.durations, steps.components[:, self.component], scans))]


@dataclass(frozen=True)
class ComponentTime(Measure[RankComponents]):
    """Asks for the time of a component of steps, such as "data_wait"."""

    component: str

    def new(self) -> RankComponents:
        return RankComponents(COMPONENTS.index(self.component))
