"""Puts the nodes of a run, each recorded apart, on one clock.

Ranks that communicate in each step wait for each other there, so they end it together but for their own work
after that: less than a step. So the clocks of two nodes differ by the median difference of the ends of equal
steps. It is taken from the first steps that the nodes have in common.
"""

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass, replace
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepscope.common.words import count, duration
from stepscope.runs.model import COMPONENTS, PHASES, NodeSamples, RankTrace, Steps, Times

T = TypeVar("T")
Chunk = NodeSamples | Steps
Stream = Iterator[Chunk]

LEAST = 10  # common steps
MOST_CHUNKS = 50  # of a node, in which they are looked for
LOCKSTEP = 0.9  # of the common steps, in which the difference is the same but for one step
AGREE = 1.0  # seconds: a smaller difference may be work after the communication
MOMENTS = (
    *("start", "end", "time", "first_step_start", "last_step_end", "last_alive"),
    *("times", "starts"),
)
_COMMUNICATION, _TRAIN = COMPONENTS.index("communication"), PHASES.index("train")


def earlier(item: T, seconds: float) -> T:
    """Returns the chunk, the facts, or a part of them with all moments so many seconds earlier."""
    if not seconds or not is_dataclass(item):
        return item
    if isinstance(item, RankTrace):
        return item.later(-seconds)  # type: ignore[return-value]
    moved: dict[str, Any] = {
        name: value - seconds for name in MOMENTS if (value := getattr(item, name, None)) is not None
    }
    for name, parts in vars(item).items():
        if isinstance(parts, tuple):
            moved[name] = tuple(earlier(part, seconds) for part in parts)
    return replace(item, **moved)  # type: ignore[type-var]


class _Trained(NamedTuple):
    """The training steps so far of the rank of a node that has most."""

    node: str
    numbers: NDArray[np.int64]
    ends: Times
    durations: Times
    communicated: Times


class Clocks:
    """The clocks of nodes: how far each is ahead of the first one's, and what is known about that."""

    def __init__(self, nodes: int, known: Sequence[float] = ()) -> None:
        self.ahead = list(known) or [0.0] * nodes
        self.notes: tuple[str, ...] = ()  # sentences
        self._is_known = nodes < 2 or bool(known)

    def aligned(self, streams: Sequence[Stream]) -> list[Stream]:
        """Returns the streams on the clock of the first node. Reads ahead until the clocks are known."""
        if not self._is_known:
            streams = self._compare(streams)
        return [map(earlier, *each) for each in zip(streams, map(repeat, self.ahead), strict=True)]

    def _compare(self, streams: Sequence[Stream]) -> list[Stream]:
        begun: list[list[Chunk]] = [[] for _ in streams]
        left = set(range(len(streams)))
        trained = [_trained(chunks) for chunks in begun]
        while left and any(_common(trained[0], other) < LEAST for other in trained[1:]):
            behind = min(left, key=lambda at: (trained[at].numbers.max(initial=-1), at))
            chunk = next(streams[behind], None)
            if chunk is not None:
                begun[behind].append(chunk)
                trained[behind] = _trained(begun[behind])
            if chunk is None or len(begun[behind]) == MOST_CHUNKS:
                left.remove(behind)
        for at, other in enumerate(trained[1:], 1):
            self._learn(at, trained[0], other)
        return [chain(chunks, stream) for chunks, stream in zip(begun, streams, strict=True)]

    def _learn(self, at: int, first: _Trained, other: _Trained) -> None:
        numbers, of_first, of_other = np.intersect1d(first.numbers, other.numbers, return_indices=True)
        if len(numbers) < LEAST:
            return
        self._is_known = True
        differences = other.ends[of_other] - first.ends[of_first]
        ahead = float(np.median(differences))
        step = max(float(np.median(each.durations)) for each in (first, other))
        if abs(ahead) <= max(AGREE, step):
            return
        ends = f"{count(len(numbers), 'step')} ended {duration(abs(ahead))} "
        ends += f"{'later' if ahead > 0 else 'earlier'} on {other.node} than on {first.node}"
        waits = min(float(np.median(each.communicated)) for each in (first, other)) > 0
        if waits and np.mean(np.abs(differences - ahead) <= step) >= LOCKSTEP:
            self.ahead[at] = ahead
            self.notes += (f"{ends}: its clock differs by that, and all its times were corrected.",)
        else:
            self.notes += (
                f"{ends}. Whether its clock differs is not known, because these steps do not wait for each "
                "other: its times were not corrected.",
            )


def _trained(chunks: Sequence[Chunk]) -> _Trained:
    by_rank: dict[int, list[Steps]] = {}
    for chunk in chunks:
        if isinstance(chunk, Steps):
            by_rank.setdefault(chunk.rank, []).append(chunk[chunk.phases == _TRAIN])
    most = max(by_rank.values(), key=lambda found: sum(map(len, found)), default=[])
    if not most:
        return _Trained("", np.empty(0, np.int64), *(np.empty(0) for _ in range(3)))
    columns = zip(
        *((each.numbers, each.ends, each.durations, each.components[:, _COMMUNICATION]) for each in most),
        strict=True,
    )
    return _Trained(most[0].node, *map(np.concatenate, columns))


def _common(first: _Trained, other: _Trained) -> int:
    return len(np.intersect1d(first.numbers, other.numbers))
