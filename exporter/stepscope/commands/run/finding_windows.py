"""Asks for profile windows of a rank that a finding accuses, and of a median peer: once per rank."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from pathlib import Path
from typing import NamedTuple

from stepscope.commands.run.terminal import say
from stepscope.common.shared_files import open_file
from stepscope.common.status import Status
from stepscope.common.words import count, listing
from stepscope.evaluation.analysis import Analysis
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.report.held import holds_now
from stepscope.rules.straggler import Straggler
from stepscope.training.window_plans import USUAL_STEPS
from stepscope.training.window_request import can_be_asked, read_answer, wake, write_request

DISTANCE = 300.0  # seconds between two requests, so that windows never take much of a run
AHEAD = 0.5  # seconds until a window begins, so that both ranks take the same steps


class _Rank(NamedTuple):
    """A rank that trains on this node."""

    rank: int
    path: Path
    owner: int
    steps: int
    seconds: float  # of its training steps
    own: float  # of these, without communication


class FindingWindows:
    """The requests so far. `ledgers` is the directory of the run's ledgers."""

    def __init__(self, ledgers: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledgers, self._clock = ledgers, clock
        self._accused: set[int] = set()
        self._last = -DISTANCE
        self._open: list[tuple[Path, int, int]] = []  # ledger, owner and number of unanswered requests

    def update(self, analysis: Analysis) -> None:
        """Asks if a rank is accused for the first time, and wakes ranks that have not answered."""
        self._wake()
        accused = _accused(analysis)
        if accused is None or accused in self._accused or self._clock() - self._last < DISTANCE:
            return
        self._accused.add(accused)
        ranks = {each.rank: each for each in self._ranks()}
        if accused not in ranks:
            say(f"rank {accused} is on another node: profile it there with `stepscope profile`", "dim")
            return
        peers = sorted((each for each in ranks.values() if each.rank != accused), key=lambda each: each.own)
        chosen = [ranks[accused], *peers[len(peers) // 2 :][:1]]
        self._last = self._clock()
        self._ask(chosen)
        names = listing([str(each.rank) for each in chosen])
        steps = count(USUAL_STEPS, "step")
        say(f"{Straggler.__name__} accuses rank {accused}: {steps} of ranks {names} are profiled", "dim")

    def _ask(self, chosen: list[_Rank]) -> None:
        first = max(_first_step(each) for each in chosen)
        for each in chosen:
            with suppress(OSError), _opened(each.path, each.owner) as fd:
                if can_be_asked(fd):
                    number = write_request(fd, first, USUAL_STEPS)
                    wake(fd)
                    self._open.append((each.path, each.owner, number))

    def _wake(self) -> None:
        for each in list(self._open):
            path, owner, number = each
            try:
                with _opened(path, owner) as fd:
                    if read_answer(fd).number != number:
                        wake(fd)
                        continue
            except (OSError, ValueError):  # the process is gone
                pass
            self._open.remove(each)

    def _ranks(self) -> Iterator[_Rank]:
        for path in open_ledgers(self._ledgers):
            with suppress(LedgerError, OSError), LedgerReader(path) as reader:
                if not reader.holder():
                    continue
                totals = reader.totals()
                seconds = totals.phase_seconds.get("train", 0.0)
                steps, waits = (
                    totals.steps.get("train", 0),
                    totals.component_seconds.get("communication", 0.0),
                )
                yield _Rank(reader.header.rank, path, reader.owner, steps, seconds, seconds - waits)


def _accused(analysis: Analysis) -> int | None:
    """Returns the rank that Straggler names now."""
    result = analysis.result_of(Straggler)
    if result is None or result.status is not Status.FOUND or not holds_now(result):
        return None
    rank: int | None = result.details.get("rank")
    return rank


def _first_step(each: _Rank) -> int:
    return each.steps + max(1, ceil(AHEAD * each.steps / each.seconds) if each.seconds else 1)


@contextmanager
def _opened(path: Path, owner: int) -> Iterator[int]:
    """Yields a descriptor for reading and writing. Raises OSError."""
    fd = open_file(path, {owner}, os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)
