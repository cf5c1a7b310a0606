"""Groups the readings of one node into snapshots: Debugger stamps each reading of a snapshot by itself.

Readings may be written in any order within HOLD_BACK: a snapshot is given out only when no reading of it
can come any more. What was given out depends on the readings and their order alone, not on the blocks in
which they came.
"""

from __future__ import annotations

from collections import Counter
from math import nan

import numpy as np
from numpy.typing import NDArray

from trainwatch.runs.debugger.files import natural
from trainwatch.runs.debugger.readings import Metric, Readings
from trainwatch.runs.model import GpuFacts, NodeFacts, NodeSamples

SNAPSHOT = 20_000  # microseconds from the first reading of a snapshot to its last
HOLD_BACK = 120_000_000  # microseconds: a file holds a minute, in any order
GAP_UNIT = 0.01  # seconds: gaps between snapshots are counted to this

# One reading a core or GPU.
CPU, IO_WAIT = "CPUUtilization", "I/OWaitPercentage"
GPU, GPU_MEMORY = "GPUUtilization", "GPUMemoryUtilization"
# One reading a node; their dimension is empty, or tells whose network traffic it is.
MEMORY = ("", "MemoryUsedPercent")
DISK = (("", "ReadThroughputInBytesPerSecond"), ("", "WriteThroughputInBytesPerSecond"))
NETWORK = (("Algorithm", "ReceiveBytesPerSecond"), ("Algorithm", "TransmitBytesPerSecond"))
# What no rule asks for: SageMaker's own traffic, and operations a second.
NOT_USED = {
    ("Platform", "ReceiveBytesPerSecond"),
    ("Platform", "TransmitBytesPerSecond"),
    ("", "IOPS"),
}
_OF_NODE = {MEMORY, *DISK, *NETWORK}


