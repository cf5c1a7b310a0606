"""fluctuating: GPUs pause periodically."""

from __future__ import annotations

from random import Random

from stepscope.demo.scenario import Scenario, Work, compute, scenario

EVERY = 50  # steps


@scenario
class Fluctuating(Scenario):
    """Training is fine, but every 50 steps an evaluation runs on the CPU.

    GPUs are busy for 18 s, then idle for 5 s while the CPU computes metrics. So a fifth of each GPU's
    readings are 0, and most others near 100 %. A high 95th and a low 5th percentile are what
    LowGPUUtilization calls "fluctuating". The steps themselves are normal.
    """

    name = "fluctuating"
    fires = frozenset({"LowGPUUtilization"})

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.36, random)

    def pause_after(self, number: int) -> float:
        return 5.0 if number % EVERY == EVERY - 1 else 0.0
