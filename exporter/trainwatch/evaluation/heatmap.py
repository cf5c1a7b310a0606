"""Utilisation over time in a picture of bounded width, however long the run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainwatch.evaluation.analysis import Heatmap
from trainwatch.heuristics.low_gpu_utilization import gpu_labels
from trainwatch.heuristics.state import State
from trainwatch.recording.source import NodeSamples, RunFacts

MOST_COLUMNS = 600
SHORTEST_COLUMN = 1.0  # seconds


class HeatmapOfNode(State):
    """Sums and counts of readings by column and device. When the columns are full, neighbours are merged."""

    def __init__(self) -> None:
        self.origin: float | None = None
        self.column_seconds = SHORTEST_COLUMN
        self.gpus = _Grid()
        self.cores = _Grid()

    def observe(self, samples: NodeSamples) -> None:
        if not len(samples):
            return
        if self.origin is None:
            self.origin = float(np.floor(samples.times[0]))
        offsets = np.maximum.accumulate(np.maximum(samples.times - self.origin, 0))
        while offsets[-1] >= MOST_COLUMNS * self.column_seconds:
            self.column_seconds *= 2
            self.gpus.halve()
            self.cores.halve()
        columns = (offsets / self.column_seconds).astype(np.intp)
        self.gpus.add(columns, samples.gpu)
        self.cores.add(columns, samples.cpu)

    def heatmap(self, node: str, facts: RunFacts) -> Heatmap | None:
        """The picture so far; None where nothing was read."""
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
        )


class _Grid(State):
    """Sums and counts of (column, device); as many columns as were reached, as many devices as were seen."""

    def __init__(self) -> None:
        self.sums: NDArray[np.float64] = np.zeros((0, 0))
        self.counts: NDArray[np.int64] = np.zeros((0, 0), np.int64)

    @property
    def devices(self) -> int:
        return int(self.sums.shape[1])

    def halve(self) -> None:
        """Merges each two neighbouring columns."""
        starts = np.arange(0, len(self.sums), 2)
        if len(starts):
            self.sums = np.add.reduceat(self.sums, starts, axis=0)
            self.counts = np.add.reduceat(self.counts, starts, axis=0)

    def add(self, columns: NDArray[np.intp], values: NDArray[np.float32]) -> None:
        """`columns` (n,) ascending; `values` (n, devices), NaN where there is no reading."""
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
        """A list a device, of a value a column."""
        with np.errstate(invalid="ignore"):
            means = np.rint(100 * self.sums / self.counts)
        return [[None if value != value else int(value) for value in device] for device in means.T.tolist()]
