"""step-outliers: some steps take three times as long."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from stepscope.demo.scenario import Scenario, Work, compute, scenario

EVERY = 50  # steps


@scenario
class StepOutliers(Scenario):
    """Every 50th step writes a checkpoint before the next one may begin.

    That adds 0.8 s to a step of 0.36 s. So 2 % of the steps are far above mean + 3 standard deviations
    (StepOutlier, which also finds the period and the component). GPUs are idle for only 4 % of the time, so
    no other rule fires.
    """

    name = "step-outliers"
    fires = frozenset({"StepOutlier"})

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = compute(0.36, random)
        return replace(work, checkpoint=0.8) if number % EVERY == EVERY - 1 else work
