"""CommunicationBound: ranks spend their steps exchanging data instead of computing.

Source: our own threshold for what Meta's Holistic Trace Analysis calls exposed communication: the time in
which a rank communicates without computing. Overlapped communication costs nothing. Healthy runs spend 21 to
35 % there with gloo on shared cores. So a run is bound only if communication takes most of its steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from stepscope.common.status import Status
from stepscope.common.words import duration, percent, ranks_spent, too_few
from stepscope.measurements.arrivals import arrivals
from stepscope.measurements.bandwidth import GIGA, Bandwidth, bandwidths
from stepscope.measurements.measure import PortionSoFar, RunMeasurements
from stepscope.measurements.own_times import OWN_TIMES, waited_by_turns
from stepscope.measurements.process_groups import are_stages
from stepscope.rules.parts.base import Verdict, status_of
from stepscope.rules.parts.component_share import ComponentShare, ShareParameters
from stepscope.rules.parts.hang_in_words import world_size
from stepscope.rules.parts.judgement import Tallies, Tally
from stepscope.rules.parts.parameters import GigabytesPerSecond, Percent
from stepscope.rules.parts.promql import MINUTE
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.remedies import HOOKS, SHORTER_BUBBLES, no_steps
from stepscope.rules.parts.topics import LONG_COMMUNICATION
from stepscope.rules.step_outlier import LEAST_LOST
from stepscope.runs.model import RunFacts

Key = tuple[str, int]  # node and rank
LISTED = 50  # collectives in the details
UNEVEN = 0.1  # of the time of steps that ranks wait for each other by turns: less is chance


@dataclass(frozen=True)
class CommunicationParameters(ShareParameters):
    threshold: Annotated[Percent, "the rule fires above this share of the step time of a rank"] = 50
    link_bandwidth: Annotated[
        GigabytesPerSecond,
        "the speed of the link between ranks in one direction, if it is known; 0: it is not",
    ] = 0


@rule
class CommunicationBound(ComponentShare):
    """Seconds lost: the communication of the rank that communicated least.

    If other ranks communicate longer, they wait for a slower rank: Straggler counts that time. Nor
    does the wait for ranks that are slow by turns count. Traces of all ranks show these waits.
    """

    parameters_type = CommunicationParameters
    subject = "Communication between ranks"
    question = "Do ranks spend their time exchanging data instead of computing?"
    description = (
        "Compares the time that ranks wait in communication, not hidden by computing, with the whole "
        "duration of the steps."
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
    judges = (component,)
    details_of = (OWN_TIMES,)
    summary = "Rank {{ $labels.rank }} of run {{ $labels.run }} spends its time in communication"
    verb = "communicated"
    # A symptom must end before the straggler that explains it, whose alert covers the last minutes.
    until_the_end = True
    # Ranks that communicate longer wait for another one.
    lost = (
        "0 * {} + on (cluster, run) group_left () "
        f"min by (cluster, run) (run_instance_rank:stepscope_{component}:ratio)"
    )
    every = 4 * MINUTE

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        traced = traced_communication(run.facts)
        threshold = self.parameters.threshold
        ranks = {
            (name, rank): Communication(spent, traced.get((name, rank)), tallies.of(name, rank), threshold)
            for name, node in run.of(self.measure).items()
            for rank, spent in sorted(node.ranks.items())
        }
        triggered = sum(rank.triggered for rank in ranks.values())
        status = status_of(triggered, sum(rank.judged for rank in ranks.values()))
        if status is Status.HEALTHY and not any(rank.seconds for rank in ranks.values()):
            status = Status.NOT_ENOUGH_DATA
        saved = _saved(run, ranks.values())
        return Verdict(
            status,
            self._finding(run, status, ranks, saved),
            triggered,
            triggered,
            sum(rank.spent.seen for rank in ranks.values()),
            max(saved, LEAST_LOST) if triggered else 0.0,
            SHORTER_BUBBLES if are_stages(run.facts.threads) else None,
            details={
                "ranks": [rank.details(*key) for key, rank in ranks.items()],
                **self._collectives(run.facts),
            },
            # Only a trace shows how much of a collective is transfer, and how much a wait for ranks.
            cause_known=bool(traced),
        )

    def _collectives(self, facts: RunFacts) -> dict[str, Any]:
        """Returns the bandwidth of the collectives that took longest, if a trace has some."""
        assert isinstance(self.parameters, CommunicationParameters)
        link = GIGA * self.parameters.link_bandwidth
        found = bandwidths(facts.transfers)
        listed = [_bandwidth(each, link) for each in found[:LISTED]]
        return {"link_bytes_per_second": link or None, "collectives": listed} if listed else {}

    def _finding(
        self, run: RunMeasurements, status: Status, ranks: "Mapping[Key, Communication]", saved: float
    ) -> str:
        if status is Status.NOT_ENOUGH_DATA:
            return self._why_not(run, ranks)
        fired = {key: rank for key, rank in ranks.items() if rank.triggered}
        (name, rank), worst = max((fired or ranks).items(), key=lambda item: (item[1].share, item[1].seconds))
        peers = [found.share for key, found in ranks.items() if key != (name, rank)]
        sentence = ranks_spent(
            rank, worst.share, peers, "waited in communication", "step time", worst.seconds
        )
        known = {key: found for key, found in ranks.items() if found.whole}
        (_, least_rank), least = min(known.items(), key=lambda item: item[1].share)
        if fired and least.share < worst.share / 2:
            sentence += (
                f"; rank {least_rank} did for only {percent(least.share)}, "
                "so the others may only be waiting for it (see Straggler)"
            )
        stages = are_stages(run.facts.threads)
        less = "Shorter waits for other stages" if stages else "Communicating less, or while computing,"
        could = f"{less} could save up to {duration(saved)}"
        if len(known) > 1:
            could += ", the least of all ranks; the rest is waiting for other ranks"
        return f"{sentence}. {could}.{_unseen(len(known), world_size(run.facts))}"

    def _why_not(self, run: RunMeasurements, ranks: "Mapping[Key, Communication]") -> str:
        most = max((rank.spent.seen for rank in ranks.values()), default=0)
        if not most:
            return no_steps(run.facts)
        if not any(rank.seconds for rank in ranks.values()):
            return (
                f"No communication was timed: a single process has none. {HOOKS} time that of PyTorch. Mark "
                'that of other libraries with `stepscope.component("communication")`.'
            )
        return too_few("steps of a rank", most, self.parameters.patience)


def _saved(run: RunMeasurements, ranks: "Iterable[Communication]") -> float:
    """Returns how many seconds less communication could save at most: what every rank spends on it.

    In each step that is what the slowest rank spends: it waits for no other.
    """
    known = [rank for rank in ranks if rank.whole]
    if not known:
        return 0.0
    of_nodes = run.of(OWN_TIMES).values()
    by_turns = waited_by_turns([times for node in of_nodes for times in node.ranks.values()])
    in_each = sum(rank.seconds - by_turns * rank.spent.whole for rank in known) / len(known)
    least = min(rank.saved for rank in known)
    return max(min(in_each, least), 0.0) if by_turns > UNEVEN else least


def _unseen(seen: int, ranks: int) -> str:
    """Says that ranks of other nodes, of which nothing is known, may be what the seen ones wait for."""
    if seen >= ranks:
        return ""
    return (
        f" Only {seen} of {ranks} ranks were seen, which may wait for one of the others: "
        "`stepscope report NODE1 NODE2` reports all nodes."
    )


def _bandwidth(found: Bandwidth, link: float) -> dict[str, Any]:
    transfer = found.transfer
    return {
        "operation": transfer.operation,
        "group": transfer.group,
        "group_ranks": transfer.size,
        "dtype": transfer.dtype,
        "bytes": transfer.bytes,
        "calls": transfer.calls,
        "seconds": transfer.seconds,
        "mean_seconds": found.mean_seconds,
        "shortest_seconds": transfer.shortest,
        "algorithm_bytes_per_second": found.algorithm,
        "bus_bytes_per_second": found.bus,
        "fastest_bus_bytes_per_second": found.fastest_bus,
        "link_percent": found.link_percent(link),
    }


class Traced(NamedTuple):
    """The exposed communication of a rank in the steps of its trace, of which it waited for other ranks."""

    exposed: float
    steps: float
    waited: float


class Communication:
    """The communication of one rank: exposed time from a trace, otherwise the whole component."""

    def __init__(self, spent: PortionSoFar, traced: Traced | None, tally: Tally, threshold: float) -> None:
        self.spent, self.exposed = spent, None if traced is None else traced.exposed
        self.seconds, self.whole, waited = traced or (spent.part, spent.whole, 0.0)
        self.saved = max(self.seconds - waited, 0.0)
        self.share = 100 * self.seconds / self.whole if self.whole else 0.0
        # A trace has few steps, all timed exactly: it is judged once, without patience.
        self.judged = tally.judged if traced is None else int(spent.seen > 0)
        self.triggered = tally.triggered if traced is None else int(self.share > threshold)

    def details(self, node: str, rank: int) -> dict[str, float | int | str | None]:
        return {
            "node": node,
            "rank": rank,
            "steps": self.spent.seen,
            "step_seconds": self.spent.whole,
            "communication_seconds": self.spent.part,
            "exposed_seconds": self.exposed,
            "percent": self.share,
            "triggered": self.triggered,
        }


def traced_communication(facts: RunFacts) -> dict[Key, Traced]:
    """Returns the communication of each rank that has a trace."""
    found = arrivals(facts.traces)
    waited = {} if found is None else dict(zip(found.ranks, found.waited.sum(axis=1).tolist(), strict=True))
    return {
        (trace.node, trace.rank): Traced(
            float(trace.communicated.sum()),
            float(trace.durations.sum()),
            waited.get((trace.node, trace.rank), 0.0),
        )
        for trace in facts.traces
    }
