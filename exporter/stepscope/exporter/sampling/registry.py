"""Runs the collectors and the sinks of a tick in isolation: one that fails or hangs loses only its own."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic, perf_counter

from stepscope.common.errors import describe
from stepscope.exporter.sampling.apart import owner_in
from stepscope.exporter.sampling.collector import Collector, SourceAbsentError
from stepscope.exporter.sampling.families import Family, FamilyTable
from stepscope.exporter.sampling.sample import Sample

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 2.0
SLOW = 1 / 4  # of the patience: a task that took longer is slow,
BRIEF = 1 / 16  # and the next tick waits only this long for it
LASTING_SECONDS = 60.0  # a failure that lasts is logged once more, and other failures not more often

METRICS = """
gauge stepscope_collector_success{collector}
    Whether the collector's last reading succeeded (1) or failed (0); absent without its source.
gauge stepscope_collector_duration_seconds{collector}
    How long the collector's last reading took.
counter stepscope_collector_left_out_total{collector}
    Ticks of a run, process or device that the collector left out after an error; the log names it.
"""

Sink = Callable[[Sample], None]


class Registry:
    """The collectors and sinks, and the result of each at the last tick.

    They run one after another on the registry's own thread. One that does not return within `patience`
    seconds hangs: it keeps that thread, and a new thread continues with the next ones. It is called again
    only after that call has returned. No collector is ever called twice at once, because NVML must be polled
    from one thread at a time.

    A collector that is slow, but does not hang, costs the others no samples either: the tick after a slow
    call waits only briefly. The collector's metrics are then published when it returns. A tick in which one
    hangs waits only briefly for the next ones, because what makes one hang often makes several hang.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        patience: float = PATIENCE_SECONDS,
        sinks: Mapping[str, Sink] | None = None,
    ) -> None:
        self._collectors = collectors
        self._readings = [
            _Task(f"collector {each.name}", each.collect, patience, each.families) for each in collectors
        ]
        self._sinks = [_Task(name, sink, patience) for name, sink in (sinks or {}).items()]
        self._crew: _Crew | None = None
        self.own_families = tuple(FamilyTable(METRICS).values())  # about the collectors themselves

    def collect(self, sample: Sample) -> None:
        """Calls every collector to fill `sample`, then every sink. Returns even if some fail or hang."""
        waiting = [task for task in (*self._readings, *self._sinks) if not task.still_busy()]
        late = None
        while waiting:
            crew = self._crew = self._crew or _Crew()
            late = crew.run(waiting, sample, hurried=late is not None)
            if late is None:
                break
            self._crew = None  # the late task keeps the thread, and its sample
            sample = replace(sample)
            waiting = waiting[waiting.index(late) + 1 :]
        readings = list(zip(self._collectors, self._readings, strict=True))
        success, duration, left_out = self.own_families
        success.publish({(each.name,): int(read.succeeded) for each, read in readings if not read.absent})
        duration.publish({(each.name,): reading.seconds for each, reading in readings})
        left_out.publish({(each.name,): each.apart.lost for each in self._collectors if each.apart.lost})

    def families(self) -> Iterable[Family]:
        """Yields the collectors' families, without those of collectors that hang."""
        for reading in self._readings:
            if not reading.hanging:
                yield from reading.families

    def collect_last(self, collector: Collector, sample: Sample) -> None:
        """Calls one collector once more, unless it hangs."""
        reading = self._readings[self._collectors.index(collector)]
        if not reading.still_busy():
            (self._crew or _Crew()).run([reading], sample, hurried=False)

    def close(self) -> None:
        """Ends the thread and closes every collector that is not in the middle of a reading."""
        if self._crew is not None:
            self._crew.dismiss()
            self._crew = None
        for collector, reading in zip(self._collectors, self._readings, strict=True):
            if reading.still_busy():
                continue
            try:
                collector.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed too
                logger.warning("collector %s could not be closed: %s", collector.name, describe(error))


