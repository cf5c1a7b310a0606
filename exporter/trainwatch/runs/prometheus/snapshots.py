"""Snapshots of a node made of its sample counters.

The exporter counts every snapshot by what it saw, and a scrape sees the counts. What was gained between two
scrapes says how many snapshots there were (30 in 15 s), how the utilisation of each GPU, its memory and the
mean of the cores were distributed among them to 2 %, and in how many some core was above 10, 20 ... 90 %
while some GPU was below 10, 20 ... 90 %. Snapshots are made up that have all of that; which came first within
the scrape interval, and what single cores did, is not known. So rules count what a recording counts. Where no
order of the readings gives each count of idle GPUs, some readings are moved: over 400 random runs the mean of
a GPU moved by 1.2 points at most, and over 900 one count of starved snapshots was off, by one snapshot
(tests/runs/test_made_up_snapshots.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwatch.runs.model import NodeSamples, Times
from trainwatch.runs.prometheus.scrapes import Gains, Scrapes
from trainwatch.runs.recording.schema import grown
from trainwatch.sampling.sample_tally import BOUNDS, GRID

LEVELS = len(GRID) + 1  # below 10 %, 10 to 20 % ... 90 % and above
EDGES = np.array((0.0, *BOUNDS))
WITHIN = 1e-4  # of a bin's left edge, which is not of the bin
Counts = NDArray[np.int64]
# The fields of NodeSamples in single precision.
SINGLE = ("cpu", "io_wait", "gpu", "gpu_memory", "memory", "gpu_power_watts", "gpu_temperature_celsius")
# At the first scrape there may be so many scrape intervals of snapshots; more are of a time not stored.
YOUNG = 4


@dataclass(frozen=True)
class Histogram:
    """(n, bins) what each bin gained, and (n,) the mean of it; NaN where it gained nothing."""

    counts: Counts
    means: Times

    def values(self, row: int, count: int) -> Times:
        """(count,) values in ascending order with these counts and this mean; the rest is NaN."""
        bins = np.repeat(np.arange(self.counts.shape[1]), self.counts[row])[:count]
        found = np.full(count, np.nan)
        if not len(bins):
            return found
        low, high = EDGES[bins], EDGES[bins + 1]
        values = (low + high) / 2
        if np.isfinite(self.means[row]):
            for _ in range(2):  # what the first shift pushed against the bins' edges
                values = np.clip(values + self.means[row] - values.mean(), low + WITHIN, high)
        found[: len(bins)] = values
        return found


class NodeSnapshots:
    """Reads a node's scrapes piece by piece, in the order of time."""

    def __init__(self, node: str, sample_interval: float) -> None:
        self.node, self.sample_interval = node, sample_interval
        self.cpus: tuple[str, ...] = ()
        self.gpus: tuple[str, ...] = ()
        self.taken = self.before = 0  # snapshots, and those of before the first scrape that is stored
        self.missed = 0
        self._gains: Gains | None = None
        self._moments = Gains(first=None)  # of counters of the node, which are older than the run
        self._last_time: float | None = None

    def add(self, scrapes: Scrapes, run: str) -> NodeSamples | None:
        """The snapshots of these scrapes; None where there are none."""
        self.cpus = grown(self.cpus, scrapes.values_of("trainwatch_cpu_utilization_ratio", "cpu"))
        self.gpus = grown(self.gpus, self._gpus(scrapes, run))
        if self._gains is None:
            self._gains = self._begin(scrapes, run)
        self.missed += int(
            self._moments.of("missed", scrapes.one("trainwatch_sampler_ticks_missed_total")).sum()
        )
        node = _Node(self, scrapes, run, self._gains, self._moments)
        parts = []
        for row, count in enumerate(node.snapshots):
            previous, now = self._last_time, float(scrapes.times[row])
            self._last_time = now
            if count:
                parts.append(node.snapshots_of(row, int(count), self._times(previous, now, int(count))))
        self.taken += int(node.snapshots.sum())
        return _joined(self.node, parts) if parts else None

    def _gpus(self, scrapes: Scrapes, run: str) -> tuple[str, ...]:
        counted = scrapes.values_of("trainwatch_gpu_utilization_samples_count", "gpu", run=run)
        return tuple(dict.fromkeys((*counted, *scrapes.values_of("trainwatch_gpu_info", "gpu"))))

    def _begin(self, scrapes: Scrapes, run: str) -> Gains:
        """Counts from the run's beginning where the first scrape is near it, else from that scrape on."""
        samples = scrapes.one("trainwatch_samples_total", run=run)
        there = np.flatnonzero(~np.isnan(samples))
        if not len(there):
            return Gains()
        first = float(samples[there[0]])
        between = float(np.median(np.diff(scrapes.times[there]))) if len(there) > 1 else 60.0
        if first * self.sample_interval <= YOUNG * max(between, 15.0):
            return Gains()
        self.before = int(first)
        return Gains(first=None)

    def _times(self, previous: float | None, now: float, count: int) -> Times:
        """So many moments between two scrapes, the last at the second."""
        between = self.sample_interval
        if previous is not None and (now - previous) / count < 2 * between:
            between = (now - previous) / count  # else the run began, or ended, in between
        times: Times = now - between * np.arange(count, dtype=np.float64)[::-1]
        return times


