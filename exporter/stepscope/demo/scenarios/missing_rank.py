"""missing-rank: one rank never leaves its data loader, and all others wait for it."""

from __future__ import annotations

from stepscope.demo.scenario import Scenario, scenario

AFTER = 3 * 60.0  # seconds
MISSING = 3


@scenario
class MissingRank(Scenario):
    """After three minutes the data loader of rank 3 hangs; the other seven ranks wait in backward.

    No rank finishes a step any more: TrainingStalled fires after a minute. After five, CollectiveHang names
    rank 3, because all others wait in a collective.
    """

    name = "missing-rank"
    fires = frozenset({"TrainingStalled", "CollectiveHang"})

    def hangs(self, number: int, elapsed: float) -> bool:
        return elapsed >= AFTER

    def stuck(self, rank: int) -> tuple[str, str]:
        return ("data_wait", "") if rank == MISSING else ("communication", "gradients")
