"""imbalance: one GPU does more than the others."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from stepscope.demo.scenario import CORES, GPUS, Busy, Scenario, Step, Work, compute, scenario


@scenario
class Imbalance(Scenario):
    """One process drives all GPUs, and GPU 0 also gathers what the others computed.

    As with torch.nn.DataParallel: all GPUs compute forward and backward, then GPU 0 alone gathers outputs
    and gradients, updates the weights and broadcasts them. GPU 0 is busy nearly all the time, the others
    little more than half of it. Their distributions are far apart (LoadBalancing), and seven GPUs are
    under-utilised (LowGPUUtilization).
    """

    name = "imbalance"
    fires = frozenset({"LoadBalancing", "LowGPUUtilization"})
    ranks = 1
    workers = CORES
    fetch_seconds = 5.0

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.5, random)

    def busy(self, rank: int, step: Step, random: Random) -> Iterator[Busy]:
        begin = step.start + step.work.data_wait
        together = begin + 0.58 * (step.end - begin)
        for gpu in range(GPUS):
            yield Busy(gpu, begin, step.end if gpu == 0 else together, random.uniform(*self.gpu_load))
