"""cpu-bottleneck: the transform is too heavy for the cores."""

from __future__ import annotations

from random import Random

from stepscope.demo.scenario import Scenario, Work, compute, scenario


@scenario
class CpuBottleneck(Scenario):
    """A heavy transform pins every core, and GPUs wait for it.

    The transform of a batch takes a core about 10 s, and each rank has four cores for its workers. So a batch
    arrives every 2.4 s, and is computed in 0.25 s. All cores are above 94 %, and in most samples GPUs are
    idle (CPUBottleneck). 90 % of a step is waiting for data (DataStarved). In no sample is a GPU busy for
    much more than half of the time (LowGPUUtilization).
    """

    name = "cpu-bottleneck"
    fires = frozenset({"CPUBottleneck", "DataStarved", "LowGPUUtilization"})
    cpu = (0.94, 1.0)
    fetch_seconds = 9.6
    fetch_cpu_share = 0.97

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.25, random, data_wait=2.15, width=0.05)
