"""Finds out what the process of each rank does now, and how long training has been in one place.

Only what lasts is reported: in a healthy run, components change many times between two scrapes.

How a run ended is what `stepscope run` leaves for its exporter, in a file of the ledger directory. A ledger
cannot know: a script that raises still ends its process cleanly, and a killed one says nothing.
"""

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from stepscope.common.shared_files import read_file
from stepscope.common.whole_file import write_whole
from stepscope.exporter.ledgers.ages import HOST, INITIALIZATION, Ages, Place
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, LedgerTotals, open_ledgers
from stepscope.exporter.processes.used import is_at_prompt, read_state

TERMINAL, OUTSIDE = "terminal", "outside"  # who stopped a run: a key, or a process out of our sight
FINISHED, OUT_OF_MEMORY, UNSAID = "finished", "out of memory", "ended without saying so"
_REASON = re.compile(rf"{FINISHED}|{OUT_OF_MEMORY}|exit status \d{{1,3}}|signal SIG[A-Z0-9]{{1,12}}")
LASTING_SECONDS = 10.0  # shorter stays are not reported

RUNNING, WAITING, PROMPT, STOPPED = "running", "waiting", "at a prompt", "stopped"
DEAD, ENDED = "dead", "ended"
_STATES = {"R": RUNNING, "S": WAITING, "D": WAITING, "I": WAITING, "T": STOPPED, "t": STOPPED}


class Presence(NamedTuple):
    """A rank's process at one moment."""

    state: str  # "": it lives, but is out of sight
    place: Place | None = None  # None: not known, or not for long
    seconds: float = 0.0  # in that place


def presence(ages: Ages, now: float, state: Callable[[], str]) -> Presence:
    """Returns what a living rank does at `now`, on the exporter's monotonic clock.

    A process is `running` while it gets on. The `state` of its main thread counts once it is stuck. A prompt
    within a component would be no prompt of its user.
    """
    in_place = now - ages.place_began if ages.place else 0.0
    stuck = now - max(ages.phase_began, ages.place_began)
    process = state() if stuck >= LASTING_SECONDS else RUNNING
    if process == PROMPT and (ages.place is None or ages.place.component not in (HOST, INITIALIZATION)):
        process = WAITING
    if in_place < LASTING_SECONDS:
        return Presence(process)
    return Presence(process, ages.place, in_place)


def left(totals: LedgerTotals) -> Presence:
    """Returns how a process is gone: whether it has said that it ended."""
    return Presence(DEAD if totals.end is None else ENDED)


def main_thread_state(procfs: Path, pid: int | None) -> str:
    """Returns the state of a living process; "" if it is out of sight."""
    if pid is None:
        return ""
    letter = read_state(procfs, pid)
    return PROMPT if letter == "S" and is_at_prompt(procfs, pid) else _STATES.get(letter, "")


def observed(run: str, labels: Collection[str]) -> str:
    """Returns the label of the run that began as `run`; `labels` are those of all ledgers of its command."""
    if run in labels:
        return run
    same_name = {label for label in labels if _without_digits(label) == _without_digits(run)}
    return same_name.pop() if len(same_name) == 1 else run


def labels_in(directory: Path) -> set[str]:
    """Returns the labels of all ledgers of a directory that can be read."""
    labels = set()
    for path in open_ledgers(directory):
        with suppress(LedgerError, OSError), LedgerReader(path) as reader:
            if reader.header.named:
                labels.add(reader.header.run)
    return labels


def _without_digits(label: str) -> str:
    return label.rpartition("-")[0]


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
