"""A recorded run as if it had begun at another time: scans end on whole minutes, so that may change them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

from stepscope.runs.model import NodeSamples, RankFacts, RunFacts, Source, Stay, Steps

Moments = TypeVar("Moments", RunFacts, RankFacts, Stay)

OF_A_RUN = ("start", "end")
OF_A_RANK = ("start", "first_step_start", "last_step_end", "end", "last_alive")
OF_A_STAY = ("start", "end")


class ShiftedSource(Source):
    """`source`, whose start is known, as if it had begun at `start` (seconds since the epoch)."""

    def __init__(self, source: Source, start: float) -> None:
        self._source = source
        self._start = start
        self._later = 0.0

    @property
    def facts(self) -> RunFacts:
        facts = self._source.facts
        ranks = tuple(
            replace(
                self._shifted(rank, OF_A_RANK),
                stays=tuple(self._shifted(stay, OF_A_STAY) for stay in rank.stays),
            )
            for rank in facts.ranks
        )
        return replace(self._shifted(facts, OF_A_RUN), ranks=ranks)

    def read(self) -> Iterator[NodeSamples | Steps]:
        for chunk in self._source.read():
            start = self._source.facts.start
            assert start is not None
            self._later = self._start - start
            if isinstance(chunk, NodeSamples):
                yield replace(chunk, times=chunk.times + self._later)
            else:
                yield replace(chunk, starts=chunk.starts + self._later)

    def _shifted(self, facts: Moments, names: tuple[str, ...]) -> Moments:
        known: dict[str, Any] = {name: getattr(facts, name) for name in names}
        return replace(
            facts, **{name: value + self._later for name, value in known.items() if value is not None}
        )
