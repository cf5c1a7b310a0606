"""Adds up what hosts do in steps instead of launching work: HostBound judges it if there is no trace."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stepscope.common.words import ranks_spent
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.step_totals import STEP_TOTALS
from stepscope.rules.parts.shares import summed
from stepscope.runs.model import COMPONENTS, PHASES, RunFacts, ranks_of

GC = COMPONENTS.index("gc")


class _Part(NamedTuple):
    did: str
    remedy: str


PARTS = {
    "host_to_device": _Part(
        "copied to the device",
        "Copy from pinned memory (pin_memory=True in the loader) with non_blocking=True: then steps need not "
        "wait for copies. Copy fewer bytes: convert and enlarge on the device.",
    ),
    "checkpoint": _Part(
        "wrote checkpoints",
        "Write checkpoints less often, or in the background (torch.distributed.checkpoint.async_save). Write "
        "them to local storage first.",
    ),
    "gc": _Part(
        "collected garbage",
        "Collect garbage between steps: gc.freeze() after the start, gc.disable(), and gc.collect() every "
        "some hundred.",
    ),
}
SAVE_LESS = (  # with Keras or TensorFlow
    "Write checkpoints less often, or weights only: `save_freq` and `save_weights_only` of ModelCheckpoint. "
    "Write them to local storage first."
)


class RankPart(NamedTuple):
    """The time that a rank spent in a part, in seconds."""

    node: str
    rank: int
    seconds: float
    step_seconds: float

    @property
    def percent(self) -> float:
        return 100 * self.seconds / self.step_seconds


@dataclass(frozen=True)
class HostPart:
    """A component of steps in which the host launches nothing, and what each rank spent in it."""

    component: str
    ranks: list[RankPart]
    framework: str  # "": not known

    @property
    def least(self) -> float:
        """Returns the smallest share of any rank, in percent: what one rank alone does is its own problem."""
        return min(rank.percent for rank in self.ranks)

    @property
    def seconds(self) -> float:
        """Returns what every rank spent at least."""
        return min(rank.seconds for rank in self.ranks)

    @property
    def remedy(self) -> str:
        saves = self.component == "checkpoint" and self.framework in ("keras", "tensorflow")
        return SAVE_LESS if saves else PARTS[self.component].remedy

    def words(self) -> str:
        most = max(self.ranks, key=lambda rank: rank.percent)
        peers = [rank.percent for rank in self.ranks if rank is not most]
        did = PARTS[self.component].did
        spent = ranks_spent(most.rank, most.percent, peers, did, "step time", most.seconds)
        return f"{spent}, and trained nothing meanwhile."


def largest_part(run: RunMeasurements) -> HostPart | None:
    """Returns the part of which every rank has most; None if no steps were timed.

    Garbage counts only where steps were recorded, and within them: much is collected before the first step.
    """
    totals = [node.seconds for node in run.of(STEP_TOTALS).values()]
    collected = summed({rank: float(seconds[GC])} for node in totals for (rank, _), seconds in node.items())
    framework = next((rank.framework for rank in run.facts.ranks if rank.framework), "")
    of_ranks = ((part, _of_ranks(run.facts, part, collected)) for part in PARTS)
    parts = [HostPart(part, ranks, framework) for part, ranks in of_ranks if ranks]
    return max(parts, key=lambda part: part.least, default=None)


def _of_ranks(facts: RunFacts, component: str, collected: Mapping[int, float]) -> list[RankPart]:
    found = []
    for node in sorted({rank.node for rank in facts.ranks}):
        for rank, processes in sorted(ranks_of(facts, node).items()):
            spent = summed(each.component_seconds for each in processes)
            seconds = spent.get(component, 0.0) if component != "gc" else collected.get(rank, 0.0)
            phases = summed(each.phase_seconds for each in processes)
            if (steps := sum(phases.get(phase, 0.0) for phase in PHASES)) > 0:
                found.append(RankPart(node, rank, seconds, steps))
    return found
