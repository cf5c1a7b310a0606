"""The time as the sampler has it: the real one, or one that a simulation sets."""

from __future__ import annotations

import time
from threading import Event


class Clock:
    """The real time."""

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()

    def wait(self, stopping: Event, seconds: float) -> bool:
        """Waits for `seconds`, or until the event is set. Returns whether it is."""
        return stopping.wait(seconds)
