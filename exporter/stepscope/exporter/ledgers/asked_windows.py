"""Asks ranks on this node for profile windows: an accused rank and a median peer, for the same steps."""

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from pathlib import Path
from typing import NamedTuple

from stepscope.common.errors import describe
from stepscope.common.shared_files import open_file
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, LedgerTotals, open_ledgers
from stepscope.training.window_plans import USUAL_STEPS
from stepscope.training.window_request import can_be_asked, read_answer, wake, withdraw, write_request

DISTANCE = 300.0  # seconds between two requests of a run, so that windows never take much of it
AHEAD = 0.5  # seconds until a window begins, so that all ranks take the same steps
MOST_AHEAD = 1e6  # steps: a ledger can say that they take no time
LONGEST_WAIT = 60.0  # seconds for an answer: a rank that stalls gives none


class TrainingRank(NamedTuple):
    """A rank that trains on this node."""

    rank: int
    path: Path
    owner: int
    steps: int
    seconds: float  # of its training steps
    own: float  # of these, without communication

    @classmethod
    def of(cls, rank: int, path: Path, owner: int, totals: LedgerTotals) -> "TrainingRank":
        """Returns a rank with these totals."""
        seconds = totals.phase_seconds.get("train", 0.0)
        own = seconds - totals.component_seconds.get("communication", 0.0)
        return cls(rank, path, owner, totals.steps.get("train", 0), seconds, own)

    @property
    def next_step(self) -> int:
        """Returns the number of a step that begins in about AHEAD seconds, together with those of others."""
        ahead = AHEAD * self.steps / self.seconds if self.seconds else 1
        return self.steps + max(1, ceil(min(ahead, MOST_AHEAD)))


class _Request(NamedTuple):
    path: Path
    owner: int
    number: int
    since: float


class AskedWindows:
    """The requests that are not answered yet. `ledgers` is the directory of the ledgers."""

    def __init__(self, ledgers: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledgers, self._clock = ledgers, clock
        self._open: list[_Request] = []

    def ranks(self, runs: Collection[tuple[str, int]] | None = None) -> dict[int, TrainingRank]:
        """Returns the ranks that train now, of these runs (name and owner); None: of all.

        Raises OSError if the directory cannot be read.
        """
        return {each.rank: each for each in self._ranks(runs)}

    def _ranks(self, runs: Collection[tuple[str, int]] | None) -> Iterator[TrainingRank]:
        for path in open_ledgers(self._ledgers):
            with suppress(LedgerError, OSError), LedgerReader(path) as reader:
                if not reader.holder() or (
                    runs is not None and (reader.header.run, reader.owner) not in runs
                ):
                    continue
                yield TrainingRank.of(reader.header.rank, path, reader.owner, reader.totals())

    def ask(self, ranks: Collection[TrainingRank]) -> dict[int, str]:
        """Asks them for the same steps. Returns why a rank could not be asked, "" if it was."""
        first = max(each.next_step for each in ranks)
        return {each.rank: self._ask(each, first) for each in ranks}

    def _ask(self, rank: TrainingRank, first: int) -> str:
        try:
            with _opened(rank.path, rank.owner) as fd:
                if not can_be_asked(fd):
                    return "it trains with an older Stepscope"
                number = write_request(fd, first, USUAL_STEPS)
                wake(fd)
        except OSError as error:
            return describe(error)
        self._open.append(_Request(rank.path, rank.owner, number, self._clock()))
        return ""

    def wake(self) -> bool:
        """Wakes ranks that have not answered. Returns whether there are any."""
        self._open = [each for each in self._open if self._waits(each)]
        return bool(self._open)

    def _waits(self, request: _Request) -> bool:
        with suppress(OSError, ValueError), _opened(request.path, request.owner) as fd:  # or it is gone
            if read_answer(fd).number == request.number:
                return False
            if self._clock() - request.since < LONGEST_WAIT:
                wake(fd)
                return True
            withdraw(fd, request.number)
        return False


def with_a_peer(ranks: dict[int, TrainingRank], accused: int | None) -> list[TrainingRank]:
    """Returns the accused rank and a median peer. None: the slowest rank is accused; []: it is not here."""
    by_own = sorted(ranks.values(), key=lambda each: each.own)
    slow = ranks.get(accused) if accused is not None else next(reversed(by_own), None)
    if slow is None:
        return []
    peers = [each for each in by_own if each is not slow]
    return [slow, *peers[len(peers) // 2 :][:1]]


@contextmanager
def _opened(path: Path, owner: int) -> Iterator[int]:
    """Yields a descriptor for reading and writing. Raises OSError."""
    fd = open_file(path, {owner}, os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)
