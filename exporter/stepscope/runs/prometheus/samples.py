"""Samples of a node, reconstructed from its sample counters.

The exporter counts every sample by its readings, and a scrape contains the counts. The gain between two
scrapes gives the number of samples (30 in 15 s). It gives the distribution, to 2 %, of each GPU's
utilisation, of its memory and of the mean of the cores. It gives the samples in which some core was above
10, 20 ... 90 % while some GPU was below 10, 20 ... 90 %. Samples are made up that match all of these, so
that rules count the same as in a recording. Their order within a scrape interval, and single cores, are not
known. If no order of the readings matches each count of idle GPUs, some readings are moved. Over 400 random
runs the mean of a GPU moved by at most 1.2 points. Over 900, one count of starved samples was off, by one
sample (tests/runs/test_made_up_samples.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.exporter.sampling.sample import GPU_QUANTITIES, NODE_QUANTITIES, RUN_QUANTITIES
from stepscope.exporter.sampling.sample_tally import BOUNDS, GRID
from stepscope.runs.model import GPU_READINGS, RUN_USE, TRAFFIC, NodeSamples, Times
from stepscope.runs.prometheus.series import Counts, Gains, Scrapes
from stepscope.runs.recording.schema import grown

LEVELS = len(GRID) + 1  # below 10 %, 10 to 20 % ... 90 % and above
EDGES = np.array((0.0, *BOUNDS))
WITHIN = 1e-4  # above a bin's left edge, which is not part of the bin
# The fields of NodeSamples in single precision.
SINGLE = ("cpu", "io_wait", "gpu", "gpu_memory", "memory", "gpu_power_watts", "gpu_temperature_celsius")
# The first scrape may count the samples of this many scrape intervals; more are from a time not stored.
YOUNG = 4


@dataclass(frozen=True)
class Histogram:
    """(n, bins) the gain of each bin, and (n,) the mean of it; NaN where nothing was gained."""

    counts: Counts
    means: Times

    def values(self, row: int, count: int) -> Times:
        """Returns (count,) values in ascending order with these counts and this mean; the rest is NaN."""
        bins = np.repeat(np.arange(self.counts.shape[1]), self.counts[row])[:count]
        found = np.full(count, np.nan)
        if not len(bins):
            return found
        low, high = EDGES[bins], EDGES[bins + 1]
        values = (low + high) / 2
        if np.isfinite(self.means[row]):
            for _ in range(2):  # again, as the first shift meets the edges of bins
                values = np.clip(values + self.means[row] - values.mean(), low + WITHIN, high)
        found[: len(bins)] = values
        return found


class SampleEstimator:
    """Reads a node's scrapes piece by piece, in time order."""

    def __init__(self, node: str, sample_interval: float) -> None:
        self.node, self.sample_interval = node, sample_interval
        self.cpus: tuple[str, ...] = ()
        self.gpus: tuple[str, ...] = ()
        self.before = 0  # samples before the first stored scrape
        self.missed = 0
        self.gains: Gains | None = None
        self.node_gains = Gains(first=None)  # of counters of the node, which are older than the run
        self._last_time: float | None = None

    def add(self, scrapes: Scrapes, run: str) -> NodeSamples | None:
        """Returns the samples of these scrapes; None if there are none."""
        counted = scrapes.values_of("stepscope_gpu_utilization_samples_count", "gpu", run=run)
        gpus = dict.fromkeys((*counted, *scrapes.values_of("stepscope_gpu_info", "gpu")))
        self.gpus = grown(self.gpus, tuple(gpus))
        self.cpus = grown(self.cpus, scrapes.values_of("stepscope_cpu_utilization_ratio", "cpu"))
        self.gains = self.gains or self._begin(scrapes, run)
        missed = scrapes.total("stepscope_sampler_ticks_missed_total")
        self.missed += int(self.node_gains.of("missed", missed).sum())
        chunk = _Chunk(self, self.gains, scrapes, run)
        parts = []
        for row, count in enumerate(chunk.samples.tolist()):
            previous, now = self._last_time, float(scrapes.times[row])
            self._last_time = now
            if count:
                parts.append(chunk.samples_of(row, count, self._times(previous, now, count)))
        return _joined(self.node, parts) if parts else None

    def _begin(self, scrapes: Scrapes, run: str) -> Gains:
        """Counts from the run's start if the first scrape is near it, otherwise from that scrape."""
        samples = scrapes.total("stepscope_samples_total", run=run)
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
        """Returns this many moments between two scrapes, the last one at the second scrape."""
        between = self.sample_interval
        if previous is not None and (now - previous) / count < 2 * between:
            between = (now - previous) / count  # otherwise the run began, or ended, in between
        times: Times = now - between * np.arange(count, dtype=np.float64)[::-1]
        return times


