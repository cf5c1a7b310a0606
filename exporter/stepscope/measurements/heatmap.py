"""Averages utilisation, GPU memory and bottlenecks over time, into a limited number of columns."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.starved import StarvedSamples
from stepscope.measurements.state import Last, State, increases
from stepscope.runs.model import NodeSamples, RunFacts, gpu_labels

MOST_COLUMNS = 600
SHORTEST_COLUMN = 1.0  # seconds
LONGEST_STRETCH = 10.0  # seconds between two readings of the use of cores; after that, nothing was used


@dataclass(frozen=True)
class Heatmap:
    """Utilisation of one node over time, averaged into columns so that a day still fits a page.

    `rows` are labels ("GPU 0", "CPU 17"), GPUs first. `values[row][column]` is in percent, None without
    samples. `times` are the start of each column, seconds since the epoch. `gpu_memory` is the memory in use,
    one row per GPU. `starved` contains, for "cpu" and "io", the percentage of each column's samples that
    CPUBottleneck and IOBottleneck count. `core_use` is the use of the cores that the run may use, by its
    "own" processes and by "others", in percent of them. It is empty if that was not recorded.
    """

    node: str
    rows: list[str]
    times: list[float]
    column_seconds: float
    values: list[list[int | None]]
    gpu_memory: list[list[int | None]] = field(default_factory=list)
    starved: dict[str, list[int | None]] = field(default_factory=dict)
    core_use: dict[str, list[int | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class LowGpuSamples:
    """The samples of a node in which a GPU was low, by the state of the cores.

    `cpu`, `io` and `both` are those that only CPUBottleneck, only IOBottleneck, and both rules count.
    """

    node: str
    snapshots: int  # all
    low: int
    cpu: int
    io: int
    both: int


class HeatmapOfNode(State):
    """Sums and counts of readings by column and device. When the columns are full, neighbours are merged."""

    def __init__(self) -> None:
        self.origin: float | None = None
        self.column_seconds = SHORTEST_COLUMN
        self.gpus = _Grid()
        self.cores = _Grid()
        self.gpu_memory = _Grid()
        self.starved = _Grid()  # by CPU, by I/O
        self.core_use = _Grid()  # by the run, by others
        self.core_shares = _CoreShares()
        self.low: NDArray[np.int64] = np.zeros(5, np.int64)  # samples: all, low, by CPU, by I/O, by both

    def observe(self, samples: NodeSamples, by_cpu: StarvedSamples, by_io: StarvedSamples) -> None:
        """Adds samples, which `by_cpu` and `by_io` have just observed."""
        if not len(samples):
            return
        if self.origin is None:
            self.origin = float(np.floor(samples.times[0]))
        offsets = np.maximum.accumulate(np.maximum(samples.times - self.origin, 0))
        while offsets[-1] >= MOST_COLUMNS * self.column_seconds:
            self.column_seconds *= 2
            for grid in (self.gpus, self.cores, self.gpu_memory, self.starved, self.core_use):
                grid.halve()
        columns = (offsets / self.column_seconds).astype(np.intp)
        self.gpus.add(columns, samples.gpu)
        self.cores.add(columns, samples.cpu)
        self.gpu_memory.add(columns, samples.gpu_memory)
        self.core_use.add(columns, self.core_shares.of(samples))
        cpu, io = by_cpu.starved_in_block, by_io.starved_in_block
        if samples.gpu.shape[1]:
            self.starved.add(columns, np.column_stack((cpu, io)).astype(np.float32))
        low = by_cpu.low_in_block | by_io.low_in_block
        told_apart = (np.ones_like(low), low, cpu & ~io, io & ~cpu, cpu & io)
        self.low = self.low + np.array([np.count_nonzero(which) for which in told_apart], np.int64)

    def heatmap(self, node: str, facts: RunFacts) -> Heatmap | None:
        """Returns the heatmap so far; None if nothing was read."""
        if self.origin is None:
            return None
        values = self.gpus.percent() + self.cores.percent()
        if not values:
            return None
        cpus = next((item.cpus for item in facts.nodes if item.node == node), ())
        cores = [f"CPU {cpus[i] if i < len(cpus) else i}" for i in range(self.cores.devices)]
        return Heatmap(
            node=node,
            rows=gpu_labels(facts, node, self.gpus.devices) + cores,
            times=[self.origin + i * self.column_seconds for i in range(len(values[0]))],
            column_seconds=self.column_seconds,
            values=values,
            gpu_memory=self.gpu_memory.percent(),
            starved=dict(zip(("cpu", "io"), self.starved.percent(), strict=False)),
            core_use=dict(zip(("own", "others"), self.core_use.percent(), strict=False)),
        )

    def low_gpu_snapshots(self, node: str) -> LowGpuSamples | None:
        """Returns the counts so far; None if no GPU was read."""
        return LowGpuSamples(node, *self.low.tolist()) if self.gpus.counts.any() else None


class _CoreShares(State):
    """The shares of the run's cores that it and others used.

    The counters are read less often than samples are taken: what they gained is spread over the samples since
    they changed before.
    """

    def __init__(self) -> None:
        self._time = Last()
        self._used = {"cpu_seconds": Last(), "other_cpu_seconds": Last()}
        self._open = 0.0  # core seconds since the last change
        self._shares: NDArray[np.float64] = np.full(2, np.nan)  # until then

    def of(self, samples: NodeSamples) -> NDArray[np.float32]:
        """Returns (n, 2), NaN where the use is not known; (n, 0) if it never is."""
        there = ~np.any([np.isnan(samples.of_run(name)) for name in (*self._used, "allowed_cores")], axis=0)
        if not there.any():
            return np.empty((len(samples), 0), np.float32)
        allowed = samples.of_run("allowed_cores")[there]
        granted = increases(samples.times[there], self._time, after_reset=False) * allowed
        gains = np.column_stack(
            [
                increases(samples.of_run(name)[there], last, after_reset=False)
                for name, last in self._used.items()
            ]
        )
        changed = gains.any(axis=1)
        stretch: np.ndarray = np.cumsum(changed) - changed  # ends with a change; the last one is open
        lasted = np.bincount(stretch, granted, minlength=int(changed.sum()) + 1)
        lasted[0] += self._open
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = np.where(lasted[:-1, None] > 0, gains[changed] / lasted[:-1, None], np.nan)
        before = np.vstack((self._shares, shares))[-1]
        idle = lasted[-1] > LONGEST_STRETCH * allowed[-1]
        self._open, self._shares = float(lasted[-1]), before
        shares = np.vstack((shares, np.zeros(2) if idle else before))
        found = np.full((len(samples), 2), np.nan, np.float32)
        found[there] = np.minimum(shares, 1)[stretch]
        return found


class _Grid(State):
    """Sums and counts by column and device."""

    def __init__(self) -> None:
        self.sums: NDArray[np.float64] = np.zeros((0, 0))
        self.counts: NDArray[np.int64] = np.zeros((0, 0), np.int64)

    @property
    def devices(self) -> int:
        return int(self.sums.shape[1])

    def halve(self) -> None:
        """Merges neighbouring columns in pairs."""
        starts = np.arange(0, len(self.sums), 2)
        if len(starts):
            self.sums = np.add.reduceat(self.sums, starts, axis=0)
            self.counts = np.add.reduceat(self.counts, starts, axis=0)

    def add(self, columns: NDArray[np.intp], values: NDArray[np.float32]) -> None:
        """Adds `values` (n, devices), with NaN for missing readings, to ascending `columns` (n,)."""
        starts = np.flatnonzero(np.diff(columns, prepend=-1))
        reached = columns[starts]
        grown = (
            (0, max(0, int(reached[-1]) + 1 - len(self.sums))),
            (0, max(0, values.shape[1] - self.devices)),
        )
        sums, counts = np.pad(self.sums, grown), np.pad(self.counts, grown)
        totals = np.add.reduceat(values, starts, axis=0)
        if np.isnan(totals).any():
            missing = np.isnan(values)
            totals = np.add.reduceat(np.where(missing, np.float32(0), values), starts, axis=0)
            readings = np.add.reduceat(~missing, starts, axis=0, dtype=np.int64)
        else:
            readings = np.diff(starts, append=len(columns))[:, None]
        sums[reached, : values.shape[1]] += totals
        counts[reached, : values.shape[1]] += readings
        self.sums, self.counts = sums, counts

    def percent(self) -> list[list[int | None]]:
        """Returns one list per device, with one value per column."""
        with np.errstate(invalid="ignore"):
            means = np.rint(100 * self.sums / self.counts)
        return [[None if value != value else int(value) for value in device] for device in means.T.tolist()]
