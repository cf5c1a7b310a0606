"""CommunicationBound: ranks spend their steps exchanging data instead of computing.

Source: our own threshold for what Meta's Holistic Trace Analysis calls exposed communication: the time in
which a rank communicates without computing. Overlapped communication costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from trainwatch.measurements.component_time import RankComponent
from trainwatch.measurements.measure import RunMeasurements
from trainwatch.rules.base import Verdict, status_of
from trainwatch.rules.component_share import ComponentShare, ShareParameters
from trainwatch.rules.judgement import Tallies, Tally
from trainwatch.rules.parameters import Percent, StepCount
from trainwatch.rules.registry import rule
from trainwatch.rules.topics import LONG_COMMUNICATION
from trainwatch.runs.model import RunFacts
from trainwatch.status import Status
from trainwatch.words import duration, percent, too_few

Key = tuple[str, int]  # node and rank


@dataclass(frozen=True)
class CommunicationBoundParameters(ShareParameters):
    threshold: Annotated[Percent, "the rule fires above this share of the step time of a rank"] = 20
    patience: Annotated[StepCount, "decisions begin after this many steps of a rank"] = 20


@rule
class CommunicationBound(ComponentShare[CommunicationBoundParameters]):
    """Seconds lost: the communication of the rank that communicated least.

    If other ranks communicate longer, they wait for a slower rank: Straggler counts that time.
    """

    parameters_type = CommunicationBoundParameters
    subject = "Communication between ranks"
    question = "Do ranks spend their time exchanging data instead of computing?"
    description = (
        "Compares the communication time that computing does not hide with the whole duration of the steps. "
        "If it is unknown how much was hidden, all time that steps mark as communication counts."
    )
    recommendation = (
        "Communicate less often (gradient accumulation, larger batches) or less (16-bit gradients), and "
        "overlap it with the backward pass. Check that NCCL uses NVLink or InfiniBand (NCCL_DEBUG=INFO)."
    )
    topic = "slow ranks"
    distance = 1
    is_symptom = True
    view = "ranks"
    symptom = LONG_COMMUNICATION

    component = "communication"
    summary = "Rank {{ $labels.rank }} of run {{ $labels.run }} spends its time in communication"
    verb = "communicated"
    # A symptom must end before the straggler that explains it, whose alert covers the last minutes.
    until_the_end = True

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        exposed = exposed_seconds(run.facts)
        threshold = self.parameters.threshold
        ranks = {
            (name, rank): Communication(spent, exposed.get((name, rank)), tallies.of(name, rank), threshold)
            for name, node in run.of(self.measure).items()
            for rank, spent in sorted(node.ranks.items())
        }
        triggered = sum(rank.triggered for rank in ranks.values())
        status = status_of(triggered, sum(rank.judged for rank in ranks.values()))
        if status is Status.HEALTHY and not any(rank.seconds for rank in ranks.values()):
            status = Status.NOT_ENOUGH_DATA
        return Verdict(
            status,
            self._finding(status, ranks),
            triggered,
            triggered,
            sum(rank.spent.steps for rank in ranks.values()),
            min((rank.seconds for rank in ranks.values() if rank.seconds), default=0.0) if triggered else 0.0,
            details={"ranks": [rank.details(*key) for key, rank in ranks.items()]},
        )

    def _finding(self, status: Status, ranks: Mapping[Key, Communication]) -> str:
        if status is Status.NOT_ENOUGH_DATA:
            return self._why_not(ranks)
        fired = {key: rank for key, rank in ranks.items() if rank.triggered}
        (_, rank), worst = max((fired or ranks).items(), key=lambda item: (item[1].share, item[1].seconds))
        sentence = f"Rank {rank} communicated for {percent(worst.share)} of its step time"
        sentence += f" ({duration(worst.seconds)})"
        if worst.exposed is None:
            sentence += "; how much of it was hidden by computing is unknown"
        known = {key: found for key, found in ranks.items() if found.seconds}
        if fired and len(known) > 1:
            (_, least_rank), least = min(known.items(), key=lambda item: item[1].share)
            if least.share < worst.share / 2:
                sentence += (
                    f"; rank {least_rank} did for only {percent(least.share)}, "
                    "so the others may only be waiting for it (see Straggler)"
                )
        return sentence + "."

    def _why_not(self, ranks: Mapping[Key, Communication]) -> str:
        most = max((rank.spent.steps for rank in ranks.values()), default=0)
        if not most:
            return "No step was recorded: mark steps with trainwatch.step."
        if not any(rank.seconds for rank in ranks.values()):
            return 'No communication was timed: mark it with trainwatch.component("communication").'
        return too_few("steps of a rank", most, self.parameters.patience)


class Communication:
    """The communication of one rank: the exposed time, or the whole component if that is unknown."""

    def __init__(self, spent: RankComponent, exposed: float | None, tally: Tally, threshold: float) -> None:
        self.spent, self.exposed = spent, exposed
        self.seconds = spent.seconds if exposed is None else exposed
        self.share = 100 * self.seconds / spent.step_seconds if spent.step_seconds else 0.0
        # A trace has few steps, all timed exactly: it is judged once, without patience.
        self.judged = tally.judged if exposed is None else int(spent.steps > 0)
        self.triggered = tally.triggered if exposed is None else int(self.share > threshold)

    def details(self, node: str, rank: int) -> dict[str, float | int | str | None]:
        return {
            "node": node,
            "rank": rank,
            "steps": self.spent.steps,
            "step_seconds": self.spent.step_seconds,
            "communication_seconds": self.spent.seconds,
            "exposed_seconds": self.exposed,
            "percent": self.share,
            "triggered": self.triggered,
        }


def exposed_seconds(facts: RunFacts) -> dict[Key, float]:
    """Returns the exposed communication of each rank, if a trace has it."""
    found: dict[Key, float] = {}
    for collective in facts.collectives:
        if collective.exposed_seconds is not None:
            key = collective.node, collective.rank
            found[key] = found.get(key, 0.0) + collective.exposed_seconds
    return found