class _Chunk:
    """Some scrapes of a node, and the gains of its counters."""

    def __init__(self, known: SampleEstimator, gains: Gains, scrapes: Scrapes, run: str) -> None:
        self._scrapes, self._run, self._gains, self._node_gains = scrapes, run, gains, known.node_gains
        self.gpus, cpus = known.gpus, known.cpus
        total, table = scrapes.total, scrapes.table
        self.samples = gains.of("samples", total("stepscope_samples_total", run=run)).astype(np.int64)
        self.cpu_mean = self._histogram("stepscope_cpu_utilization_samples")
        self.io_wait_mean = self._histogram("stepscope_io_wait_samples")
        self.gpu = [self._histogram("stepscope_gpu_utilization_samples", gpu=gpu) for gpu in self.gpus]
        self.gpu_memory = [self._histogram("stepscope_gpu_memory_samples", gpu=gpu) for gpu in self.gpus]
        low = "stepscope_gpu_low_samples_total"
        self.low = np.column_stack(
            [gains.of(("low", bound), total(low, run=run, gpu_below=f"{bound:g}")) for bound in GRID]
        ).astype(np.int64)
        self.starved = {cause: self._starved(cause) for cause in ("cpu", "io")}
        self.cores = {
            "cpu": table("stepscope_cpu_utilization_ratio", "cpu", cpus),
            "io": table("stepscope_cpu_io_wait_ratio", "cpu", cpus),
        }
        self.seconds = self._node_gains.of("time", scrapes.times)
        self.of_node = {
            "memory": total("stepscope_memory_used_bytes") / total("stepscope_memory_total_bytes"),
        }
        self.traffic = np.column_stack([self._rate(name) for name in TRAFFIC])
        self.of_gpus = self._of_gpus()
        use = {name: total(each.metric, run=run) for name, each in RUN_QUANTITIES.items() if each.help}
        use["allowed_cores"] = total("stepscope_run_cpus", run=run)
        use["memory_waiting_seconds"] = total(
            "stepscope_run_pressure_waiting_seconds_total", run=run, resource="memory"
        )
        unknown = np.full(len(scrapes), np.nan)
        self.run_use = np.column_stack([use.get(name, unknown) for name in RUN_USE])

    def samples_of(self, row: int, count: int, times: Times) -> dict[str, Times]:
        """Returns the columns of NodeSamples between the scrape in this row and the previous one."""
        gpu, levels = arranged([found.values(row, count) for found in self.gpu], self.low[row], count)
        columns: dict[str, Times] = {"times": times, "gpu": gpu}
        for field, cause, means in (("cpu", "cpu", self.cpu_mean), ("io_wait", "io", self.io_wait_mean)):
            highest = busiest_cores(levels, self.starved[cause][row])
            columns[field] = cores(self.cores[cause][row], means.values(row, count), highest)
        columns["gpu_memory"] = self._memory_of_gpus(row, count)
        for field, values in self.of_node.items():
            columns[field] = np.full(count, values[row])
        for field, table in self.of_gpus.items():
            columns[field] = np.broadcast_to(table[row], (count, len(self.gpus)))
        columns["traffic"] = np.broadcast_to(self.traffic[row], (count, len(TRAFFIC)))
        columns["run_use"] = np.broadcast_to(self.run_use[row], (count, len(RUN_USE)))
        return columns

    def _memory_of_gpus(self, row: int, count: int) -> Times:
        """Returns memory ascending or descending, as its mean moved since the previous scrape."""
        columns = []
        for found in self.gpu_memory:
            values = found.values(row, count)
            if row and found.means[row] < found.means[row - 1]:
                values = values[::-1]
            columns.append(values)
        return np.column_stack(columns) if columns else np.empty((count, 0))

    def _histogram(self, name: str, **labels: str) -> Histogram:
        # The last bound is 100 %, and nothing is above it.
        counts, count, total = self._gains.histogram(
            self._scrapes, name, BOUNDS[:-1], run=self._run, **labels
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            return Histogram(counts, np.where(count > 0, total / count, np.nan))

    def _starved(self, cause: str) -> Counts:
        """Returns (n, above, below) samples with some core above one bound and some GPU below another."""
        cells = np.zeros((len(self._scrapes), len(GRID), len(GRID)), dtype=np.int64)
        for i, above in enumerate(GRID):
            for j, below in enumerate(GRID):
                labels = {"cause": cause, "cause_above": f"{above:g}", "gpu_below": f"{below:g}"}
                cells[:, i, j] = self._gains.exactly(
                    self._scrapes, "stepscope_gpu_starved_samples_total", run=self._run, **labels
                )
        return cells

    def _rate(self, name: str) -> Times:
        """Returns the sum per second of all devices."""
        gained = self._node_gains.of(name, self._scrapes.total(NODE_QUANTITIES[name].metric))
        with np.errstate(invalid="ignore", divide="ignore"):
            rate: Times = np.where(self.seconds > 0, gained / self.seconds, np.nan)
        return rate

    def _of_gpus(self) -> dict[str, Times]:
        """Returns (n, g) each: readings at the scrapes, which all samples before a scrape get."""

        def read(name: str, **labels: str) -> Times:
            return self._scrapes.table(GPU_QUANTITIES[name].metric, "gpu", self.gpus, **labels)

        def throttled(*reasons: str) -> Times:
            known = [read("throttle_seconds", reason=reason) for reason in reasons]
            missing = np.all([np.isnan(values) for values in known], axis=0)
            return np.where(missing, np.nan, np.nansum(known, axis=0))

        power, energy = read("power_watts"), read("energy_joules")
        for column, gpu in enumerate(self.gpus):  # the mean since the previous scrape, if energy is known
            used = self._node_gains.of(("energy", gpu), energy[:, column])
            there = (used > 0) & (self.seconds > 0)
            power[there, column] = used[there] / self.seconds[there]
        # Only GPUs that the run uses have its counters: the others are not its own.
        counted = self._scrapes.table(
            "stepscope_gpu_utilization_samples_count", "gpu", self.gpus, run=self._run
        )
        columns = {
            **{
                name: read(reading.attribute)
                for name, reading in GPU_READINGS.items()
                if reading.help and reading.labels == ("gpu",)
            },
            "gpu_clock_hertz": read("clock_hertz", clock="sm"),
            "gpu_thermal_throttle_seconds": throttled("sw_thermal", "hw_thermal"),
            "gpu_power_throttle_seconds": throttled("sw_power_cap", "hw_power_brake"),
            "gpu_ecc_uncorrected_errors": read("ecc_uncorrected_errors", severity="uncorrected"),
            "gpu_power_watts": power,
            "gpu_xid_errors": read("xid_errors"),
            "gpu_last_xid": self._last_xids(),
            "gpu_lost": 1 - self._scrapes.table("stepscope_gpu_up", "gpu", self.gpus),
        }
        return {name: np.where(np.isnan(counted), np.nan, values) for name, values in columns.items()}

    def _last_xids(self) -> Times:
        """Returns (n, g) the number of the last error that the driver reported."""
        name = "stepscope_gpu_xid_errors_total"
        last = np.full((len(self._scrapes), len(self.gpus)), np.nan)
        for column, gpu in enumerate(self.gpus):
            for xid in self._scrapes.values_of(name, "xid", gpu=gpu):
                values = self._scrapes.total(name, gpu=gpu, xid=xid)
                there = ~np.isnan(values) & np.isnan(last[:, column])
                gained = self._node_gains.of(("xid", gpu, xid), values) > 0
                last[there | gained, column] = float(xid)
        return last


def arranged(values: Sequence[Times], low: Counts, count: int) -> tuple[Times, NDArray[np.int64]]:
    """Distributes the values of each GPU over samples so that the idlest GPUs match their counts.

    `values` are (count,) each, ascending, then NaN. `low` (9,) are the samples with some GPU below 10, 20
    ... 90 %. Returns (count, g) values and (count,) the level of the idlest GPU, of `LEVELS`.
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
        for gpu, readings in enumerate(values):
            of_level = readings[taken[gpu] : int(np.searchsorted(readings, above))]
            covering = of_level[: max(end - uncovered, 0)]
            table[uncovered : uncovered + len(covering), gpu] = covering
            uncovered += len(covering)
            rest = of_level[len(covering) :]
            free = np.flatnonzero(np.isnan(table[:end, gpu]))[: len(rest)]
            table[free, gpu] = rest[: len(free)]
            taken[gpu] += len(covering) + len(free)
        start = int(end)
    return _with_idlest(table, levels), levels


def _with_idlest(table: Times, levels: NDArray[np.int64]) -> Times:
    """Corrects values at the edge of a level: the bin up to 10 % contains 10 %, which is not below it."""
    lowest = np.concatenate(([0.0], GRID))[levels]
    below = np.append(GRID, np.inf)[levels]
    table = np.where(table < lowest[:, None], lowest[:, None], table)
    seen = ~np.isnan(table).all(axis=1)
    idlest = np.where(np.isnan(table), np.inf, table).argmin(axis=1)
    rows = np.flatnonzero(seen & ~(table[np.arange(len(table)), idlest] < below))
    table[rows, idlest[rows]] = below[rows] - WITHIN
    return table


def busiest_cores(levels: NDArray[np.int64], starved: Counts) -> NDArray[np.int64]:
    """Returns (count,) how many of the bounds 10, 20 ... 90 % the busiest core was above; -1: not counted.

    `starved` is (above, below); cores are counted only if some GPU was below 90 %.
    """
    highest = np.full(len(levels), -1)
    of_level = np.diff(starved, axis=1, prepend=0)  # (above, level)
    for level in range(len(GRID)):
        rows = np.flatnonzero(levels == level)
        highest[rows] = (of_level[:, level, None] > np.arange(len(rows))).sum(axis=0)
    return highest


def cores(reading: Times, means: Times, highest: NDArray[np.int64]) -> Times:
    """Returns (count, c) ratios of cores with the distribution of `reading` (c,), these means and maxima."""
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
