"""Ticks of the GPU collector at moments that the test chooses."""

import time
from pathlib import Path

from stepscope.exporter.collectors.gpu import GpuCollector
from stepscope.exporter.nvidia.nvml import Nvml
from stepscope.exporter.sampling.sample import Sample

Samples = dict[tuple[str, ...], float]


class GpuTicks:
    """A collector whose clock stands still between ticks; the retry period is its normal one, 10 s."""

    def __init__(self, library: Path | None = None) -> None:
        self.now = 1000.0
        nvml = Nvml(library)  # it may be installed later
        self.collector = GpuCollector(clock=lambda: self.now, longest_patience=10, nvml=nvml)

    def tick(self, after: float = 0.5, interval: float = 20.0) -> Sample:
        """One collect(), `after` seconds by the collector's clock, with half of `interval` of patience."""
        self.now += after
        sample = Sample(time=time.time(), interval=interval)
        self.collector.collect(sample)
        return sample

    def samples(self, name: str) -> Samples:
        """What is published of stepscope_gpu_NAME."""
        (family,) = (family for family in self.collector.families if family.name == f"stepscope_gpu_{name}")
        return dict(family.samples)

    def value(self, name: str, *labels: str) -> float:
        """One of them."""
        return self.samples(name)[labels]

    def published_of(self, gpu: str) -> set[str]:
        """The names (without stepscope_gpu_) of the metrics that there are of a GPU."""
        return {
            family.name.removeprefix("stepscope_gpu_")
            for family in self.collector.families
            if any(labels[0] == gpu for labels in family.samples)
        }
