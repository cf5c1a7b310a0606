"""Samples in which a GPU starves while a core is at its limit."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepscope.exporter.sampling.sample_tally import LEAST_USE
from stepscope.measurements.measure import Measurement, Portion, Views
from stepscope.measurements.recent_steps import RecentSteps
from stepscope.measurements.state import Scans
from stepscope.runs.model import NodeSamples, Steps

# This many of the last starved samples of a node are kept with their times; the counts cover all of them.
SAMPLES_LISTED = 10_000

Numbers = NDArray[np.float64]


class StarvedSamples(Measurement[Portion]):
    """The samples of a node with any core above `cause_above` and any GPU below `gpu_below`, both ratios.

    `cause`: "cpu" compares the utilisation of cores, "io" their I/O wait.
    """

    def __init__(self, cause: Literal["cpu", "io"], cause_above: float, gpu_below: float) -> None:
        self.cause, self.cause_above, self.gpu_below = cause, cause_above, gpu_below
        self.samples = self.starved = self.low_gpu = 0
        self.gpu_seen = self.core_seen = False
        self.last: Numbers = np.empty((0, 3))  # time, GPUs and cores of the last starved samples
        self.ranks: dict[int, RecentSteps] = {}
        # (n,) of the last block: with a low GPU, and those counted as starved.
        self.low_in_block: NDArray[np.bool_] = np.empty(0, bool)
        self.starved_in_block: NDArray[np.bool_] = np.empty(0, bool)

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[Portion]:
        cores = samples.cpu if self.cause == "cpu" else samples.io_wait
        self.gpu_seen = self.gpu_seen or not np.isnan(samples.gpu).all()
        self.core_seen = self.core_seen or not np.isnan(cores).all()
        low, high = samples.gpu < self.gpu_below, cores > self.cause_above
        # A core may be busy for others: what the run itself does counts if that is next to nothing.
        own = samples.of_run("cpu_cores" if self.cause == "cpu" else "io_waiting_ratio")
        by_others = (own < LEAST_USE) & ~(own > self.cause_above)
        low_any = low.any(axis=1)
        starved = low_any & high.any(axis=1) & ~by_others
        self.low_in_block, self.starved_in_block = np.asarray(low_any), np.asarray(starved)
        until = self.starved + np.concatenate(([0], np.cumsum(starved)))
        so_far = (self.samples + scans).astype(float)
        view = Portion(so_far, so_far, until[scans].astype(float))
        self.samples += len(samples)
        self.starved = int(until[-1])
        self.low_gpu += int(np.count_nonzero(low_any))
        listed = (samples.times[starved], low[starved].sum(axis=1), high[starved].sum(axis=1))
        self.last = np.concatenate((self.last, np.column_stack(listed)))[-SAMPLES_LISTED:]
        return [("", view)]

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[Portion]:
        self.ranks.setdefault(steps.rank, RecentSteps()).add(steps)
        return ()

    @property
    def percent(self) -> float:
        """Returns the starved samples as a percentage of all samples so far."""
        return 100 * self.starved / self.samples if self.samples else 0.0
