"""Matches the collectives of a group across its ranks: by sequence number, otherwise by order."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.process_groups import BETWEEN_TWO, PIPELINE, kind_of
from stepscope.runs.model import ProcessGroup, RankTrace, Times

Integers = NDArray[np.int64]

# The others of a group may leave these before or after a rank: their ends align no clocks.
ONE_SIDED = (*BETWEEN_TWO, "broadcast", "reduce", "gather", "scatter")
MOST_LAGS = 50  # collectives by which one capture may begin later than another
ALIKE = 5  # ends of ranks of one group differ at most this many times as much as the closest two
CLOSE = 20e-6  # seconds: ends that close are of one collective


class Matched(NamedTuple):
    """The collectives that members of one group have in common: k ranks, n collectives."""

    group: ProcessGroup
    kind: str
    rows: list[int]  # (k,) indices of ranks
    starts: Times  # (k, n)
    ends: Times
    step: Integers  # (n,) index into the common steps; -1: in none
    aligns: NDArray[np.bool_]  # (n,) whether all ranks leave together

    def in_steps(self) -> "Matched":
        """Returns those collectives that are in a step."""
        kept = self.step >= 0
        return self._replace(
            starts=self.starts[:, kept],
            ends=self.ends[:, kept],
            step=self.step[kept],
            aligns=self.aligns[kept],
        )


class _Calls(NamedTuple):
    """The calls of one rank in one group, or of these its sends to one other rank, or what it received."""

    row: int
    trace: RankTrace
    indices: Integers  # of the calls
    operations: Sequence[str]  # equal at all ranks: a receive has the name of its send
    numbered: bool  # whether the numbers of the calls are equal at all ranks


def matched_collectives(ranks: Sequence[RankTrace], places: list[Integers]) -> Iterator[Matched]:
    """Yields the common collectives of each group. `places`: for each rank, its rows of the common steps."""
    calls: dict[tuple[ProcessGroup, tuple[int, ...]], list[_Calls]] = {}
    for row, trace in enumerate(ranks):
        for index, group in enumerate(trace.groups):
            for pair, found in _by_pair(row, trace, group, np.flatnonzero(trace.group == index)):
                calls.setdefault((group, pair), []).append(found)
    size = len(ranks)
    for (group, _), members in calls.items():
        for together in [members] if group.ranks else _communicating(members):
            common = _in_common(together)
            if common is None:
                continue
            starts, ends = (
                np.array([getattr(one.trace, name)[at] for one, at in zip(together, common, strict=True)])
                for name in ("starts", "ends")
            )
            operations = [together[0].trace.operations[index] for index in common[0].tolist()]
            yield Matched(
                group,
                kind_of(group, operations, len(together) == size),
                [one.row for one in together],
                starts,
                ends,
                _step_of(together, common, places),
                np.array([operation not in ONE_SIDED for operation in operations]),
            )


def _by_pair(
    row: int, trace: RankTrace, group: ProcessGroup, indices: Integers
) -> Iterator[tuple[tuple[int, ...], _Calls]]:
    """Yields the collectives of a rank in a group, then its sends and receives by sender and receiver.

    Sends whose other rank is not known count among the collectives, but not in a pipeline: its stages
    differ in how many they have.
    """
    operations = np.array([trace.operations[index] for index in indices.tolist()], object)
    one_to_one = np.isin(operations, BETWEEN_TWO)
    peers = np.where(one_to_one, trace.peers[indices], -1)
    in_pipeline = kind_of(group, operations.tolist(), False) == PIPELINE
    others = ~one_to_one if in_pipeline else peers < 0
    numbered = bool((trace.sequence[indices[others]] >= 0).all())
    yield (), _Calls(row, trace, indices[others], operations[others].tolist(), numbered)
    receives = np.char.endswith(operations.astype(str), "recv")
    for peer in np.unique(peers[peers >= 0]).tolist():
        for ends, rows in (((trace.rank, peer), ~receives), ((peer, trace.rank), receives)):
            found = indices[(peers == peer) & rows]
            yield ends, _Calls(row, trace, found, ["send"] * len(found), False)


def _in_common(members: Sequence[_Calls]) -> list[Integers] | None:
    """Returns for each rank the indices of the calls that all have, in the same order."""
    if len(members) < 2:
        return None
    numbered = all(one.numbered for one in members)
    keyed = []
    for one in members:
        lag = 0 if numbered else _lag(members[0], one)
        times: dict[tuple[str, int], int] = {}
        found: dict[tuple[tuple[str, int], int], int] = {}
        for position, (index, operation) in enumerate(zip(one.indices.tolist(), one.operations, strict=True)):
            number = int(one.trace.sequence[index]) if numbered else position + lag
            called = operation, number
            times[called] = times.get(called, 0) + 1
            found[called, times[called]] = index
        keyed.append(found)
    common = [key for key in keyed[0] if all(key in found for found in keyed[1:])]
    if not common:
        return None
    return [np.array([found[key] for key in common], np.int64) for found in keyed]


def _lag(first: _Calls, other: _Calls) -> int:
    """Returns how many calls of the first came before the other's: most operations, then the ends agree."""
    mine, theirs = (np.array(one.operations) for one in (first, other))
    if len(mine) == len(theirs) and (mine == theirs).all():
        return 0
    best: tuple[float, float, int] = (-1.0, 0.0, 0)
    for lag in range(-min(MOST_LAGS, len(theirs) - 1), min(MOST_LAGS, len(mine) - 1) + 1):
        length = min(len(mine) - max(lag, 0), len(theirs) - max(-lag, 0))
        here, there = slice(max(lag, 0), max(lag, 0) + length), slice(max(-lag, 0), max(-lag, 0) + length)
        alike = mine[here] == theirs[there]
        if not alike.any():
            continue
        gaps = other.trace.ends[other.indices[there]] - first.trace.ends[first.indices[here]]
        best = max(best, (float(alike.sum()), -_spread(gaps[alike]), lag))
    return best[2]


def _spread(values: Times) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def _communicating(members: list[_Calls]) -> Iterator[list[_Calls]]:
    """Yields the ranks that communicate with each other, if the trace does not say: they depart together."""
    rest = list(members)
    while len(rest) > 1:
        first, spreads = rest[0], {}
        for one in rest[1:]:
            common = _in_common([first, one])
            if common is not None:
                spreads[one.row] = _spread(one.trace.ends[common[1]] - first.trace.ends[common[0]])
        limit = max(ALIKE * min(spreads.values(), default=0.0), CLOSE)
        together = [first, *(one for one in rest[1:] if spreads.get(one.row, np.inf) <= limit)]
        rest = [one for one in rest if all(one is not found for found in together)]
        if len(together) > 1:
            yield together


def _step_of(members: Sequence[_Calls], common: list[Integers], places: list[Integers]) -> Integers:
    """Returns (n,) the common step of each collective: the median of what its ranks say; the nearest.

    -1 for those that most ranks launched before their first step or after their last, as at a checkpoint.
    """
    steps, outside = [], []
    for one, at in zip(members, common, strict=True):
        known = places[one.row]
        outside.append(one.trace.step[at] < 0)
        steps.append(np.clip(np.searchsorted(known, one.trace.step[at], "right") - 1, 0, len(known) - 1))
    return np.where(np.mean(outside, axis=0) > 0.5, -1, np.median(steps, axis=0)).astype(np.int64)
