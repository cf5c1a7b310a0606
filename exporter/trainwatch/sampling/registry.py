"""Runs the collectors of a tick in isolation: a collector that fails or hangs loses only its own metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic, perf_counter

from trainwatch.errors import describe
from trainwatch.sampling.collector import Collector, SourceAbsentError
from trainwatch.sampling.families import Family
from trainwatch.sampling.sample import Sample

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 2.0


class Registry:
    """The collectors, and the result of each at the last tick.

    Collectors run one after another on the registry's own thread. A collector that does not return within
    `patience` seconds hangs: it keeps that thread, and a new thread continues with the next collectors. It
    is called again only after that call has returned. No collector is ever called twice at once, because
    NVML must be polled from one thread at a time.
    """

    def __init__(self, collectors: Sequence[Collector], patience: float = PATIENCE_SECONDS) -> None:
        self._entries = [_Entry(collector) for collector in collectors]
        self._patience = patience
        self._crew: _Crew | None = None
        self._success = Family(
            "trainwatch_collector_success",
            "gauge",
            "Whether the collector's last reading succeeded (1) or failed (0).",
            ("collector",),
        )
        self._duration = Family(
            "trainwatch_collector_duration_seconds",
            "gauge",
            "How long the collector's last reading took.",
            ("collector",),
        )

    def collect(self, sample: Sample) -> None:
        """Calls every collector to fill `sample`. Returns even if some fail or hang."""
        waiting = [entry for entry in self._entries if not entry.hanging]
        while waiting:
            crew = self._crew = self._crew or _Crew()
            late = crew.run(waiting, sample, self._patience)
            if late is None:
                break
            self._crew = None  # the late collector keeps the thread
            waiting = waiting[waiting.index(late) + 1 :]
        self._success.publish({(entry.name,): int(entry.succeeded) for entry in self._entries})
        self._duration.publish({(entry.name,): entry.seconds for entry in self._entries})

    def families(self) -> Iterable[Family]:
        """Yields the families to publish, without those of collectors that hang."""
        for entry in self._entries:
            if not entry.hanging:
                yield from entry.families
        yield from self.own_families()

    def own_families(self) -> Iterable[Family]:
        """Returns the families about the collectors themselves."""
        return (self._success, self._duration)

    def close(self) -> None:
        """Ends the thread and closes every collector that is not in the middle of a reading."""
        if self._crew is not None:
            self._crew.dismiss()
            self._crew = None
        for entry in self._entries:
            if entry.hanging:
                continue
            try:
                entry.collector.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed too
                logger.warning("collector %s could not be closed: %s", entry.name, describe(error))


class _Entry:
    """One collector and its last result."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.name = collector.name
        self.families = tuple(collector.families)
        self.succeeded = False
        self.hanging = False
        self.seconds = 0.0
        self._complaint: str | None = None
        self._absent = False  # the last reading failed because there is nothing to read
        self._lock = Lock()  # between a reading that ends late and `give_up`
        self._reading = False

    def read(self, sample: Sample) -> bool:
        """Reads the source. Returns whether the reading ended in time; otherwise its thread must end."""
        with self._lock:
            self._reading = True
        begin = perf_counter()
        self._absent = False
        try:
            self.collector.collect(sample)
            complaint = None
        except SourceAbsentError as error:
            complaint, self._absent = describe(error), True
        except Exception as error:  # noqa: BLE001 - whatever a source raises, the other collectors continue
            complaint = describe(error)
        seconds = perf_counter() - begin
        with self._lock:
            self._reading = False
            if self.hanging:  # the tick is over: the collector's samples are stale
                self._clear()
                self.hanging = False
                logger.info("collector %s returned after %.1f s, calling it again", self.name, seconds)
                return False
            self.seconds = seconds
            self._report(complaint)
            return True

    def give_up(self, patience: float) -> bool:
        """Marks the collector as hanging if its reading still runs. Returns whether it hangs."""
        with self._lock:
            if self._reading:
                self.hanging = True
                self.seconds = patience
                self._report(f"no answer within {patience:g} s")
            return self.hanging

    def _report(self, complaint: str | None) -> None:
        """Logs a failure once, not at each tick."""
        self.succeeded = complaint is None
        if complaint is not None:
            self._clear()
        if complaint != self._complaint:
            if complaint is not None:
                level = logging.INFO if self._absent else logging.WARNING
                logger.log(level, "collector %s failed: %s", self.name, complaint)
            else:
                logger.info("collector %s works again", self.name)
        self._complaint = complaint

    def _clear(self) -> None:
        for family in self.families:
            family.clear()


class _Crew:
    """A thread that reads collectors one after another, and notes which it reads now."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Sequence[_Entry], Sample] | None] = SimpleQueue()
        self._done = Event()
        self._current: tuple[_Entry, float] | None = None  # the entry being read, and since when (monotonic)
        Thread(target=self._work, name="collectors", daemon=True).start()

    def run(self, entries: Sequence[_Entry], sample: Sample, patience: float) -> _Entry | None:
        """Returns None when all are done, or the first entry that took more than `patience` seconds."""
        self._done.clear()
        self._current = None
        self._tasks.put((entries, sample))
        remaining = patience
        while not self._done.wait(remaining):
            remaining = patience
            if self._current is not None:
                entry, since = self._current
                remaining = max(0.0, since + patience - monotonic())
                if remaining == 0 and entry.give_up(patience):
                    return entry
        return None

    def dismiss(self) -> None:
        self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            entries, sample = task
            for entry in entries:
                self._current = (entry, monotonic())
                if not entry.read(sample):
                    return
            self._done.set()
