"""straggler: one rank is slow, and all others wait for it."""

from __future__ import annotations

from random import Random

from stepscope.demo.scenario import Scenario, Work, compute, scenario

SLOW_RANK = 5


@scenario
class SlowRank(Scenario):
    """Rank 5 computes 2.5 times as long as its peers, which wait for it at every exchange.

    The steps of all ranks take equally long; the time without communication shows the straggler (Straggler).
    Its peers spend more than half of their steps in communication (CommunicationBound, which says that
    they may merely wait). Utilisation shows nothing: NCCL's kernels keep GPUs busy while they wait.
    """

    name = "straggler"
    fires = frozenset({"CommunicationBound", "Straggler"})

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = compute(0.36, random)
        return work.slower(2.5) if rank == SLOW_RANK else work
