"""Measures how fast all rules are evaluated, over two lengths of a run."""

import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from stepscope.evaluation.engine import Evaluator
from stepscope.runs.model import TRAFFIC, GpuFacts, NodeFacts, NodeSamples, RunFacts, Source, Steps

from benchmarks import Row

HOUR = 7200  # samples
MINUTES_PER_CHUNK = 10


class BusyNode(Source):
    """Hours of one node, ten minutes at a time; all chunks have the same readings at different times."""

    def __init__(self, hours: float, cores: int = 96, gpus: int = 8) -> None:
        self.hours, self.cores, self.gpus = hours, cores, gpus
        self.chunk = _ten_minutes(cores, gpus)

    @property
    def values(self) -> int:
        """Returns the number of evaluated readings: two per core, two per GPU, three per node."""
        return int(self.hours * HOUR) * (2 * self.cores + 2 * self.gpus + 3)

    @property
    def facts(self) -> RunFacts:
        gpus = tuple(GpuFacts(str(number)) for number in range(self.gpus))
        return RunFacts("benchmark", nodes=(NodeFacts("node", gpus=gpus),))

    def read(self) -> Iterator[NodeSamples | Steps]:
        for number in range(int(self.hours * 60 / MINUTES_PER_CHUNK)):
            yield _later(self.chunk, number * MINUTES_PER_CHUNK * 60.0)


def rows() -> list[Row]:
    evaluated(BusyNode(1))  # warms up
    small, large, few_cores = BusyNode(2), BusyNode(24), BusyNode(24, cores=8, gpus=1)
    speed, speed_small, speed_few = (
        node.values / evaluated(node) / 1e6 for node in (large, small, few_cores)
    )
    little, much = BusyNode(2 / 3), BusyNode(66)
    memory = peak_mebibytes(little), peak_mebibytes(much)
    return [
        (f"evaluation, 24 h of 96 cores and 8 GPUs ({_millions(large)})", speed, "M/s", ">= 10"),
        (f"  2 h of them ({_millions(small)})", speed_small, "M/s", ">= 10"),
        (f"  24 h of 8 cores and 1 GPU ({_millions(few_cores)})", speed_few, "M/s", ">= 10"),
        ("  cost per value of 24 h, relative to 2 h", speed_small / speed, "", "<= 1.5"),
        (f"  memory that {_millions(little)} take", memory[0], "MiB", ""),
        (f"  memory that {_millions(much)} take", memory[1], "MiB", ""),
        ("  the same, relative to a hundredth of the values", memory[1] / memory[0], "", "<= 1.25"),
    ]


def evaluated(source: Source) -> float:
    """Returns the CPU seconds of a whole evaluation with its analysis."""
    begin = time.process_time()
    evaluator = Evaluator(source)
    evaluator.advance()
    evaluator.analysis()
    return time.process_time() - begin


def peak_mebibytes(source: BusyNode) -> float:
    """Returns the peak memory of an evaluation without its source."""
    tracemalloc.start()
    try:
        evaluated(source)
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def _millions(source: BusyNode) -> str:
    return f"{source.values / 1e6:.1f} M values"


def _ten_minutes(cores: int, gpus: int) -> NodeSamples:
    count = MINUTES_PER_CHUNK * 120
    random = np.random.default_rng(0)

    def ratios(*shape: int) -> np.ndarray:
        return random.random(shape, dtype=np.float32)

    return NodeSamples(
        node="node",
        times=1_800_000_000 + 0.5 * np.arange(count, dtype=np.float64),
        cpu=ratios(count, cores),
        io_wait=ratios(count, cores),
        gpu=ratios(count, gpus),
        gpu_memory=ratios(count, gpus),
        memory=ratios(count),
        traffic=1e9 * random.random((count, len(TRAFFIC))),
        gpu_power_watts=ratios(count, gpus),
        gpu_temperature_celsius=ratios(count, gpus),
    )


def _later(samples: NodeSamples, seconds: float) -> NodeSamples:
    return replace(samples, times=samples.times + seconds)
