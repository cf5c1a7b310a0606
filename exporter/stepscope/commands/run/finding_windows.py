"""Asks for profile windows of a rank that a finding accuses, and of a median peer: once per rank."""

import time
from collections.abc import Callable
from pathlib import Path

from stepscope.commands.run.terminal import say
from stepscope.common.status import Status
from stepscope.common.words import count, listing
from stepscope.evaluation.analysis import Analysis
from stepscope.exporter.ledgers.asked_windows import DISTANCE, AskedWindows, with_a_peer
from stepscope.report.held import holds_now
from stepscope.rules.straggler import Straggler
from stepscope.training.window_plans import USUAL_STEPS


class FindingWindows:
    """The requests so far. `ledgers` is the directory of the run's ledgers."""

    def __init__(self, ledgers: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._windows, self._clock = AskedWindows(ledgers, clock), clock
        self._accused: set[int] = set()
        self._last = -DISTANCE

    def update(self, analysis: Analysis) -> None:
        """Asks if a rank is accused for the first time, and wakes ranks that have not answered."""
        self._windows.wake()
        accused = _accused(analysis)
        if accused is None or accused in self._accused or self._clock() - self._last < DISTANCE:
            return
        self._accused.add(accused)
        chosen = with_a_peer(self._windows.ranks(), accused)
        if not chosen:
            say(f"rank {accused} is on another node: profile it there with `stepscope profile`", "dim")
            return
        self._last = self._clock()
        self._windows.ask(chosen)
        names = listing([str(each.rank) for each in chosen])
        steps = count(USUAL_STEPS, "step")
        say(f"{Straggler.__name__} accuses rank {accused}: {steps} of ranks {names} are profiled", "dim")


def _accused(analysis: Analysis) -> int | None:
    """Returns the rank that Straggler names now."""
    result = analysis.result_of(Straggler)
    if result is None or result.status is not Status.FOUND or not holds_now(result):
        return None
    rank: int | None = result.details.get("rank")
    return rank
