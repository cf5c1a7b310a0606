"""The exporter's own note on ledgers, for after its restart: what it has counted.

The totals of a live run include ledgers of its ranks' earlier processes, whose files are gone. And a dead
ledger that the exporter may not remove must not return with its alerts. The note has both.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from stepscope.common.errors import describe
from stepscope.exporter.ledgers.run_totals import RankTotals, Run, RunKey
from stepscope.exporter.sampling.state_file import StateFile, StateFileError, boot_id

logger = logging.getLogger(__name__)

NAME = "ledgers.state"


class LedgerNote:
    """The files that are counted to the end, and the runs that keep their totals.

    It is a file in `directory`, or without one only in memory.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.counted: dict[str, int] = {}  # inode by name, of files that may still be there
        self.runs: dict[RunKey, Run] = {}
        self.spent: dict[str, tuple[int, dict[str, float]]] = {}  # inode and Spent.seconds, by name
        self._file = StateFile(directory / NAME) if directory else None
        self._complaint = ""
        if self._file is not None:
            self._read(self._file)

    def save(self, counted: Mapping[str, int], runs: Mapping[RunKey, Run]) -> bool:
        """Stores the note, and returns whether that worked: then the files may be removed."""
        self.counted = dict(counted)
        if self._file is None:
            return True
        state = {
            "boot": boot_id(),
            "counted": self.counted,
            "runs": [
                {
                    "run": key.run,
                    "owner": key.owner,
                    "times": run.retired_times,
                    "ranks": {rank: asdict(totals) for rank, totals in run.retired.items()},
                }
                for key, run in runs.items()
                if run.retired
            ],
            "spent": {
                ledger.reader.path.name: (ledger.reader.inode[1], ledger.spent.seconds)
                for run in runs.values()
                for ledger in run.ledgers
            },
        }
        try:
            self._file.write(json.dumps(state, separators=(",", ":")).encode())
        except (OSError, StateFileError) as error:
            self._complain(
                f"dead ledgers stay, because {self._file.path} cannot be written: {describe(error)}"
            )
            return False
        self._complaint = ""
        return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self, file: StateFile) -> None:
        try:
            state = json.loads(file.read())
            if state["boot"] != boot_id():  # the ledgers were in memory
                return
            self.counted = {str(name): int(inode) for name, inode in state["counted"].items()}
            for name, (inode, seconds) in state["spent"].items():
                self.spent[str(name)] = int(inode), {str(part): float(s) for part, s in seconds.items()}
            for run in state["runs"]:
                ranks = {int(rank): RankTotals.from_json(totals) for rank, totals in run["ranks"].items()}
                start, first, last = run["times"]
                self.runs[RunKey(run["run"], run["owner"])] = Run(ranks, (start, first, last))
        except FileNotFoundError:
            pass
        except (OSError, StateFileError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._complain(
                f"{file.path} is ignored, so totals of restarted ranks may fall: {describe(error)}"
            )

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            logger.warning("%s", text)
        self._complaint = text
