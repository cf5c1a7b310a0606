"""Samples in which a GPU starves while a core is at its limit, and what ranks did then, by their steps."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepscope.exporter.sampling.sample_tally import LEAST_USE
from stepscope.measurements.measure import Measurement, Portion, Views
from stepscope.measurements.state import Scans, State
from stepscope.runs.model import COMPONENTS, PHASES, NodeSamples, Steps, Times

# This many of the last starved samples of a node are kept with their times; the counts cover all of them.
SAMPLES_LISTED = 10_000

# Steps that end within the same half second, the time between two samples, are kept as one span: a reading
# of a core or a GPU is a mean over about that time.
SPAN_SECONDS = 0.5
# Times since the epoch are precise to a quarter of a microsecond, and shares of half a second to this.
DIGITS = 5
SPANS_KEPT = 12_000  # the last 100 minutes or more of uninterrupted steps

START, END, PHASE, SECONDS, FIRST_COMPONENT = range(5)  # columns


class StarvedSamples(Measurement[Portion]):
    """The samples of a node with any core above `cause_above` and any GPU below `gpu_below`, both ratios.

    `cause`: "cpu" compares the utilisation of cores, "io" their I/O wait.
    """

    def __init__(self, cause: Literal["cpu", "io"], cause_above: float, gpu_below: float) -> None:
        self.cause, self.cause_above, self.gpu_below = cause, cause_above, gpu_below
        self.samples = self.starved = self.low_gpu = 0
        self.gpu_seen = self.core_seen = False
        self.last: Times = np.empty((0, 3))  # time, GPUs and cores of the last starved samples
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


class RecentSteps(State):
    """The last spans of one rank: consecutive steps of one phase that end within the same half second.

    Each step of half a second or more has its own span.
    """

    def __init__(self) -> None:
        self.spans: Times = np.empty((0, FIRST_COMPONENT + len(COMPONENTS)))

    def add(self, steps: Steps) -> None:
        if not len(steps):
            return
        added = np.column_stack((steps.starts, steps.ends, steps.phases, steps.durations, steps.components))
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
