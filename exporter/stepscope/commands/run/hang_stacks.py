"""Takes the Python stacks of the missing ranks when CollectiveHang finds a hang that lasts, once per rank."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.evaluation.analysis import Analysis
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.exporter.processes.stacks import NoStackError, python_stack
from stepscope.rules.collective_hang import CollectiveHang
from stepscope.runs.model import RankStack
from stepscope.runs.recording.files import write_stacks

MOST = 8  # ranks


class HangStacks:
    """The stacks so far. `ledgers` is the directory of the run's ledgers; `recording` gets the stacks."""

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
