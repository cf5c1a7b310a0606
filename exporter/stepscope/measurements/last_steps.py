"""Measures the last finished step of each rank: how far training was when its run ended."""

from dataclasses import dataclass

import numpy as np

from stepscope.measurements.measure import Measure, Measurement, Views
from stepscope.measurements.state import Scans
from stepscope.runs.model import PHASES, Steps


@dataclass(frozen=True)
class LastStep:
    """The last finished step of a rank; `end` is in seconds since the epoch."""

    node: str
    rank: int
    phase: str
    number: int
    end: float


class LastSteps(Measurement[None]):
    def __init__(self) -> None:
        self.ends: dict[int, tuple[float, int, str]] = {}  # by rank: the end, number and phase

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[None]:
        if len(steps):
            row = int(np.argmax(steps.ends))
            last = float(steps.ends[row]), int(steps.numbers[row]), PHASES[steps.phases[row]]
            self.ends[steps.rank] = max(last, self.ends.get(steps.rank, last))
        return ()

    def of_node(self, node: str) -> list[LastStep]:
        return [LastStep(node, rank, phase, number, end) for rank, (end, number, phase) in self.ends.items()]


LAST_STEPS = Measure(LastSteps)