class _Node:
    """Some scrapes of a node, and what its counters gained."""

    def __init__(
        self, known: NodeSnapshots, scrapes: Scrapes, run: str, gains: Gains, moments: Gains
    ) -> None:
        self._scrapes, self._run, self._gains, self._moments = scrapes, run, gains, moments
        self.gpus, self.cpus = known.gpus, known.cpus
        one, table = scrapes.one, scrapes.table
        self.snapshots = self._gained("samples", one("trainwatch_samples_total", run=run)).astype(np.int64)
        self.cpu_mean = self._histogram("trainwatch_cpu_utilization_samples")
        self.io_wait_mean = self._histogram("trainwatch_io_wait_samples")
        self.gpu = [self._histogram("trainwatch_gpu_utilization_samples", gpu=gpu) for gpu in self.gpus]
        self.gpu_memory = [self._histogram("trainwatch_gpu_memory_samples", gpu=gpu) for gpu in self.gpus]
        self.low = np.column_stack(
            [
                self._gained(
                    ("low", bound), one("trainwatch_gpu_low_samples_total", run=run, gpu_below=f"{bound:g}")
                )
                for bound in GRID
            ]
        ).astype(np.int64)
        self.starved = {cause: self._starved(cause) for cause in ("cpu", "io")}
        self.cores = {
            "cpu": table("trainwatch_cpu_utilization_ratio", "cpu", self.cpus),
            "io": table("trainwatch_cpu_io_wait_ratio", "cpu", self.cpus),
        }
        self.memory = one("trainwatch_memory_used_bytes") / one("trainwatch_memory_total_bytes")
        self.seconds = self._moments.of("time", scrapes.times)
        self.network = self._rate(
            "trainwatch_network_receive_bytes_total", "trainwatch_network_transmit_bytes_total"
        )
        self.disk = self._rate("trainwatch_disk_read_bytes_total", "trainwatch_disk_written_bytes_total")
        self.held = self._held()

    def snapshots_of(self, row: int, count: int, times: Times) -> dict[str, Times]:
        """The columns of NodeSamples for what came up to one scrape."""
        starved, low = {cause: cells[row] for cause, cells in self.starved.items()}, self.low[row]
        gpu, levels = arranged([one.values(row, count) for one in self.gpu], low, count)
        columns: dict[str, Times] = {"times": times, "gpu": gpu}
        for field, cause, means in (("cpu", "cpu", self.cpu_mean), ("io_wait", "io", self.io_wait_mean)):
            highest = busiest_cores(levels, starved[cause])
            columns[field] = cores(self.cores[cause][row], means.values(row, count), highest)
        columns["gpu_memory"] = self._memory_of_gpus(row, count)
        for field, values in (("memory", self.memory), ("network", self.network), ("disk", self.disk)):
            columns[field] = np.full(count, values[row])
        for field, table in self.held.items():
            columns[field] = np.broadcast_to(table[row], (count, len(self.gpus)))
        return columns

    def _memory_of_gpus(self, row: int, count: int) -> Times:
        """It changes slowly: in the order in which the mean moved since the scrape before."""
        columns = []
        for one in self.gpu_memory:
            values = one.values(row, count)
            if row and one.means[row] < one.means[row - 1]:
                values = values[::-1]
            columns.append(values)
        return np.column_stack(columns) if columns else np.empty((count, 0))

    def _gained(self, key: object, values: Times) -> Times:
        return self._gains.of(key, values)

    def _histogram(self, name: str, **labels: str) -> Histogram:
        key = (name, *labels.values())
        cumulative = [np.zeros(len(self._scrapes))]
        cumulative += [
            self._gained((*key, bound), self._scrapes.bucket(name, bound, run=self._run, **labels))
            for bound in BOUNDS
        ]
        total = self._gained((*key, "count"), self._scrapes.exactly(f"{name}_count", run=self._run, **labels))
        cumulative[-1] = total  # nothing is above 100 %
        counts = np.rint(np.maximum(np.diff(np.column_stack(cumulative), axis=1), 0)).astype(np.int64)
        gained = self._gained((*key, "sum"), self._scrapes.exactly(f"{name}_sum", run=self._run, **labels))
        with np.errstate(invalid="ignore", divide="ignore"):
            return Histogram(counts, np.where(total > 0, gained / total, np.nan))

    def _starved(self, cause: str) -> Counts:
        """(n, above, below) snapshots with some core above one bound and some GPU below another."""
        name = "trainwatch_gpu_starved_samples_total"
        cells = np.zeros((len(self._scrapes), len(GRID), len(GRID)), dtype=np.int64)
        for i, above in enumerate(GRID):
            for j, below in enumerate(GRID):
                values = self._scrapes.exactly(
                    name, run=self._run, cause=cause, cause_above=f"{above:g}", gpu_below=f"{below:g}"
                )
                cells[:, i, j] = self._gained((cause, above, below), values)
        return cells

    def _rate(self, *names: str) -> Times:
        """Per second, of all devices together."""
        gained = sum(self._moments.of(name, self._scrapes.one(name)) for name in names)
        with np.errstate(invalid="ignore", divide="ignore"):
            rate: Times = np.where(self.seconds > 0, gained / self.seconds, np.nan)
        return rate

    def _held(self) -> dict[str, Times]:
        """What is known at the scrape only, and holds for the snapshots before it: (n, g) each."""
        table = self._scrapes.table

        def throttled(*reasons: str) -> Times:
            known = [
                table("trainwatch_gpu_throttle_seconds_total", "gpu", self.gpus, reason=one)
                for one in reasons
            ]
            missing = np.all([np.isnan(one) for one in known], axis=0)
            return np.where(missing, np.nan, np.nansum(known, axis=0))

        held = {
            "gpu_temperature_celsius": table("trainwatch_gpu_temperature_celsius", "gpu", self.gpus),
            "gpu_clock_hertz": table("trainwatch_gpu_clock_hertz", "gpu", self.gpus, clock="sm"),
            "gpu_thermal_throttle_seconds": throttled("sw_thermal", "hw_thermal"),
            "gpu_power_throttle_seconds": throttled("sw_power_cap", "hw_power_brake"),
            "gpu_ecc_uncorrected_errors": table(
                "trainwatch_gpu_ecc_errors_total", "gpu", self.gpus, severity="uncorrected"
            ),
            "gpu_power_watts": self._power(),
        }
        return held | self._xids()

    def _power(self) -> Times:
        """The mean since the scrape before, by the energy that was used; else the reading of the scrape."""
        now = self._scrapes.table("trainwatch_gpu_power_watts", "gpu", self.gpus)
        energy = self._scrapes.table("trainwatch_gpu_energy_joules_total", "gpu", self.gpus)
        for column, gpu in enumerate(self.gpus):
            used = self._moments.of(("energy", gpu), energy[:, column])
            there = (used > 0) & (self.seconds > 0)
            now[there, column] = used[there] / self.seconds[there]
        return now

    def _xids(self) -> dict[str, Times]:
        """How many errors the driver reported so far, and the number of the last one."""
        name = "trainwatch_gpu_xid_errors_total"
        errors = np.full((len(self._scrapes), len(self.gpus)), np.nan)
        last = errors.copy()
        for column, gpu in enumerate(self.gpus):
            errors[:, column] = self._scrapes.one(name, gpu=gpu)
            for xid in self._scrapes.values_of(name, "xid", gpu=gpu):
                values = self._scrapes.one(name, gpu=gpu, xid=xid)
                there = ~np.isnan(values) & np.isnan(last[:, column])
                gained = self._moments.of(("xid", gpu, xid), values) > 0
                last[there | gained, column] = float(xid)
        return {"gpu_xid_errors": errors, "gpu_last_xid": last}


