"""Finds when ranks waited in a collective and no step finished, and where all ranks were then."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from stepscope.measurements.pauses import KNOWN_PLACES, Pauses, was_set_back
from stepscope.runs.model import RankFacts, RunFacts, Stay, Times

COMMUNICATION = "communication"
STOPPED, DEAD, ENDED = "stopped", "dead", "ended"
SEEN_SECONDS = 2.0  # between two looks at a stay: later it is over
BEFORE_SECONDS = 15.0  # a hang is looked at this long before its end: what ends it ends all processes


class CollectiveWaits(NamedTuple):
    """Times for which ranks have waited in a collective and no rank of the run has finished a step."""

    seconds: Times
    missing_here: Times  # ranks of the node that do not wait
    missing: Times  # and of the whole run
    usual: Times  # seconds between steps; NaN before there are any


class RankInHang(NamedTuple):
    """A rank during a hang."""

    node: str
    rank: int
    component: str  # in which it was for long; "": in none
    operation: str
    seconds: float  # for which it was there
    state: str  # of its process; "": not known

    @property
    def waits(self) -> bool:
        return self.component == COMMUNICATION and self.state not in (STOPPED, DEAD, ENDED)


class Hang(NamedTuple):
    """A time in which ranks waited in a collective and no rank finished a step."""

    start: float  # since the epoch
    seconds: float
    end: float | None  # None: it lasts
    ranks: list[RankInHang]

    @property
    def waiting(self) -> list[RankInHang]:
        return [rank for rank in self.ranks if rank.waits]

    @property
    def missing(self) -> list[RankInHang]:
        """Returns the ranks that do not wait: the gone first, then those that were longest in one place."""
        missing = [rank for rank in self.ranks if not rank.waits]
        return sorted(missing, key=lambda rank: (rank.state not in (DEAD, STOPPED, ENDED), -rank.seconds))


def hangs(facts: RunFacts, pauses: Mapping[tuple[str, int], Pauses], longer_than: float) -> Iterator[Hang]:
    """Yields the hangs of more than `longer_than` seconds, but not those in which a rank did known work."""
    for waits in _overlapping(_long_waits(facts, longer_than)):
        until = min(wait.end for wait in waits)
        since_step = min(
            until - _last_step(facts, process, pauses.get((process.node, process.rank)), until)
            for process in _processes(facts, until)
        )
        seconds = min(until - min(wait.start for wait in waits), since_step)
        look = until - min(BEFORE_SECONDS, seconds / 2)
        ranks = [_at(process, look, until) for process in _processes(facts, look)]
        if not any(rank.component in KNOWN_PLACES and rank.state != DEAD for rank in ranks):
            yield Hang(until - seconds, seconds, None if facts.end is None else until, ranks)


def last_seen(facts: RunFacts) -> list[RankInHang]:
    """Returns where each rank was when its process was last seen alive."""
    return [
        _at(process, process.last_alive, process.last_alive)
        for process in _processes(facts, inf)
        if process.last_alive is not None
    ]


def longest_standstill(facts: RunFacts, pauses: Mapping[tuple[str, int], Pauses]) -> float:
    """Returns the most seconds in which no rank finished a step, at the end of a process's life."""
    moments = [process.last_alive for process in facts.ranks if process.last_alive is not None]
    return max(
        (
            min(
                moment - _last_step(facts, process, pauses.get((process.node, process.rank)), moment)
                for process in _processes(facts, moment)
            )
            for moment in moments
        ),
        default=0.0,
    )


def _long_waits(facts: RunFacts, longer_than: float) -> list[Stay]:
    return sorted(
        (
            stay
            for process in facts.ranks
            for stay in process.stays
            if stay.component == COMMUNICATION
            and stay.state != STOPPED
            and stay.end - stay.start > longer_than
        ),
        key=lambda stay: stay.start,
    )


def _overlapping(waits: Sequence[Stay]) -> Iterator[list[Stay]]:
    """Yields groups of waits that have a moment in common, given in the order of their starts."""
    group: list[Stay] = []
    for wait in waits:
        if group and wait.start >= min(known.end for known in group):
            yield group
            group = []
        group.append(wait)
    if group:
        yield group


def _processes(facts: RunFacts, moment: float) -> list[RankFacts]:
    """Returns the newest process of each rank that had begun by then."""
    newest: dict[tuple[str, int], RankFacts] = {}
    for process in sorted(facts.ranks, key=lambda process: process.start):
        # One that was seen before it began has a clock that was set back.
        seen = (process.start, process.last_alive or inf, *(stay.start for stay in process.stays))
        if min(seen) <= moment:
            newest[process.node, process.rank] = process
    return [newest[key] for key in sorted(newest)]


def _last_step(facts: RunFacts, process: RankFacts, pauses: Pauses | None, moment: float) -> float:
    """Returns when a rank had finished a step before a moment; the run's start if it had not.

    It is exact only during a long pause. Otherwise the records around it may be lost: no step has ended since
    the rank is where it is. If that is not known either, it is the moment itself.
    """
    here = moment - _at(process, moment, moment).seconds
    if was_set_back(process):
        return here
    first = process.first_step_start
    last = max(pauses.last_end, process.last_step_end or -inf) if pauses is not None else inf
    if moment >= last:
        return last
    if pauses is None or first is None or moment <= first:
        return facts.start if facts.start is not None else min(rank.start for rank in facts.ranks)
    inside = (start for start, end, _ in pauses.longest.tolist() if start < moment < end)
    return next(inside, here)


def _at(process: RankFacts, moment: float, until: float) -> RankInHang:
    """Returns where a rank was at a moment; its seconds there count until `until`."""
    gone = process.end
    if gone is None and process.killed and process.last_alive is not None:
        gone = process.last_alive + SEEN_SECONDS
    seen = min(moment, gone if gone is not None else inf)
    stays = (stay for stay in reversed(process.stays) if stay.start <= seen <= stay.end + SEEN_SECONDS)
    stay = next(stays, Stay("", "", until, until))
    state = stay.state
    if gone is not None and gone < moment:
        state = DEAD if process.killed else ENDED
    return RankInHang(
        process.node, process.rank, stay.component, stay.operation, min(until, stay.end) - stay.start, state
    )
