"""What the situations share: whether this is the healthy twin, how long it trains, and its clock."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from time import perf_counter

GOOD = "--good" in sys.argv[1:]
SECONDS = 7.0 if GOOD else 10.0  # of training
FOLDER = "EVERYDAY_CLOCK"  # the variable with the folder that each rank writes its clock into


class Clock:
    """Sums the seconds that the cause takes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begin = 0.0
        self._process = os.getpid()

    def __enter__(self) -> None:
        self._begin = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.since(self._begin)

    def since(self, begin: float) -> None:
        """Adds the seconds since `begin`, a time of perf_counter."""
        self.seconds += perf_counter() - begin

    def write(self) -> None:
        """Writes the seconds into the folder of $EVERYDAY_CLOCK, unless nothing was clocked."""
        if self.seconds and FOLDER in os.environ and os.getpid() == self._process:
            file = Path(os.environ[FOLDER]) / f"clock-{os.environ.get('RANK', '0')}"
            file.write_text(str(self.seconds))


_end = 0.0


def lasts() -> bool:
    """Returns whether training goes on. It begins with the first call."""
    global _end
    _end = _end or perf_counter() + SECONDS
    return perf_counter() < _end


def clocked(folder: Path) -> float | None:
    """Returns the seconds of the rank that clocked most; None if none did."""
    return max((float(file.read_text()) for file in folder.glob("clock-*")), default=None)


cost = Clock()
atexit.register(cost.write)
