"""XID errors: events of the driver, for which a separate thread waits.

https://docs.nvidia.com/deploy/xid-errors/ explains each number.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from threading import Event, Thread

from stepscope.common.xids import xid
from stepscope.exporter.nvidia.device import Gpu
from stepscope.exporter.nvidia.nvml import Nvml, NvmlError, address

logger = logging.getLogger(__name__)

WAIT_MILLISECONDS = 250  # the longest that stopping takes
PAUSE_SECONDS = 1.0  # after a failed wait: a lost GPU makes every wait fail at once


class XidWatcher:
    """Counts the XID errors of GPUs between `start` and `stop`; the counts continue over a restart."""

    def __init__(self, nvml: Nvml) -> None:
        self.counts: dict[tuple[str, str], int] = {}  # by GPU label and XID
        self.watched: Collection[str] = ()  # labels of the GPUs whose errors are counted now
        self._nvml = nvml
        self._stopping = Event()
        self._events: object = None
        self._thread: Thread | None = None

    def start(self, gpus: Iterable[Gpu]) -> None:
        """Registers the GPUs that can report events. An old driver may support none."""
        self.watched = ()
        try:
            events = self._events = self._nvml.event_set()
        except NvmlError as error:
            logger.info("no XID errors are counted: %s", error)
            return
        there = [gpu for gpu in gpus if not gpu.lost and self._register(gpu, events)]
        labels = {address(gpu.handle): gpu.label for gpu in there}
        self.watched = labels.values()
        self._stopping = Event()
        arguments = (events, labels, self._stopping)
        self._thread = Thread(target=self._watch, args=arguments, name="xid", daemon=True)
        self._thread.start()

    def stop(self, patience: float = 5.0) -> bool:
        """Returns whether the thread ended in time: only then may NVML be shut down."""
        if self._thread is None:
            return True
        self._stopping.set()
        self._thread.join(patience)
        if self._thread.is_alive():
            return False
        self._thread = None
        with suppress(NvmlError):  # NVML may have ended, and freed it
            self._nvml.free_event_set(self._events)
        return True

    def _register(self, gpu: Gpu, events: object) -> bool:
        try:
            self._nvml.watch_xids(gpu.handle, events)
        except NvmlError as error:
            logger.info("no XID errors of GPU %s are counted: %s", gpu.label, error)
            return False
        return True

    def _watch(self, events: object, labels: dict[int, str], stopping: Event) -> None:
        while not stopping.is_set():
            event = self._wait(events, stopping)
            if event is not None:
                self._count(labels.get(event[0], "unknown"), str(event[1]))

    def _wait(self, events: object, stopping: Event) -> tuple[int, int] | None:
        try:
            return self._nvml.wait_for_event(events, WAIT_MILLISECONDS)
        except NvmlError as error:
            if not error.timeout:
                stopping.wait(PAUSE_SECONDS)
        except Exception:  # the thread must not end, because nobody would count from then on
            logger.exception("waiting for XID errors failed")
            stopping.wait(PAUSE_SECONDS)
        return None

    def _count(self, label: str, xid: str) -> None:
        counts = dict(self.counts)  # a copy, because another thread may be publishing the old mapping
        counts[label, xid] = counts.get((label, xid), 0) + 1
        if (label, xid) not in self.counts:
            logger.warning("GPU %s reported XID error %s; more of them are only counted", label, xid)
        self.counts = counts


def last_xids(before: Mapping[tuple[str, str], int], now: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """Returns the XID reported between two counts, by GPU label.

    Prefers errors of the GPU: the driver reports the end of a program (XID 45) after the error that ended it.
    """
    new = [(gpu, int(xid)) for (gpu, xid), count in now.items() if count > before.get((gpu, xid), 0)]
    return dict(sorted(new, key=lambda found: not xid(found[1]).of_the_program))
