"""Ends a server that cannot serve any more, so that whatever started it starts another one."""

import logging
import os
import signal
from threading import Lock
from time import monotonic

from stepscope.common.errors import describe

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 30.0  # for something that fails at every attempt
ATTEMPTS = 3  # at least: the process may have been stopped after a single failure
ENDING_SECONDS = 20  # for a clean end; then the kernel ends the process


class Watchdog:
    """Notices that the server's own work fails at every attempt, for lack of descriptors, threads or memory.

    Its parts say when an attempt `worked` or `failed`. Without an attempt nothing fails. So a client that is
    silent, slow or hostile never ends the server: its connection was accepted. Nothing asks the server from
    outside, because a request needs descriptors, too.
    """

    def __init__(self) -> None:
        self.gave_up = False
        self._failing: dict[str, tuple[float, int]] = {}  # since when (monotonic), and how many attempts
        self._lock = Lock()  # the sampler has its own thread

    def worked(self, what: str) -> None:
        """Notes a success of `what`, such as "accepting connections"."""
        self._failing.pop(what, None)

    def failed(self, what: str, error: BaseException) -> None:
        """Notes a failure. After PATIENCE_SECONDS of nothing else, sends this process SIGTERM."""
        now = monotonic()
        with self._lock:
            since, attempts = self._failing.get(what, (now, 0))
            self._failing[what] = since, attempts + 1
            if self.gave_up or attempts + 1 < ATTEMPTS or now - since < PATIENCE_SECONDS:
                return
            self.gave_up = True
        logger.critical(
            "%s has failed for %.0f s, so this process ends to be started again: %s",
            what,
            now - since,
            describe(error),
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})  # blocked below `stepscope run`
        signal.alarm(ENDING_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
