"""Finds out whether traces show enough of a run to call it healthy: a few kernels always look busy."""

from stepscope.common.words import count, duration
from stepscope.runs.model import RankFacts, RunFacts

LEAST_STEPS, LEAST_SECONDS = 3, 1.0  # one of both: fewer steps may be the first ones, or between two pauses
SHORTEST = 0.01  # seconds, with any number of steps: pauses of a run take as long
LEAST_SEEN = 0.9  # of a rank's steps, or of its capture, on a device: the rest is idle, or was not recorded


def too_little(facts: RunFacts) -> str:
    """Returns what the traces of a run do not show, as a clause; "" if they show enough."""
    if facts.start is None or facts.end is None or not facts.ranks:
        return ""
    seconds = facts.end - facts.start - facts.unobserved_seconds
    steps = min(sum(rank.steps.values()) for rank in facts.ranks)
    if seconds < SHORTEST or (steps < LEAST_STEPS and seconds < LEAST_SECONDS):
        known = count(steps, "step") if steps else "no known step"
        return f"the trace covers only {duration(seconds)} with {known}"
    return next(filter(None, (_unseen(rank, facts) for rank in facts.ranks)), "")


def _unseen(rank: RankFacts, facts: RunFacts) -> str:
    """Returns for how little of the trace a device was seen; "" if for most, or if there is none."""
    stepping = sum(rank.phase_seconds.values())
    spans = (each for each in facts.captures if (each.node, each.rank) == (rank.node, rank.rank))
    captured = stepping or sum(each.end - each.start for each in spans)
    devices = [each for each in facts.devices if (each.node, each.rank) == (rank.node, rank.rank)]
    seen = max((each.seconds for each in devices), default=0.0)
    if not seen or seen >= LEAST_SEEN * captured:
        return ""
    part = f"{duration(seen)} of the {duration(captured)} {'of its steps' if stepping else 'that it covers'}"
    return f"the trace shows the device of rank {rank.rank} for only {part}"
