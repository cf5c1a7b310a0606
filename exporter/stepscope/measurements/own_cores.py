"""The cores that a run may use: who used them, how long the run waited for one, and what its limit took."""

from typing import NamedTuple

import numpy as np

from stepscope.measurements.measure import Measure, Measurement, Portion, PortionSoFar, Views
from stepscope.measurements.state import Last, Scans, increases
from stepscope.runs.model import NodeSamples, Times

FULL = 0.9  # of the cores


class Contention(NamedTuple):
    """Counts since the run began, (scans,) each; a window is the difference of two. Seconds are of cores."""

    seen: Times  # samples with known cores of the run
    seconds: Times  # of the run's time in these samples
    own: Times  # CPU time of the run, and of everything else on its cores
    others: Times
    ran: Times  # time in which the main threads of the run had a core, and in which they waited for one
    waited: Times
    data_waits: Times  # seconds for which the rank that waited longest for data did so; 0 in recordings

    def moments(self) -> Times:
        """Returns (scans, fields) numbers, from whose differences `of` makes the view of a window."""
        return np.column_stack(self)

    def of(self, moments: Times) -> "Contention":
        return Contention(*moments.T)

    @property
    def others_share(self) -> Times:
        """Returns the share of others in what was used of the run's cores."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.others / (self.own + self.others))

    @property
    def waited_for_others(self) -> Times:
        """Returns the share of the time in which main threads could run that they waited for others.

        Waits count by the share of others in the use of the cores.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            waits = self.waited / (self.ran + self.waited)
        return np.asarray(waits * self.others_share)

    @property
    def cost(self) -> Times:
        """Returns for how much of the run's time main threads, taken together, waited for others.

        A loader's workers are taken to wait as main threads do. Others cause that share of waits for data.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            own = self.waited * self.others_share
            return np.asarray((own + self.waited_for_others * self.data_waits) / self.seconds)


class OwnCores(Measurement[Contention]):
    """The use of the cores of one node on which the run's processes may run."""

    def __init__(self) -> None:
        self.so_far = np.zeros(len(Contention._fields))
        self.seconds = 0.0  # of the samples that are counted
        self.taken = 0.0  # CPU time of everything else while hardly a core of the run was free
        self.allowed = self.limit = np.nan  # cores, the last that were read; the limit is NaN without one
        self._last = [Last() for _ in _COUNTERS]
        self._last_time = Last()

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[Contention]:
        there = ~np.isnan(samples.of_run("other_cpu_seconds"))
        elapsed = np.zeros(len(samples))
        elapsed[there] = increases(samples.times[there], self._last_time, after_reset=False)
        gains = [there.astype(float), elapsed]
        for name, last in zip(_COUNTERS, self._last, strict=True):
            gains.append(_gains(samples.of_run(name), last))
        gains.append(np.zeros(len(samples)))
        until = self.so_far + np.concatenate((np.zeros((1, len(gains))), np.cumsum(gains, axis=1).T))
        self.so_far = until[-1]
        self.seconds += float(elapsed.sum())
        _, elapsed, own, others, *_ = (gain[there] for gain in gains)
        full = own + others >= FULL * elapsed * samples.of_run("allowed_cores")[there]
        self.taken += float(others[full].sum())
        known = ~np.isnan(allowed := samples.of_run("allowed_cores"))
        if known.any():
            self.allowed = float(allowed[known][-1])
            self.limit = float(samples.of_run("cpu_limit_cores")[known][-1])
        return [("", Contention(*until[scans].T))]

    @property
    def total(self) -> Contention:
        """Returns the counts of the whole run so far."""
        return Contention(*self.so_far[:, None])

    @property
    def own_cores(self) -> float:
        """Returns how many cores the run used on average; NaN if unknown."""
        return float(self.total.own[0]) / self.seconds if self.seconds else np.nan

    @property
    def others_cores(self) -> float:
        """Returns how many of the run's cores everything else used on average; NaN if unknown."""
        return float(self.total.others[0]) / self.seconds if self.seconds else np.nan

    @property
    def waits_because_of_others(self) -> float:
        """Returns the share of its waits for a core that the run would not have if it were alone.

        Alone, it waits only for cores that it wants beyond those that it may use.
        """
        ran, waited = float(self.total.ran[0]), float(self.total.waited[0])
        if not waited or not self.own_cores > 0:
            return 0.0
        share = waited / (ran + waited)
        wanted = self.own_cores / (1 - share) if share < 1 else np.inf
        alone = max(0.0, 1 - self.allowed / wanted)
        return max(0.0, 1 - alone / share)


class LimitedCores(Measurement[Portion]):
    """The seconds of cores that a CPU limit grants, and those for which it stopped the run's cgroup."""

    def __init__(self) -> None:
        self.stopped = PortionSoFar()
        self.periods = PortionSoFar()  # in which the limit was enforced, and those in which it was used up
        self.limit = np.nan
        self.seconds = 0.0  # with a limit
        self._last_time = Last()
        self._last = {
            name: Last() for name in ("cpu_throttled_seconds", "cpu_periods", "cpu_throttled_periods")
        }

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[Portion]:
        limit, stopped = samples.of_run("cpu_limit_cores"), samples.of_run("cpu_throttled_seconds")
        there = ~np.isnan(limit) & ~np.isnan(stopped)
        ends = np.concatenate(([0], np.cumsum(there)))[scans]
        elapsed = increases(samples.times[there], self._last_time, after_reset=False)
        gains = {name: _gains(samples.of_run(name), last)[there] for name, last in self._last.items()}
        self.periods.add(gains["cpu_periods"], gains["cpu_throttled_periods"], ends)
        self.seconds += float(elapsed.sum())
        if there.any():
            self.limit = float(limit[there][-1])
        return [("", self.stopped.add(limit[there] * elapsed, gains["cpu_throttled_seconds"], ends))]


# The counters of Contention, in its order after `seconds`.
_COUNTERS = (
    "cpu_seconds",
    "other_cpu_seconds",
    "main_threads_ran_seconds",
    "main_threads_waited_seconds",
)

OWN_CORES = Measure(OwnCores)
LIMITED_CORES = Measure(LimitedCores)


def _gains(counter: Times, last: Last) -> Times:
    """Returns (n,) the gain of each reading over the one before; 0 where it was not read."""
    gains, there = np.zeros(len(counter)), ~np.isnan(counter)
    gains[there] = increases(counter[there], last, after_reset=False)
    return gains
