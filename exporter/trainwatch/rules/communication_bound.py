"""CommunicationBound: ranks spend their steps exchanging data instead of computing.

Source: our own bound on what Meta's Holistic Trace Analysis calls exposed communication: the time in which
a rank communicates and computes nothing meanwhile. Overlapped communication costs nothing.
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

    What another rank communicates beyond that, it waited for a slower one: the account of Straggler.
    """

    parameters_type = CommunicationBoundParameters
    subject = "Communication between ranks"
    question = "Do ranks spend their time exchanging data instead of computing?"
    description = (
        "Compares the time of communication that no computing hides with the whole duration of the steps. "
        "Where a trace does not tell what was hidden, all time that steps mark as communication counts."
    )
    recommendation = (
        "Exchange less often (gradient accumulation, larger batches) or less (gradients in 16 bits), overlap "
        "it with the backward pass, and look whether NCCL uses NVLink and InfiniBand (NCCL_DEBUG=INFO)."
    )
    topic = "slow ranks"
    distance = 1
    is_symptom = True
    view = "ranks"
    symptom = LONG_COMMUNICATION

    component = "communication"
    summary = "Rank {{ $labels.rank }} of run {{ $labels.run }} spends its time in communication"
    verb = "communicated"
    # A symptom must not outlive the straggler that explains it, whose alert goes by the last minutes.
    until_the_end = True

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        exposed = exposed_seconds(run.facts)
        threshold = self.parameters.threshold
        ranks = {
            (name, rank): Communication(spent, exposed.get((name, rank)), tallies.of(name, rank), threshold)
            for name, node in run.of(self.measure).items()
            for rank, spent in sorted(node.ranks.items())
        }
        triggered = sum(one.triggered for one in ranks.values())
        status = status_of(triggered, sum(one.judged for one in ranks.values()))
        if status is Status.HEALTHY and not any(one.seconds for one in ranks.values()):
            status = Status.NOT_ENOUGH_DATA
        return Verdict(
            status,
            self._finding(status, ranks),
            triggered,
            triggered,
            sum(one.spent.steps for one in ranks.values()),
            min((one.seconds for one in ranks.values() if one.seconds), default=0.0) if triggered else 0.0,
            details={"ranks": [one.details(*key) for key, one in ranks.items()]},
        )

    def _finding(self, status: Status, ranks: Mapping[Key, Communication]) -> str:
        if status is Status.NOT_ENOUGH_DATA:
            return self._why_not(ranks)
        fired = {key: one for key, one in ranks.items() if one.triggered}
        (_, rank), worst = max((fired or ranks).items(), key=lambda item: (item[1].share, item[1].seconds))
        sentence = f"Rank {rank} communicated for {percent(worst.share)} of its step time"
        sentence += f" ({duration(worst.seconds)})"
        if worst.exposed is None:
            sentence += "; how much of it computing hid is not known"
        known = {key: one for key, one in ranks.items() if one.seconds}
        if fired and len(known) > 1:
            (_, least_rank), least = min(known.items(), key=lambda item: item[1].share)
            if least.share < worst.share / 2:
                sentence += (
                    f"; rank {least_rank} did for only {percent(least.share)}, "
                    "so that the others may merely wait for it (see Straggler)"
                )
        return sentence + "."

    def _why_not(self, ranks: Mapping[Key, Communication]) -> str:
        most = max((one.spent.steps for one in ranks.values()), default=0)
        if not most:
            return "No step was recorded: mark steps with trainwatch.step."
        if not any(one.seconds for one in ranks.values()):
            return 'No communication was timed: mark it with trainwatch.component("communication").'
        return too_few("steps of a rank", most, self.parameters.patience)


class Communication:
    """The communication of one rank: what was exposed, or the component where that is not known."""

    def __init__(self, spent: RankComponent, exposed: float | None, tally: Tally, threshold: float) -> None:
        self.spent, self.exposed = spent, exposed
        self.seconds = spent.seconds if exposed is None else exposed
        self.share = 100 * self.seconds / spent.step_seconds if spent.step_seconds else 0.0
        # A trace is of few steps, all of them timed exactly: it is judged once, and at once.
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
    """The exposed communication of each rank of which a trace tells it."""
    found: dict[Key, float] = {}
    for one in facts.collectives:
        if one.exposed_seconds is not None:
            key = one.node, one.rank
            found[key] = found.get(key, 0.0) + one.exposed_seconds
    return found
