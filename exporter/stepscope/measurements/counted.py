"""Adds what the training script counts: its tokens, samples and floating-point operations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stepscope.runs.model import RankFacts
from stepscope.training.layout import FLOPS, PEAK


@dataclass(frozen=True)
class Counted:
    """One total of the script, of all ranks together."""

    name: str
    total: float
    per_second: float | None  # from the first step to the end of the last one; None: not known


def counted(ranks: Sequence[RankFacts]) -> list[Counted]:
    """Returns the totals of the script, in the order in which it named them."""
    totals: dict[str, float] = {}
    for rank in ranks:
        for name, value in rank.counts.items():
            totals[name] = totals.get(name, 0.0) + value
    seconds = _seconds(ranks)
    return [Counted(name, total, total / seconds if seconds else None) for name, total in totals.items()]


def flops_utilisation(ranks: Sequence[RankFacts]) -> float | None:
    """Returns MFU, the model's operations as a share of what the devices can do; see `stepscope.count`.

    None unless each rank that counts its operations says what its device can do.
    """
    peaks = {rank.rank: rank.gauges[PEAK] for rank in ranks if rank.gauges.get(PEAK, 0.0) > 0}
    counts = [(rank.rank, rank.counts[FLOPS]) for rank in ranks if FLOPS in rank.counts]
    seconds = _seconds(ranks)
    if not seconds or not counts or any(rank not in peaks for rank, _ in counts):
        return None
    return sum(flops for _, flops in counts) / (seconds * sum(peaks.values()))


def with_flops(ranks: Sequence[RankFacts], per_step: Mapping[int, float]) -> list[RankFacts]:
    """Returns the ranks whose operations per step are known, as if their scripts had counted them."""
    known = [rank for rank in ranks if rank.rank in per_step]
    return [replace(rank, counts={FLOPS: per_step[rank.rank] * rank.steps.get("train", 0)}) for rank in known]


def _seconds(ranks: Sequence[RankFacts]) -> float:
    """Returns the time from the first step to the end of the last one; 0 if there was no step."""
    firsts = [rank.first_step_start for rank in ranks if rank.first_step_start is not None]
    lasts = [rank.last_step_end for rank in ranks if rank.last_step_end is not None]
    return max(0.0, max(lasts) - min(firsts)) if firsts and lasts else 0.0
