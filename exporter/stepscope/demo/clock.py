"""The time of a simulation, which advances from tick to tick, at real speed or faster."""

from __future__ import annotations

import time
from threading import Event

from stepscope.exporter.sampling.sampler import Clock


class SimulatedClock(Clock):
    """Advances only in `wait`: a late tick is late in real time only, and no tick is ever missed."""

    def __init__(self, start: float, speed: float = 1.0) -> None:
        """Starts at `start`, in seconds since the epoch. `speed` is in simulated seconds per real second."""
        self._start = start
        self._speed = speed
        self._elapsed = 0.0
        self._began = time.monotonic()

    @property
    def real(self) -> bool:
        """Returns whether it is as fast as real time."""
        return self._speed == 1

    def time(self) -> float:
        return self._start + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed

    def wait(self, stopping: Event, seconds: float) -> bool:
        """Waits in real time until `seconds` have passed in simulated time."""
        due = self._began + (self._elapsed + seconds) / self._speed
        if stopping.wait(max(0.0, due - time.monotonic())):
            return True
        self.advance(seconds)
        return False

    def advance(self, seconds: float) -> None:
        """Advances without waiting."""
        self._elapsed += seconds

    def step(self, seconds: float) -> None:
        """Sets the time forward or, if negative, back, as an administrator does; no time passes."""
        self._start += seconds

    def start_waiting(self) -> None:
        """Starts real time now, after what has passed without waiting."""
        self._began = time.monotonic() - self._elapsed / self._speed

    def lag(self) -> float:
        """Returns real minus simulated time, in seconds: added to a simulated moment, it keeps its age."""
        return time.time() - self.time()
