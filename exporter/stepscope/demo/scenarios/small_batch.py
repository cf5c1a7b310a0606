"""small-batch: each step has too little work for the GPU."""

from __future__ import annotations

from random import Random

from stepscope.demo.scenario import Scenario, Work, compute, scenario


@scenario
class SmallBatch(Scenario):
    """Batches are so small that launching kernels takes longer than running them.

    Ranks wait for nothing: no core is busy, and data is ready. But a GPU is idle between kernels for more
    than half of the time (LowGPUUtilization), and three quarters of its memory are free. A larger batch would
    fit (BatchSize).
    """

    name = "small-batch"
    fires = frozenset({"BatchSize", "LowGPUUtilization"})
    cpu = (0.1, 0.25)
    gpu_load = (0.38, 0.48)
    celsius = 48.0
    fetch_seconds = 0.1

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.12, random, data_wait=0.001)

    def gpu_memory(self, gpu: int, elapsed: float) -> float:
        return 0.24