def arranged(values: Sequence[Times], low: Counts, count: int) -> tuple[Times, NDArray[np.int64]]:
    """Puts the values of each GPU into snapshots so that the idlest GPUs are as they were counted.

    `values` are (count,) each, ascending, NaN behind. `low` (9,) are the snapshots with some GPU below 10, 20
    ... 90 %. Gives (count, g) values and (count,) the level of the idlest GPU, of `LEVELS`.
    """
    gpus = len(values)
    table = np.full((count, gpus), np.nan)
    ends = np.minimum(np.append(low, count), count)
    levels = np.searchsorted(ends, np.arange(count), side="right")
    if not gpus:
        return table, np.full(count, LEVELS - 1)
    taken = np.zeros(gpus, dtype=np.intp)  # of the values of each GPU
    start = 0
    for level, end in enumerate(ends):
        above = GRID[level] if level < len(GRID) else np.inf
        uncovered = start
        for gpu, its in enumerate(values):
            until = (
                int(np.searchsorted(its, above)) if level < len(GRID) else int(np.count_nonzero(its == its))
            )
            mine = its[taken[gpu] : until]
            covering = mine[: max(end - uncovered, 0)]
            table[uncovered : uncovered + len(covering), gpu] = covering
            uncovered += len(covering)
            rest = mine[len(covering) :]
            free = np.flatnonzero(np.isnan(table[:end, gpu]))[: len(rest)]
            table[free, gpu] = rest[: len(free)]
            taken[gpu] += len(covering) + len(free)
        start = int(end)
    return _with_idlest(table, levels), levels


