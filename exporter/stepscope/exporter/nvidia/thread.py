"""The only thread that polls NVML, so a call that hangs in the driver blocks nothing else."""

import logging
from queue import SimpleQueue
from threading import Event, Thread

from stepscope.exporter.nvidia.nvml import Nvml
from stepscope.exporter.nvidia.session import NoReadingError, Reading, Session

logger = logging.getLogger(__name__)

CLOSING_SECONDS = 7.0  # for the end of the wait for XID errors, and of NVML


class _Request:
    """A request for one reading. The caller may have given up waiting for it."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.done = Event()
        self.given_up = False
        self.reading: Reading | None = None
        self.error: BaseException | None = None


class NvmlThread:
    """Reads on request. There is one request at a time: no queue forms during a call that hangs."""

    def __init__(self, nvml: Nvml, session: Session) -> None:
        self._nvml = nvml
        self._session = session
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._last: _Request | None = None
        self._thread: Thread | None = None

    def read(self, interval: float, patience: float) -> Reading:
        """Returns a new reading. Raises `NoReadingError` after `patience` seconds without one."""
        if self._thread is None:
            thread = Thread(target=self._work, name="nvml", daemon=True)
            thread.start()
            self._thread = thread
        if self._last is not None and not self._last.done.is_set():
            raise NoReadingError(self._what_hangs())
        request = self._last = _Request(interval)
        self._requests.put(request)
        if not request.done.wait(patience):
            request.given_up = True
            raise NoReadingError(self._what_hangs())
        if request.error is not None:
            raise request.error
        assert request.reading is not None
        return request.reading

    def close(self) -> None:
        """Ends the thread and NVML, unless a call hangs."""
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join(CLOSING_SECONDS)

    def _what_hangs(self) -> str:
        call = self._nvml.calling or "reading NVML"
        return (
            f"{call}, about {self._nvml.subject}, has not returned yet; the exporter continues when it does"
        )

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            if not request.given_up:  # while this thread was busy between two ticks
                self._answer(request)
            request.done.set()
            if request.reading is not None:
                try:
                    self._session.work_between_ticks(request.interval)
                except Exception:  # nobody waits for it, and the thread must not end
                    logger.exception("the work between two readings of the GPUs failed")
        self._session.close()

    def _answer(self, request: _Request) -> None:
        try:
            request.reading = self._session.read(request.interval)
        except BaseException as error:  # noqa: BLE001 - the caller raises it; the thread must not end
            request.error = error
