"""Integrates the energy of each GPU from its power readings."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.measure import ByGpu, GpuMeasurement, Views
from stepscope.measurements.state import Scans
from stepscope.runs.model import NodeSamples, RunFacts, Times, gpu_labels

LONGEST_BRIDGE = 4.5  # sampling intervals: bridges a few missed ticks or failed readings


@dataclass(frozen=True)
class GpuEnergy:
    """The energy of one GPU: the integral of its power over the time with readings."""

    node: str
    gpu: str  # "GPU 0"
    joules: float
    seconds: float  # covered by the integral
    seconds_missing: float  # of the samples' time without power readings: not in the joules


@dataclass(frozen=True)
class Energy:
    """The energy of the GPUs, without host, fans and losses."""

    joules: float
    gpus: list[GpuEnergy]
    gpus_without: int  # GPUs whose power could not be read: not in the joules


class EnergyOfNode(ByGpu[None, "EnergyOfGpu"]):
    """The energy of each GPU of a node; `interval` is the time between two samples, in seconds."""

    def __init__(self, interval: float) -> None:
        super().__init__(lambda: EnergyOfGpu(interval))
        self.begin = self.end = np.nan  # of the samples

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[None]:
        views = super().observe(samples, scans)
        if len(samples):
            self.begin = float(np.fmin(self.begin, samples.times[0]))
            self.end = float(samples.times[-1])
        return views

    def gpus_with_power(self, node: str, facts: RunFacts) -> list[GpuEnergy]:
        """Returns the energy of the GPUs whose power was read at least twice in a row."""
        labels = gpu_labels(facts, node, len(self.gpus))
        lasted = max(self.end - self.begin, 0.0)
        return [
            GpuEnergy(node, label, gpu.joules, gpu.seconds, max(lasted - gpu.seconds, 0.0))
            for label, gpu in zip(labels, self.gpus, strict=True)
            if gpu.seconds > 0
        ]


class EnergyOfGpu(GpuMeasurement[None]):
    """Power over time by the trapezoid rule; a gap between readings adds neither energy nor time."""

    def __init__(self, interval: float) -> None:
        self.longest = LONGEST_BRIDGE * interval
        self.joules = self.seconds = 0.0
        self.last: tuple[float, float] | None = None  # when, and watts

    def observe(self, samples: NodeSamples, column: int, scans: Scans) -> None:
        known = ~np.isnan(samples.gpu_power_watts[:, column])
        times: Times = samples.times[known]
        watts: NDArray[np.float64] = samples.gpu_power_watts[known, column].astype(np.float64)
        if not len(times):
            return
        if self.last is not None:
            times, watts = np.append(self.last[0], times), np.append(self.last[1], watts)
        apart = np.diff(times)
        apart = np.where((apart > 0) & (apart <= self.longest), apart, 0.0)
        self.joules += float(np.sum(apart * (watts[1:] + watts[:-1]) / 2))
        self.seconds += float(np.sum(apart))
        self.last = float(times[-1]), float(watts[-1])


def energy(nodes: dict[str, EnergyOfNode], facts: RunFacts) -> Energy | None:
    """Returns the energy of all GPUs of the run; None if no GPU's power was read."""
    gpus = [gpu for name, node in nodes.items() for gpu in node.gpus_with_power(name, facts)]
    if not gpus:
        return None
    without = sum(len(node.gpus) for node in nodes.values()) - len(gpus)
    return Energy(sum(gpu.joules for gpu in gpus), gpus, without)
