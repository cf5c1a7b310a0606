"""memory-leak: the memory of the GPUs fills up."""

from __future__ import annotations

from stepscope.demo.scenario import Scenario, scenario

AT_START = 0.03
PER_MINUTE = 0.06
MAXIMUM = 0.97


@scenario
class MemoryLeak(Scenario):
    """Each step keeps a little GPU memory, as when losses are summed without .item().

    GPU memory grows from 3 % by six points per minute. That is more than five points within a minute
    (GPUMemoryIncrease), steady over the run (GPUMemoryLeak), and leads to full memory within the hour
    (GPUMemoryNearlyFull). Nothing is slow yet. Alerts of GPUMemoryLeak are about growth after a run's first
    hour, so here only reports have it. The simulated leak stops at 97 %, after 15 minutes; a real run would
    crash.
    """

    name = "memory-leak"
    fires = frozenset({"GPUMemoryIncrease", "GPUMemoryLeak", "GPUMemoryNearlyFull"})
    too_early = frozenset({"GPUMemoryLeak"})
    minutes = 15

    def gpu_memory(self, gpu: int, elapsed: float) -> float:
        return min(AT_START + PER_MINUTE * elapsed / 60, MAXIMUM)
