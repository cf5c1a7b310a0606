"""stall: training hangs in a collective."""

from __future__ import annotations

from trainwatch.demo.scenario import Scenario, scenario

AFTER = 8 * 60.0  # seconds


@scenario
class Stall(Scenario):
    """After eight minutes an exchange of gradients never ends; all processes live on.

    No rank makes a step any more (TrainingStalled after a minute). GPUs read 100 % until someone ends the
    run, because NCCL's kernels spin: this is what makes a hang so hard to see from utilisation. Their power
    tells: it falls to a third.
    """

    name = "stall"
    fires = frozenset({"TrainingStalled"})

    def hangs(self, number: int, elapsed: float) -> bool:
        return elapsed >= AFTER
