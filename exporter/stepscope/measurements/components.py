"""Measures the seconds that the steps of each phase spent in each component."""

import numpy as np

from stepscope.measurements.measure import Measure, Measurement, Views
from stepscope.measurements.state import Scans
from stepscope.runs.model import COMPONENTS, PHASES, Steps, Times

COMPILE = COMPONENTS.index("compile")


class ComponentsByPhase(Measurement[None]):
    """The sums over the recorded steps of a node."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[int, str], Times] = {}  # by rank and phase, (len(COMPONENTS),)
        self.compiled: dict[int, int] = {}  # by rank: steps in which something was compiled

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[None]:
        compiled = int(np.count_nonzero(steps.components[:, COMPILE]))
        self.compiled[steps.rank] = self.compiled.get(steps.rank, 0) + compiled
        for phase in np.unique(steps.phases):
            key = steps.rank, PHASES[phase]
            known = self.seconds.get(key, np.zeros(len(COMPONENTS)))
            self.seconds[key] = known + steps.components[steps.phases == phase].sum(axis=0)
        return ()


COMPONENTS_BY_PHASE = Measure(ComponentsByPhase)
