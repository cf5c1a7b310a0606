"""Finds out what the process of each rank does now, and how long training has been in one place.

Only what lasts is reported: in a healthy run, components change many times between two scrapes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from stepscope.exporter.ledgers.ages import Ages, Place
from stepscope.exporter.ledgers.reader import LedgerTotals
from stepscope.exporter.processes.used import read_state

LASTING_SECONDS = 10.0  # shorter stays are not reported

RUNNING, WAITING, STOPPED, DEAD, ENDED = "running", "waiting", "stopped", "dead", "ended"
_STATES = {"R": RUNNING, "S": WAITING, "D": WAITING, "I": WAITING, "T": STOPPED, "t": STOPPED}


class Presence(NamedTuple):
    """A rank's process at one moment."""

    state: str  # "": it lives, but is out of sight
    place: Place | None = None  # None: not known, or not for long
    seconds: float = 0.0  # in that place


def presence(ages: Ages, now: float, state: Callable[[], str]) -> Presence:
    """Returns what a living rank does at `now`, on the exporter's monotonic clock.

    A process is `running` while it gets on. The `state` of its main thread counts once it is stuck.
    """
    in_place = now - ages.place_began if ages.place else 0.0
    stuck = now - max(ages.phase_began, ages.place_began)
    process = state() if stuck >= LASTING_SECONDS else RUNNING
    if in_place < LASTING_SECONDS:
        return Presence(process)
    return Presence(process, ages.place, in_place)


def left(totals: LedgerTotals) -> Presence:
    """Returns how a process is gone: whether it has said that it ended."""
    return Presence(DEAD if totals.end is None else ENDED)


def main_thread_state(procfs: Path, pid: int | None) -> str:
    """Returns the state of a living process; "" if it is out of sight."""
    return _STATES.get(read_state(procfs, pid), "") if pid is not None else ""
