"""The time of a simulation: it advances from tick to tick, so many times as fast as the real one."""

from __future__ import annotations

import time
from threading import Event

from trainwatch.sampling.sampler import Clock


class SimulatedClock(Clock):
    """Stands still but for `wait`; so a late tick is late in real time only, and none is ever missed."""

    def __init__(self, start: float, speed: float = 1.0) -> None:
        """`start`: seconds since the epoch. `speed`: simulated seconds a real one."""
        self._start = start
        self._speed = speed
        self._elapsed = 0.0
        self._began = time.monotonic()

    @property
    def real(self) -> bool:
        """Whether it is as fast as the real time."""
        return self._speed == 1

    def time(self) -> float:
        return self._start + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed

    def wait(self, stopping: Event, seconds: float) -> bool:
        """Waits until as much real time has passed since the beginning as its speed makes of it."""
        due = self._began + (self._elapsed + seconds) / self._speed
        if stopping.wait(max(0.0, due - time.monotonic())):
            return True
        self.advance(seconds)
        return False

    def advance(self, seconds: float) -> None:
        """Lets time pass at once."""
        self._elapsed += seconds

    def go_on_from_here(self) -> None:
        """Lets real time begin now, behind what has passed at once."""
        self._began = time.monotonic() - self._elapsed / self._speed

    def behind_real_time(self) -> float:
        """Seconds that, added to a simulated moment, make its age by the real clock its simulated age."""
        return time.time() - self.time()