class _Task:
    """One collector or sink, which is called at each tick, and its last result."""

    def __init__(
        self,
        name: str,
        act: Callable[[Sample], None],
        patience: float,
        families: Iterable[Family] = (),
    ) -> None:
        self.families = tuple(families)
        self.succeeded = False
        self.hanging = False
        self.seconds = 0.0
        self.absent = False  # the last reading failed because there is nothing to read
        self._name = name
        self._act = act
        self._patience = patience
        self._logged: str | None = None  # the failure in the log; None: it works
        self._logged_at = -inf  # monotonic
        self._failing_since: float | None = None  # monotonic; None: it works, or there is nothing to read
        self._lasts = False  # the log says that it failed for long
        self._lock = Lock()  # between an end that comes late and the ticks
        self._since: float | None = None  # begin of the call (monotonic), while it runs
        self._left_behind = False  # the tick continued without it

    def patience(self, hurried: bool) -> float:
        """Returns the seconds that a tick waits for it: fewer if it was slow at the last tick."""
        return self._patience * (BRIEF if hurried or self.seconds > self._patience * SLOW else 1)

    def call(self, sample: Sample) -> bool:
        """Performs the task. Returns whether it ended in time; otherwise its thread must end."""
        with self._lock:
            self._since = monotonic()
        begin = perf_counter()
        self.absent = False
        try:
            self._act(sample)
            complaint = None
        except SourceAbsentError as error:
            complaint, self.absent = describe(error), True
        except BaseException as error:  # noqa: BLE001 - even SystemExit: whatever it raises, the others continue
            complaint = describe(error) + owner_in(error)
        with self._lock:
            self._since = None
            self.seconds = perf_counter() - begin
            in_time, self._left_behind = not self._left_behind, False
            if self.hanging:  # what it published is stale
                self._clear()
                self.hanging = False
                logger.info("%s returned after %.1f s, calling it again", self._name, self.seconds)
            else:
                self._report(complaint)
            return in_time

    def leave_behind(self) -> bool:
        """Lets the tick continue without the task if it still runs. Returns whether it does."""
        with self._lock:
            self._left_behind = self._since is not None
            self._look_whether_it_hangs()
            return self._left_behind

    def still_busy(self) -> bool:
        """Returns whether a call of an earlier tick still runs."""
        with self._lock:
            self._look_whether_it_hangs()
            return self._since is not None

    def _look_whether_it_hangs(self) -> None:
        if self._since is not None and not self.hanging and monotonic() - self._since >= self._patience:
            self.hanging = True
            self.seconds = self._patience
            self._report(f"no answer within {self._patience:g} s")

    def _report(self, complaint: str | None) -> None:
        """Logs a failure at its begin, once more when it has lasted, and its end: not at each tick."""
        self.succeeded = complaint is None
        if complaint is None:
            if self._logged is not None:
                logger.info("%s works again", self._name)
            self._logged, self._failing_since, self._lasts = None, None, False
            return
        self._clear()
        now = monotonic()
        if self.absent:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        lasts = self._failing_since is not None and now - self._failing_since >= LASTING_SECONDS
        if lasts and not self._lasts:
            self._lasts = True
            logger.error("%s has failed for %.0f s: %s", self._name, LASTING_SECONDS, complaint)
        elif complaint != self._logged and now - self._logged_at >= LASTING_SECONDS:
            level = logging.INFO if self.absent else logging.WARNING
            logger.log(level, "%s failed: %s", self._name, complaint)
        else:
            return
        self._logged, self._logged_at = complaint, now

    def _clear(self) -> None:
        for family in self.families:
            family.clear()


class _Crew:
    """A thread that performs tasks one after another, and notes which it performs now."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[tuple[Sequence[_Task], Sample] | None] = SimpleQueue()
        self._done = Event()
        self._current: tuple[_Task, float] | None = None  # the task, and since when (monotonic)
        Thread(target=self._work, name="collectors", daemon=True).start()

    def run(self, tasks: Sequence[_Task], sample: Sample, hurried: bool) -> _Task | None:
        """Returns None when all are done, or the first task that took longer than its patience."""
        self._done.clear()
        self._current = None
        self._orders.put((tasks, sample))
        remaining = tasks[0].patience(hurried)
        while not self._done.wait(remaining):
            remaining = tasks[0].patience(hurried)
            if self._current is not None:
                task, since = self._current
                remaining = max(0.0, since + task.patience(hurried) - monotonic())
                if remaining == 0 and task.leave_behind():
                    return task
        return None

    def dismiss(self) -> None:
        self._orders.put(None)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            tasks, sample = order
            for task in tasks:
                self._current = (task, monotonic())
                if not task.call(sample):
                    return
            self._done.set()
