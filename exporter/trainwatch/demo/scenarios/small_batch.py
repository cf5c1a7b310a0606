"""small-batch: each step gives the GPU too little to do."""

from __future__ import annotations

from random import Random

from trainwatch.demo.scenario import Scenario, Work, compute, scenario


@scenario
class SmallBatch(Scenario):
    """Batches are so small that launching kernels takes longer than running them.

    Nothing holds the ranks up: no core is busy, data is there. But between two kernels a GPU has nothing to
    do for more than half of the time (LowGPUUtilization), while three quarters of its memory lie idle: a
    larger batch would fit (BatchSize).
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