class NodeSnapshots:
    """Takes the readings of one node, gives its snapshots in the order of time."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.late = 0  # readings that came more than HOLD_BACK after later ones
        self.first: float | None = None  # when the first and the last snapshot was taken
        self.last: float | None = None
        self.gaps: Counter[int] = Counter()  # between snapshots, in GAP_UNIT
        self._metrics: dict[Metric, int] = {}
        self._cores: list[str] = []
        self._gpus: list[str] = []
        self._placed = 0  # metrics whose core or GPU has got its column
        self._newest = np.iinfo(np.int64).min
        self._metric = np.empty(0, np.int64)  # the readings held back, in the order of time
        self._values = np.empty(0, np.float64)
        self._times = np.empty(0, np.int64)

    @property
    def facts(self) -> NodeFacts:
        gpus = tuple(GpuFacts(_label(name, "gpu")) for name in self._gpus)
        return NodeFacts(self.node, tuple(_label(name, "cpu") for name in self._cores), gpus)

    def unknowns(self) -> list[str]:
        """Sentences about readings that were not used."""
        known = {CPU, IO_WAIT, GPU, GPU_MEMORY}
        strange = sorted(
            " ".join(metric).strip()
            for metric in self._metrics
            if metric[0] not in known and metric not in _OF_NODE | NOT_USED
        )
        sentences = [
            f"Readings of {name} on {self.node} were not used: no rule knows them." for name in strange
        ]
        if self.late:
            sentences.append(
                f"{self.late} readings of {self.node} were written more than {HOLD_BACK // 1_000_000} s "
                "after later ones and were not used."
            )
        return sentences

    def add(self, readings: Readings) -> NodeSamples | None:
        """The snapshots that are complete with these readings, None where there is none."""
        self._hold(readings)
        return self._give(int(self._newest) - HOLD_BACK)

    def rest(self) -> NodeSamples | None:
        """The snapshots that are left when no reading comes any more."""
        return self._give(np.iinfo(np.int64).max)

    def _hold(self, readings: Readings) -> None:
        ids = [self._metrics.setdefault(metric, len(self._metrics)) for metric in readings.metrics]
        times, values = readings.times, readings.values
        metric = np.array(ids, np.int64)[readings.metric]
        newest = np.maximum.accumulate(np.concatenate(([self._newest], times)))
        self._newest = newest[-1]
        late = times < newest[1:] - HOLD_BACK
        if late.any():
            self.late += int(np.count_nonzero(late))
            times, values, metric = times[~late], values[~late], metric[~late]
        times = np.concatenate((self._times, times))
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        self._values = np.concatenate((self._values, values))[order]
        self._metric = np.concatenate((self._metric, metric))[order]

    def _give(self, limit: int) -> NodeSamples | None:
        """The snapshots that ended before `limit` (microseconds since the epoch)."""
        starts = _snapshot_starts(self._times)
        given = int(np.count_nonzero(self._times[starts] < limit - SNAPSHOT))
        if not given:
            return None
        end = len(self._times) if given == len(starts) else int(starts[given])
        row = np.repeat(np.arange(given), np.diff(np.append(starts[:given], end)))
        self._place_devices(self._metric[:end], row)
        table = np.full((given, len(self._metrics) + 1), nan)  # the last column is what nobody read
        table[row, self._metric[:end]] = self._values[:end]
        times = self._times[starts[:given]] / 1e6
        self._times, self._values, self._metric = self._times[end:], self._values[end:], self._metric[end:]
        self._note(times)
        return self._samples(times, table)

    def _place_devices(self, metric: NDArray[np.int64], row: NDArray[np.int64]) -> None:
        """Gives each new core and GPU a column: in the order in which they came, else by their numbers."""
        if self._placed == len(self._metrics):
            return
        names = list(self._metrics)
        used, first = np.unique(metric, return_index=True)
        first_rows = zip(row[first].tolist(), used.tolist(), strict=True)
        new = sorted((first_row, natural(names[index][1]), names[index]) for first_row, index in first_rows)
        devices = {CPU: self._cores, IO_WAIT: self._cores, GPU: self._gpus, GPU_MEMORY: self._gpus}
        for _, _, (dimension, name) in new:
            if dimension in devices and name not in devices[dimension]:
                devices[dimension].append(name)
        if len(used) == len(self._metrics):
            self._placed = len(self._metrics)

    def _note(self, times: NDArray[np.float64]) -> None:
        self.first = float(times[0]) if self.first is None else self.first
        gaps = np.diff(times, prepend=times[0] if self.last is None else self.last)
        self.gaps.update(np.rint(gaps[gaps > 0] / GAP_UNIT).astype(np.int64).tolist())
        self.last = float(times[-1])

    def _samples(self, times: NDArray[np.float64], table: NDArray[np.float64]) -> NodeSamples:
        def ratios(dimension: str, devices: list[str]) -> NDArray[np.float32]:
            return (self._columns(table, [(dimension, name) for name in devices]) / 100).astype(np.float32)

        unknown = np.full((len(times), len(self._gpus)), nan, np.float32)
        return NodeSamples(
            node=self.node,
            times=times,
            cpu=ratios(CPU, self._cores),
            io_wait=ratios(IO_WAIT, self._cores),
            gpu=ratios(GPU, self._gpus),
            gpu_memory=ratios(GPU_MEMORY, self._gpus),
            memory=(self._columns(table, [MEMORY])[:, 0] / 100).astype(np.float32),
            network=self._columns(table, list(NETWORK)).sum(axis=1),
            disk=self._columns(table, list(DISK)).sum(axis=1),
            gpu_power_watts=unknown,
            gpu_temperature_celsius=unknown,
        )

    def _columns(self, table: NDArray[np.float64], metrics: list[Metric]) -> NDArray[np.float64]:
        """(n, len(metrics)) the readings of these metrics, NaN where there is none."""
        columns: NDArray[np.float64] = table[:, [self._metrics.get(metric, -1) for metric in metrics]]
        return columns


def _snapshot_starts(times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where snapshots begin in sorted times: each takes what lies within SNAPSHOT of its first reading."""
    if not len(times):
        return np.empty(0, np.int64)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(times) > SNAPSHOT) + 1))
    ends = np.append(starts[1:], len(times))
    too_long = times[ends - 1] - times[starts] > SNAPSHOT
    if not too_long.any():
        return starts
    more = [int(start) for start in starts]
    for start, end in zip(starts[too_long].tolist(), ends[too_long].tolist(), strict=True):
        while (start := int(np.searchsorted(times, times[start] + SNAPSHOT, side="right"))) < end:
            more.append(start)
    return np.array(sorted(more), np.int64)


def _label(name: str, kind: str) -> str:
    """ "5" of "cpu5", as the labels of Trainwatch's own recordings."""
    number = name.removeprefix(kind)
    return number if number.isdigit() else name
