"""straggler: one rank is slow, and all wait for it."""

from __future__ import annotations

from random import Random

from trainwatch.demo.scenario import Scenario, Work, compute, scenario

SLOW_RANK = 5


@scenario
class SlowRank(Scenario):
    """Rank 5 computes for 1.6 times as long as its peers, which wait for it at every exchange.

    All ranks' steps take equally long; what tells is the time without communication (Straggler). The others
    spend more than a third of their steps in it (CommunicationBound, which says that they may merely wait).
    Their GPUs look busy all the same: NCCL's kernels spin while they wait, so that utilisation alone shows
    nothing at all.
    """

    name = "straggler"
    fires = frozenset({"CommunicationBound", "Straggler"})

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = compute(0.36, random)
        return work.slower(1.6) if rank == SLOW_RANK else work
