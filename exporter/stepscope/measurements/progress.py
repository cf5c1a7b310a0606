"""How far a node has come: when it was sampled, when it made steps, and how long these waited for data."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.measure import Measure, Measurement, Views
from stepscope.measurements.sketch import SizeSketch
from stepscope.measurements.state import Scans
from stepscope.runs.model import COMPONENTS, NodeSamples, RankFacts, Steps, Times

RECORD_MISSING = 1.0  # seconds by which the first record is later than the first step
DATA_WAIT = COMPONENTS.index("data_wait")


class Initialization(NamedTuple):
    """Seconds from a run's start until the first step had finished, or until then; elementwise."""

    seconds: Times
    over: NDArray[np.bool_]
    past: NDArray[np.bool_] | bool = False  # it was over for longer than live alerts look back
    of_run: Times | float = 0.0  # the share (0..1) of the run, known once that has ended


class NodeProgress(Measurement[None]):
    """Eight bytes per scan are kept, nothing else grows."""

    def __init__(self) -> None:
        self.scan_times: Times = np.empty(0)  # of the last sample that each scan sees
        self.first_sample = self.last_time = np.nan
        self.first_start = self.first_end = np.inf  # of steps
        self.last_start = self.last_end = -np.inf
        self.data_waits = SizeSketch()  # seconds of each step

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[None]:
        times = np.concatenate(([self.last_time], samples.times))
        self.scan_times = np.concatenate((self.scan_times, times[scans]))
        self.last_time = float(times[-1])
        if np.isnan(self.first_sample):
            self.first_sample = float(times[min(1, len(times) - 1)])
        return ()

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[None]:
        if len(steps):
            self.first_start = min(self.first_start, float(steps.starts.min()))
            self.last_start = max(self.last_start, float(steps.starts.max()))
            self.first_end = min(self.first_end, float(steps.ends.min()))
            self.last_end = max(self.last_end, float(steps.ends.max()))
            self.data_waits.add(steps.components[:, DATA_WAIT])
        return ()

    @property
    def stepped(self) -> bool:
        return self.last_end > -np.inf

    def began(self, processes: Sequence[RankFacts], run_start: float | None) -> float:
        """Returns when the run's processes on the node began, or when it was first heard of."""
        begins = [one.start for one in processes] if run_start is None else [run_start]
        return min(begins or known(self.first_sample, self.first_start), default=0.0)

    def initialization(
        self, start: float, processes: Sequence[RankFacts], end: float | None
    ) -> Initialization:
        """Returns what each scan saw, and last what is known now. `end`: of the run, if it has ended."""
        # Steps that were counted, but whose records nobody read in time, have finished too.
        counted = [
            one.first_step_start
            for one in processes
            if one.first_step_start is not None and any(one.steps.values())
        ]
        # If the first step's record was read, it says when that step had finished: it may have compiled.
        counted = [start for start in counted if start < self.first_start - RECORD_MISSING]
        first_end = min([self.first_end, *counted])
        now = max(known(self.last_time, self.last_end), default=start)
        moments = np.append(self.scan_times, now if np.isinf(first_end) else max(now, first_end))
        seconds, of_run = np.minimum(moments, first_end) - start, np.zeros(len(moments))
        if end is not None and end > start:
            of_run[-1] = min(seconds[-1] / (end - start), 1.0)
        return Initialization(seconds, moments >= first_end, of_run=of_run)


PROGRESS = Measure(NodeProgress)


def known(*times: float) -> list[float]:
    """Returns the times that are finite."""
    return [time for time in times if np.isfinite(time)]
