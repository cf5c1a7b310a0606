"""Measures who comes last: the collectives of all ranks matched, on one clock, and the waits for each rank.

A rank arrives at a collective when it starts there (on its device, or on the host for gloo), and departs when
it ends. Ranks depart together. So the clocks of two ranks differ by the median difference
of the ends of the collectives that they have in common. What remains after that is the residual.

A rank is late in a step by the time for which the median other rank of a group waits for it: from that rank's
arrival to the late one's, in all collectives of the group. Only exposed time counts, and each moment once. If
computing hides some of it, the rank is late by its largest distance to the others' median arrival.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.measurements.matched_collectives import Integers, Matched, matched_collectives
from stepscope.measurements.process_groups import PIPELINE, Stage, pipeline_stages
from stepscope.runs.model import RankTrace, Times

CANDIDATES = 16  # ranks of a group that may be late: those with the latest mean arrival


@dataclass(frozen=True)
class Arrivals:
    """All ranks of a run compared: R ranks, S steps. Seconds."""

    ranks: list[tuple[str, int]]  # node and rank
    numbers: Integers  # (S,) of the steps
    durations: Times  # (R, S)
    late: Times  # (R, S) others waited for it, exposed: see the module
    behind: Times  # (R, S) its arrival beyond the median of the others, at the collective where it is latest
    group: list[str]  # (R,) the kind of the group that waits longest for the rank
    waited: Times  # (R, S) for any other rank
    communicated: Times  # (R, S) exposed: waiting included
    work: Times  # (R, S, len(WORK))
    stages: list[Stage]  # of the pipeline; empty: it has none
    kinds: tuple[str, ...]  # of the groups
    collectives: int
    residual: float  # of the clocks: half of the ends are closer to each other

    def peers(self, row: int) -> list[int]:
        """Returns the other ranks that do the same work: all, or those of the same pipeline stage."""
        stage = next((stage.rows for stage in self.stages if row in stage.rows), range(len(self.ranks)))
        return [other for other in stage if other != row]

    def beyond(self, values: Times) -> Times:
        """Returns by how much each rank's value (R, ...) exceeds the median of its peers; 0 without peers."""
        excess = np.zeros_like(values)
        for row in range(len(self.ranks)):
            if peers := self.peers(row):
                excess[row] = values[row] - np.median(values[peers], axis=0)
        return excess


def arrivals(traces: Sequence[RankTrace]) -> Arrivals | None:
    """Compares all ranks; None if no two of them have a collective in common, or are stages of a pipeline."""
    ranks = sorted(traces, key=lambda trace: (trace.rank, trace.node))
    numbers, places = _common_steps(ranks)
    matched = list(matched_collectives(ranks, places)) if len(numbers) else []
    stages = pipeline_stages(ranks) if len(numbers) else []
    if not matched and len(stages) < 2:
        return None
    clocks = _clocks(len(ranks), matched)
    shape = (len(ranks), len(numbers))
    late, behind, groups = np.zeros(shape), np.zeros(shape), [""] * len(ranks)
    waits: list[list[tuple[Times, Times, Integers]]] = [[] for _ in ranks]
    for common in (each.in_steps() for each in matched if each.kind != PIPELINE):
        if not len(common.step):
            continue
        found = _late(ranks, common, clocks, shape[1], waits)
        behind[common.rows] = np.maximum(behind[common.rows], _behind(common, clocks, shape[1]))
        for place, row in enumerate(common.rows):
            if found[place].sum() > late[row].sum():
                late[row], groups[row] = found[place], common.kind
    waited = np.zeros(shape)
    for row, pieces in enumerate(waits):
        if pieces:
            starts, ends, step = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
            waited[row] = _exposed(ranks[row], starts, ends, step, shape[1])
    return Arrivals(
        ranks=[(rank.node, rank.rank) for rank in ranks],
        numbers=numbers,
        durations=np.array([rank.durations[place] for rank, place in zip(ranks, places, strict=True)]),
        late=late,
        behind=behind,
        group=groups,
        waited=waited,
        communicated=np.array([rank.communicated[at] for rank, at in zip(ranks, places, strict=True)]),
        work=np.array([rank.work[place] for rank, place in zip(ranks, places, strict=True)]),
        stages=stages,
        kinds=tuple(dict.fromkeys(common.kind for common in matched)),
        collectives=sum(len(common.step) for common in matched),
        residual=_residual(matched, clocks),
    )


def clocks_ahead(traces: Sequence[RankTrace]) -> dict[int, float]:
    """Returns by rank the seconds that its clock is ahead of the first rank's.

    Only ranks that collectives join to the first one have an entry.
    """
    ranks = sorted(traces, key=lambda trace: (trace.rank, trace.node))
    numbers, places = _common_steps(ranks)
    matched = list(matched_collectives(ranks, places)) if len(numbers) else []
    if not matched:
        return {}
    clocks, joined = _clocks(len(ranks), matched), {0}
    while more := set().union(*(common.rows for common in matched if joined & set(common.rows))) - joined:
        joined |= more
    return {ranks[row].rank: float(clocks[row]) for row in sorted(joined)}


