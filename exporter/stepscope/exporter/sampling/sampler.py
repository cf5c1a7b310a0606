"""Takes a sample every interval, without drift."""

import logging
import time
from threading import Event, Thread

from stepscope.common.errors import describe
from stepscope.common.watchdog import Watchdog
from stepscope.exporter.sampling.families import FamilyTable
from stepscope.exporter.sampling.registry import Registry
from stepscope.exporter.sampling.sample import Sample

logger = logging.getLogger(__name__)

SAMPLING = "taking samples"
METRICS = """
counter stepscope_sampler_ticks_total
    Samples that the sampler has taken.
counter stepscope_sampler_ticks_missed_total
    Samples that were due but not taken, because the one before took too long.
"""


class Clock:
    """The sampler's clock: the system's, unless a simulation replaces it."""

    def time(self) -> float:
        """Returns seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Returns seconds since some moment; they never go back."""
        return time.monotonic()

    def wait(self, stopping: Event, seconds: float) -> bool:
        """Waits for `seconds`, or until the event is set. Returns whether it was set."""
        return stopping.wait(seconds)


class SteadyClock(Clock):
    """The system's clock when this one was made, and the time that has passed since: nobody sets it.

    The times of a recording are those of the steps, which processes measure from their own start.
    """

    def __init__(self) -> None:
        self._epoch = time.time() - time.monotonic()

    def time(self) -> float:
        return self._epoch + self.monotonic()


class Schedule:
    """Absolute deadlines, `interval` apart: a late tick does not delay later ticks."""

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._origin = now
        self._next = 0  # the number of the next deadline; the first deadline is now

    def wait_seconds(self, now: float) -> float:
        """Returns the seconds until the next deadline; negative if it has passed."""
        return self._origin + self._next * self._interval - now

    def tick(self, now: float) -> int:
        """Serves the deadline that has passed. Returns how many other deadlines were missed."""
        due = int((now - self._origin) / self._interval)
        missed = max(0, due - self._next)
        self._next += missed + 1
        return missed


class Sampler:
    """A thread that ticks. At each tick the registry fills a new `Sample` and passes it on."""

    def __init__(
        self,
        registry: Registry,
        interval: float,
        clock: Clock | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._registry = registry
        self._interval = interval
        self._complaint = ""
        self._clock = clock or Clock()
        self._watchdog = watchdog
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="sampler", daemon=True)
        self._last_tick: float | None = None  # by the monotonic clock
        self._ticks, self._missed = self.families = tuple(FamilyTable(METRICS).values())
        self._ticks_count = self._missed_count = 0
        self._publish()

    def start(self) -> None:
        """Starts ticking, with the first tick at once."""
        self._thread.start()

    def stop(self, patience: float = 5.0) -> bool:
        """Waits for a tick in progress, for at most `patience` seconds. Returns whether the thread ended."""
        self._stopping.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join(patience)
        return not self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Returns whether a first sample has been taken."""
        return self._last_tick is not None

    def fresh(self) -> bool:
        """Returns whether the last sample is new enough to be published: from one of the last few ticks."""
        # A collector that hangs delays one tick by the registry's patience, 2 s.
        age_limit = max(4 * self._interval, 4.0)
        return self._last_tick is not None and self._clock.monotonic() - self._last_tick < age_limit

    def _run(self) -> None:
        clock = self._clock
        schedule = Schedule(self._interval, clock.monotonic())
        while not clock.wait(self._stopping, max(0.0, schedule.wait_seconds(clock.monotonic()))):
            self._missed_count += schedule.tick(clock.monotonic())
            try:
                self.tick()
            except BaseException as error:  # noqa: BLE001 - no thread may be left: the next tick may succeed
                self._missed_count += 1
                self._complain(describe(error))
                if self._watchdog:
                    self._watchdog.failed(SAMPLING, error)
            else:
                if self._watchdog:
                    self._watchdog.worked(SAMPLING)

    def tick(self) -> None:
        """Takes one sample; the sampler's thread calls this at each deadline."""
        self._registry.collect(self.sample())
        self._ticks_count += 1
        self._publish()
        self._last_tick = self._clock.monotonic()
        self._complaint = ""

    def sample(self) -> Sample:
        """Returns an empty sample of this moment."""
        return Sample(self._clock.time(), self._interval, monotonic=self._clock.monotonic())

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:  # once, not at each tick
            logger.error("a sample could not be taken: %s", complaint)
        self._complaint = complaint

    def _publish(self) -> None:
        self._ticks.publish({(): self._ticks_count})
        self._missed.publish({(): self._missed_count})
