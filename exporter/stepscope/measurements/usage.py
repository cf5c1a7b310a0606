"""How much of each resource was used: sketches of a node's readings, and of each GPU's."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.measure import Measure, Measurement, Views
from stepscope.measurements.sketch import RatioSketch, SizeSketch, Sketch
from stepscope.measurements.state import Scans, State
from stepscope.runs.model import TRAFFIC, Floats, NodeSamples

CORE_LEVELS = 10  # equal ranges of a core's utilisation, from 0 to 100 %


class GpuUsage(State):
    """All readings of one GPU."""

    def __init__(self) -> None:
        self.utilisation = RatioSketch()
        self.memory = RatioSketch()

    @property
    def idle_readings(self) -> float:
        """Returns for how many readings' worth of time the GPU did nothing."""
        return (1 - self.utilisation.mean) * self.utilisation.count


class NodeUsage(Measurement[None]):
    """All readings of a node: ratios, and rates of network and disk per second."""

    def __init__(self) -> None:
        self.samples = self.cores = 0
        self.core_levels = np.zeros((0, CORE_LEVELS), np.int64)  # by core: its samples in each range
        self.cpu = RatioSketch()  # the mean of the cores; so the I/O wait
        self.io_wait = RatioSketch()
        self.memory = RatioSketch()
        self.gpu = RatioSketch()  # the mean of the GPUs; so their memory
        self.gpu_memory = RatioSketch()
        self.network = SizeSketch()
        self.disk = SizeSketch()
        self.traffic = [SizeSketch() for _ in TRAFFIC]
        self.gpus: list[GpuUsage] = []

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[None]:
        self.samples += len(samples)
        self.cores = samples.cpu.shape[1]
        self.core_levels = _core_levels(samples.cpu, self.core_levels)
        self.cpu.add(samples.cpu_mean)
        self.io_wait.add(samples.io_wait_mean)
        self.memory.add(samples.memory)
        self.gpu.add(_mean(samples.gpu))
        self.gpu_memory.add(_mean(samples.gpu_memory))
        self.network.add(samples.network)
        self.disk.add(samples.disk)
        for sketch, rates in zip(self.traffic, samples.traffic.T, strict=True):
            sketch.add(rates)
        self.gpus += [GpuUsage() for _ in range(samples.gpu.shape[1] - len(self.gpus))]
        for column, gpu in enumerate(self.gpus):
            gpu.utilisation.add(samples.gpu[:, column])
            gpu.memory.add(samples.gpu_memory[:, column])
        return ()


USAGE = Measure(NodeUsage)


def _core_levels(cpu: Floats, before: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns (cores, CORE_LEVELS) how many readings of each core are in each range, with those before."""
    known = ~np.isnan(cpu)
    levels = np.minimum((cpu[known] * CORE_LEVELS).astype(np.int64), CORE_LEVELS - 1)
    places = levels + CORE_LEVELS * np.nonzero(known)[1]
    cells = max(CORE_LEVELS * cpu.shape[1], before.size)
    counts: NDArray[np.int64] = np.bincount(places, minlength=cells).reshape(-1, CORE_LEVELS)
    counts[: len(before)] += before
    return counts


def _mean(values: Floats) -> Floats:
    """Returns (n,) the mean of each row's readings, NaN where there is none."""
    there = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        means: Floats = (np.nansum(values, axis=1) / there.sum(axis=1)).astype(np.float32)
    return means


@dataclass(frozen=True)
class UsageRow:
    """One resource of one node over the whole run, in `unit` (%, B/s or operations/s)."""

    node: str
    resource: str  # CPU, CPU memory, GPU, GPU memory, I/O wait, Network, Disk, or one of _TRAFFIC
    unit: str
    max: float
    p99: float
    p95: float
    p50: float
    min: float


_TRAFFIC = {  # the unit of each of TRAFFIC
    "Network received": "B/s",
    "Network sent": "B/s",
    "Disk read": "B/s",
    "Disk written": "B/s",
    "Disk operations": "operations/s",
}


def usage_rows(nodes: Mapping[str, NodeUsage]) -> list[UsageRow]:
    """Returns a row for each resource that was read, node by node."""
    return [
        _row(name, resource, sketch)
        for name, node in nodes.items()
        for resource, sketch in (
            ("CPU", node.cpu),
            ("CPU memory", node.memory),
            ("GPU", node.gpu),
            ("GPU memory", node.gpu_memory),
            ("I/O wait", node.io_wait),
            ("Network", node.network),
            ("Disk", node.disk),
            *zip(_TRAFFIC, node.traffic, strict=True),
        )
        if sketch.count
    ]


def _row(node: str, resource: str, sketch: Sketch) -> UsageRow:
    factor, unit = (100, "%") if isinstance(sketch, RatioSketch) else (1, _TRAFFIC.get(resource, "B/s"))
    values = [sketch.max, *(sketch.percentile(percent) for percent in (99, 95, 50)), sketch.min]
    return UsageRow(node, resource, unit, *(round(factor * value, 3) for value in values))
