"""stall: training hangs in a collective."""

from __future__ import annotations

from stepscope.demo.scenario import Scenario, scenario

AFTER = 8 * 60.0  # seconds


@scenario
class Stall(Scenario):
    """After eight minutes an exchange of gradients never ends; all processes stay alive.

    No rank finishes a step any more (TrainingStalled after a minute). GPU utilisation stays at 100 % until
    someone ends the run, because NCCL's kernels spin. So utilisation does not show a hang, but power does: it
    falls to a third.
    """

    name = "stall"
    fires = frozenset({"TrainingStalled"})

    def hangs(self, number: int, elapsed: float) -> bool:
        return elapsed >= AFTER
