"""How a run ended: `stepscope run` leaves it for its exporter, in a file of the ledger directory.

A ledger cannot know: a script that raises still ends its process cleanly, and a killed one says nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.common.shared_files import read_file
from stepscope.common.whole_file import write_whole

TERMINAL, OUTSIDE = "terminal", "outside"  # who stopped a run: a key, or a process out of our sight
FINISHED, OUT_OF_MEMORY, UNSAID = "finished", "out of memory", "ended without saying so"
_REASON = re.compile(rf"{FINISHED}|{OUT_OF_MEMORY}|exit status \d{{1,3}}|signal SIG[A-Z0-9]{{1,12}}")


def tell_ending(directory: Path, run: str, reason: str) -> None:
    """Says how a run ended. Raises OSError."""
    write_whole(_file(directory, run), reason)


def ending(directory: Path, run: str, owner: int) -> str:
    """Returns how the run of a user ended; UNSAID unless that user or root said so."""
    try:
        reason = read_file(_file(directory, run), most=64, owners={owner, 0}).decode(errors="replace")
    except OSError:
        return UNSAID
    return reason if _REASON.fullmatch(reason) else UNSAID


def _file(directory: Path, run: str) -> Path:
    return directory / f"{run.replace('/', '_')}.ended"
