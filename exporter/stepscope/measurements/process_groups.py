"""Says what groups of ranks are for, and finds the stages of a pipeline: by name, otherwise by calls."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from stepscope.runs.model import ProcessGroup, RankTrace, ThreadTime

DATA, TENSOR, PIPELINE, EXPERT, CONTEXT, ALL = "data", "tensor", "pipeline", "expert", "context", "all ranks"
# Words in a group's description (PyTorch's meshes, Megatron, DeepSpeed), the most telling first.
KINDS = (
    (EXPERT, ("expert", "moe", "ep")),
    (PIPELINE, ("pipeline", "pipe", "pp", "embd", "embedding")),
    (CONTEXT, ("context", "sequence", "cp", "sp")),
    (TENSOR, ("tensor", "tp", "mp")),
    (DATA, ("data", "dp", "ddp", "fsdp", "hsdp", "shard", "replicate", "zero")),
)
BETWEEN_TWO = ("send", "recv", "sendrecv", "isend", "irecv", "batchisendirecv", "coalesced")
HANDS_ON = re.compile(r"torch\.distributed\.(distributed_c10d\.(batch_)?i?(send|recv)|pipelining\.)")


class Stage(NamedTuple):
    """The ranks that do the same part of a pipeline."""

    place: int | None  # None: not known; the stage is one rank, and others may do the same part
    rows: list[int]


def kind_of(group: ProcessGroup, operations: list[str], everybody: bool) -> str:
    """Returns what a group is for: by its description, otherwise by what its ranks do."""
    words = "".join(c if c.isalnum() else " " for c in group.description.lower()).split()
    for kind, names in KINDS:
        if any(word in names or (len(name) > 3 and name in word) for word in words for name in names):
            return kind
    counts = {name: operations.count(name) for name in set(operations)}
    between_two = sum(counts.get(name, 0) for name in BETWEEN_TWO)
    if between_two > len(operations) / 2:
        return PIPELINE
    if sum(seen for name, seen in counts.items() if name.startswith("alltoall")) > len(operations) / 2:
        return EXPERT
    return ALL if everybody else DATA


def pipeline_stages(ranks: Sequence[RankTrace]) -> list[Stage]:
    """Returns the stages of a pipeline, from its groups or from its sends.

    If neither says who sends to whom, each rank is a stage by itself.
    """
    groups = [_pipelines(trace) for trace in ranks]
    members = {group.ranks for found in groups for group in found}
    lines = {tuple(sorted(line)) for line in members if 1 < len(line) < len(ranks)} or _lines(ranks)
    if not lines and all(groups) and len(ranks) > 1:
        return [Stage(None, [row]) for row in range(len(ranks))]
    rows = {trace.rank: row for row, trace in enumerate(ranks)}
    depth = max(map(len, lines), default=0)
    stages = [
        sorted({rows[line[index]] for line in lines if index < len(line) and line[index] in rows})
        for index in range(depth)
    ]
    return [Stage(index, found) for index, found in enumerate(stages) if found]


def are_stages(threads: Iterable[ThreadTime]) -> bool:
    """Returns whether lines of training steps mostly communicate by sends: ranks are stages of a pipeline."""
    seconds = {True: 0.0, False: 0.0}
    for thread in threads:
        for line in thread.lines if thread.role == "training" else ():
            if (line.phase, line.component) == ("train", "communication"):
                seconds[HANDS_ON.match(line.library) is not None] += line.total
    return seconds[True] > seconds[False]


def _pipelines(trace: RankTrace) -> list[ProcessGroup]:
    """Returns the groups of a rank that join the stages of a pipeline."""
    found = []
    for index, group in enumerate(trace.groups):
        operations = [trace.operations[call] for call in np.flatnonzero(trace.group == index).tolist()]
        if kind_of(group, operations, False) == PIPELINE:
            found.append(group)
    return found


def _lines(ranks: Sequence[RankTrace]) -> set[tuple[int, ...]]:
    """Returns the ranks that are joined by sends, each set in order."""
    joined = {trace.rank: {trace.rank} for trace in ranks}
    for trace in ranks:
        for peer in set(trace.peers[trace.peers >= 0].tolist()):
            if joined.get(peer, joined[trace.rank]) is not joined[trace.rank]:
                joined[trace.rank] |= joined[peer]
                for rank in joined[peer]:
                    joined[rank] = joined[trace.rank]
    return {tuple(sorted(line)) for line in joined.values() if len(line) > 1}
