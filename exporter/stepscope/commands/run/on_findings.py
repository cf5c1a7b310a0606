"""Acts on findings while the command trains: profile windows of an accused rank, stacks of missing ranks."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepscope.commands.run.terminal import say
from stepscope.common.status import Status
from stepscope.common.words import count, listing
from stepscope.evaluation.analysis import Analysis
from stepscope.exporter.ledgers.asked_windows import DISTANCE, AskedWindows, with_a_peer
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.exporter.processes.stacks import NoStackError, python_stack
from stepscope.report.held import holds_now
from stepscope.rules.collective_hang import CollectiveHang
from stepscope.rules.straggler import Straggler
from stepscope.runs.model import RankStack
from stepscope.runs.recording.files import write_stacks
from stepscope.training.window_plans import USUAL_STEPS

MOST = 8  # ranks whose stacks are taken


class FindingWindows:
    """Profile windows of ranks that Straggler accuses. `ledgers` is the directory of the run's ledgers."""

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


class HangStacks:
    """The Python stacks of the missing ranks of a hang that lasts, taken once per rank.

    `ledgers` is the directory of the run's ledgers; `recording` gets the stacks.
    """

    def __init__(self, ledgers: Path, recording: Path) -> None:
        self._ledgers, self._recording = ledgers, recording
        self._stacks: dict[int, RankStack] = {}

    def update(self, analysis: Analysis) -> bool:
        """Takes the stacks of ranks that the analysis names first. Returns whether there are new ones.

        Raises OSError if they cannot be written.
        """
        new = [rank for rank in _wanted(analysis) if rank["rank"] not in self._stacks]
        new = new[: MOST - len(self._stacks)]
        for rank in new:
            text = self._text(rank["rank"])
            self._stacks[rank["rank"]] = RankStack(rank["node"], rank["rank"], time.time(), text)
        if new:
            write_stacks(self._recording, list(self._stacks.values()))
        return bool(new)

    def _text(self, rank: int) -> str:
        """Returns the stack, or why there is none."""
        try:
            for path in open_ledgers(self._ledgers):
                with LedgerReader(path) as reader:
                    pid = reader.holder()
                    if pid and reader.header.rank == rank:
                        return python_stack(pid, path, reader.owner)
        except (LedgerError, OSError, NoStackError) as error:
            return f"no stack: {error}"
        return "no stack: the process is gone"


def _wanted(analysis: Analysis) -> Sequence[dict[str, Any]]:
    """Returns the missing ranks of a hang that lasts, or all of its ranks if all wait."""
    hangs = analysis.details_of(CollectiveHang).get("hangs", [])
    lasting = [hang for hang in hangs if hang["end"] is None]
    ranks = lasting[-1]["ranks"] if lasting else []
    return [rank for rank in ranks if not rank["waits"]] or ranks