def _common_steps(ranks: Sequence[RankTrace]) -> tuple[Integers, list[Integers]]:
    """Returns the numbers of the steps that all ranks have, and where each rank has them."""
    if not ranks:
        return np.empty(0, np.int64), []
    common = ranks[0].numbers
    for rank in ranks[1:]:
        common = np.intersect1d(common, rank.numbers)
    common = np.unique(common)
    places = []
    for rank in ranks:
        numbers, first = np.unique(rank.numbers, return_index=True)
        places.append(first[np.searchsorted(numbers, common)])
    return common, places


def _clocks(size: int, matched: Sequence[Matched]) -> Times:
    """Returns (ranks,) how far each clock is ahead of the first one's that it is joined to by collectives."""
    clocks = np.full(size, np.nan)
    # Groups in which all ranks leave together come first, and the largest of these.
    order = sorted(matched, key=lambda common: (-bool(common.aligns.any()), -len(common.rows)))
    while np.isnan(clocks).any():
        clocks[np.flatnonzero(np.isnan(clocks))[0]] = 0.0
        spread = True
        while spread:
            spread = False
            for common in order:
                known = [place for place, row in enumerate(common.rows) if not np.isnan(clocks[row])]
                if not known or len(known) == len(common.rows):
                    continue
                use = common.aligns if common.aligns.any() else np.ones_like(common.aligns)
                reference = common.ends[known[0]]
                for place, row in enumerate(common.rows):
                    if np.isnan(clocks[row]):
                        ahead = np.median((common.ends[place] - reference)[use])
                        clocks[row] = clocks[common.rows[known[0]]] + ahead
                spread = True
                break
    return clocks


def _residual(matched: Sequence[Matched], clocks: Times) -> float:
    """Returns by how much the ends of collectives differ after the clocks were aligned; the median."""
    rest = []
    for common in matched:
        ends = common.ends[:, common.aligns] - clocks[common.rows][:, None]
        rest.append(np.abs(ends - np.median(ends, axis=0)).ravel())
    together = np.concatenate([np.empty(0), *rest])
    return float(np.median(together)) if len(together) else np.nan


def _late(
    ranks: Sequence[RankTrace],
    common: Matched,
    clocks: Times,
    steps: int,
    waits: list[list[tuple[Times, Times, Integers]]],
) -> Times:
    """Returns (k, steps) for how long the median other rank waits for each; adds all waits to `waits`."""
    ahead = clocks[common.rows][:, None]
    starts, ends = common.starts - ahead, common.ends - ahead
    last = starts.max(axis=0)
    for place, row in enumerate(common.rows):
        waits[row].append(_wait(common, place, starts[place], np.minimum(last, ends[place]), ahead))
    late = np.zeros((len(common.rows), steps))
    means = (starts - np.median(starts, axis=0)).mean(axis=1)
    for blamed in np.argsort(-means, kind="stable")[:CANDIDATES].tolist():
        waited = []
        for place, row in enumerate(common.rows):
            if place == blamed:
                continue
            wait = _wait(common, place, starts[place], np.minimum(starts[blamed], ends[place]), ahead)
            waited.append(_exposed(ranks[row], *wait, steps))
        late[blamed] = np.median(waited, axis=0)
    return late


def _behind(common: Matched, clocks: Times, steps: int) -> Times:
    """Returns (k, steps) by how much each rank arrives after the median of the others, at most."""
    starts = common.starts - clocks[common.rows][:, None]
    behind = np.zeros((len(common.rows), steps))
    for place in range(len(common.rows)):
        later = starts[place] - np.median(np.delete(starts, place, axis=0), axis=0)
        np.maximum.at(behind[place], common.step, later)
    return behind


def _wait(
    common: Matched, place: int, starts: Times, until: Times, ahead: Times
) -> tuple[Times, Times, Integers]:
    """Returns the waits of a rank that have a length, by its own clock, and their steps."""
    real = until > starts
    return starts[real] + ahead[place], until[real] + ahead[place], common.step[real]


def _exposed(rank: RankTrace, starts: Times, ends: Times, step: Integers, steps: int) -> Times:
    """Returns (steps,) how long the rank waited and did nothing else, each moment once."""
    order = np.argsort(starts, kind="stable")
    starts, ends, step = starts[order], ends[order], step[order]
    begins = np.maximum(starts, np.append(-np.inf, np.maximum.accumulate(ends)[:-1]))
    real = ends > begins
    alone = _before(rank.exposed, ends[real]) - _before(rank.exposed, begins[real])
    return np.bincount(step[real], np.maximum(alone, 0), minlength=steps).astype(float)


def _before(intervals: Times, times: Times) -> Times:
    """Returns how long the intervals run before each time."""
    if not len(intervals):
        return np.zeros(len(times))
    lengths = np.column_stack((np.zeros(len(intervals)), intervals[:, 1] - intervals[:, 0]))
    return np.interp(times, intervals.ravel(), np.cumsum(lengths.ravel()))
