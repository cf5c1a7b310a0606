"""fluctuating: GPUs pause again and again."""

from __future__ import annotations

from random import Random

from trainwatch.demo.scenario import Scenario, Work, compute, scenario

EVERY = 50  # steps


@scenario
class Fluctuating(Scenario):
    """Training is fine, but every 50 steps an evaluation runs on the CPU.

    For 18 s GPUs are busy, then for 5 s idle, while one process after the other computes its metrics. So a
    fifth of the readings of each GPU are 0 and most of the others near 100 %: the 95th percentile is high
    and the 5th low, which is LowGPUUtilization's "fluctuating". Steps as such are as they should be.
    """

    name = "fluctuating"
    fires = frozenset({"LowGPUUtilization"})

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.36, random)

    def pause_after(self, number: int) -> float:
        return 5.0 if number % EVERY == EVERY - 1 else 0.0