def _with_idlest(table: Times, levels: NDArray[np.int64]) -> Times:
    """Corrects values at the edge of a level: a reading of 10 % is in the bin up to it, but not below it."""
    lowest = np.concatenate(([0.0], GRID))[levels]
    below = np.append(GRID, np.inf)[levels]
    table = np.where(table < lowest[:, None], lowest[:, None], table)
    seen = ~np.isnan(table).all(axis=1)
    idlest = np.where(np.isnan(table), np.inf, table).argmin(axis=1)
    rows = np.flatnonzero(seen & ~(table[np.arange(len(table)), idlest] < below))
    table[rows, idlest[rows]] = below[rows] - WITHIN
    return table


def busiest_cores(levels: NDArray[np.int64], starved: Counts) -> NDArray[np.int64]:
    """(count,) how many of the bounds 10, 20 ... 90 % the busiest core was above; -1: not counted.

    `starved` is (above, below); the cores are counted only where some GPU was below 90 %.
    """
    highest = np.full(len(levels), -1)
    of_level = np.diff(starved, axis=1, prepend=0)  # (above, level)
    for level in range(len(GRID)):
        rows = np.flatnonzero(levels == level)
        highest[rows] = (of_level[:, level, None] > np.arange(len(rows))).sum(axis=0)
    return highest


def cores(reading: Times, means: Times, highest: NDArray[np.int64]) -> Times:
    """(count, c) ratios of cores that are distributed as in `reading` (c,), with these means and maxima."""
    count, width = len(means), len(reading)
    if not width or np.isnan(reading).all():
        return np.full((count, width), np.nan)
    base = np.nan_to_num(reading, nan=float(np.nanmean(reading)))
    order = np.argsort(np.where(highest < 0, LEVELS / 2, highest), kind="stable")
    target = np.full(count, np.nan)
    target[order] = means  # ascending: the busier the busiest core, the higher the mean
    target = np.where(np.isnan(target), base.mean(), target)
    mean = base.mean()
    table: Times = base * (target / mean)[:, None] if mean > 0 else np.repeat(target[:, None], width, axis=1)
    high = np.where(highest < 0, 1.0, (highest + 1) / 10)
    low = np.where(highest < 0, -1.0, highest / 10)
    table = np.clip(table, 0.0, high[:, None])
    top = int(base.argmax())
    table[:, top] = np.where(table.max(axis=1) <= low, (low + high) / 2, table[:, top])
    if width > 1:
        others = np.ones(width, dtype=bool)
        others[top] = False
        missing = (target * width - table.sum(axis=1)) / (width - 1)
        table[:, others] = np.clip(table[:, others] + missing[:, None], 0.0, high[:, None])
    return table


def _joined(node: str, parts: Sequence[dict[str, Times]]) -> NodeSamples:
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name in SINGLE:
        columns[name] = columns[name].astype(np.float32)
    return NodeSamples(node=node, **columns)
