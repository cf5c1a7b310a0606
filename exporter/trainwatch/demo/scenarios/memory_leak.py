"""memory-leak: the memory of the GPUs fills up."""

from __future__ import annotations

from trainwatch.demo.scenario import Scenario, scenario

AT_START = 0.03
A_MINUTE = 0.06
MOST = 0.97


@scenario
class MemoryLeak(Scenario):
    """Each step keeps a little memory on its GPU, as when losses are summed up without .item().

    GPUs fill by six points a minute, from 3 % on: more than five points within a minute
    (GPUMemoryIncrease), steadily over the run (GPUMemoryLeak), and full within the hour
    (GPUMemoryNearlyFull). Nothing is slow yet. At 97 %, after a quarter of an hour, the simulated leak
    stands still; a real run would die there.
    """

    name = "memory-leak"
    fires = frozenset({"GPUMemoryIncrease", "GPUMemoryLeak", "GPUMemoryNearlyFull"})
    minutes = 15

    def gpu_memory(self, gpu: int, elapsed: float) -> float:
        return min(AT_START + A_MINUTE * elapsed / 60, MOST)
