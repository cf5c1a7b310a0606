"""few-dataloaders: one worker per rank cannot keep up."""

from __future__ import annotations

from random import Random

from stepscope.demo.scenario import CORES, GPUS, Scenario, Work, compute, scenario


@scenario
class FewDataloaders(Scenario):
    """Each rank has only one loader worker, although it has four cores.

    A worker takes 0.57 s for a batch that is computed in 0.3 s. So a rank waits for nearly half of each step
    (DataStarved, with the cause "too few workers"). Its GPU is busy for little more than half of each sample
    (LowGPUUtilization). 8 workers for 32 cores are 25 % (Dataloader). CPUBottleneck does not fire although
    the workers' cores are pinned, because a GPU is never idle for a whole sample.
    """

    name = "few-dataloaders"
    fires = frozenset({"DataStarved", "Dataloader", "LowGPUUtilization"})
    workers = 1
    fetch_seconds = 0.57
    fetch_cpu_share = 0.95
    gpu_load = (0.93, 0.97)

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.3, random, data_wait=0.27)

    def cores(self, random: Random) -> list[float]:
        pinned = [random.uniform(0.95, 1.0) for _ in range(GPUS)]
        return pinned + [random.uniform(0.02, 0.15) for _ in range(CORES - GPUS)]
