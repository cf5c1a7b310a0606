"""Runs the observed command as if we were not there: its terminal, its signals, its exit status."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from trainwatch.errors import UserError
from trainwatch.run.signals import PASSED_ON, SENT_BY_TERMINAL, SignalMask


class TrainingCommand:
    """One command, in our process group: the terminal's Ctrl-C, Ctrl-\\ and Ctrl-Z reach it and us alike.

    Needs the signals of `trainwatch.run.signals` blocked; `mask` is what the command starts with.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], mask: SignalMask) -> None:
        self._words = list(words)
        self._environment = dict(environment)
        self._mask = mask
        self.pid = 0
        self.end: float | None = None  # seconds since the epoch

    def start(self) -> None:
        """Starts the command. Raises UserError where the system does not know how to."""
        # Python ignores these two; the command expects them as a shell gives them.
        restored = (signal.SIGPIPE, signal.SIGXFSZ)
        try:
            self.pid = os.posix_spawnp(
                self._words[0], self._words, self._environment, setsigmask=self._mask, setsigdef=restored
            )
        except OSError as error:
            raise UserError(f"cannot run {self._words[0]}: {error.strerror}") from error

    def wait(self, meanwhile: Callable[[], None], every: float = 0.5) -> int:
        """Waits for the command's end and returns its exit status, 128 + n where signal n ended it.

        Calls `meanwhile` each `every` seconds, and earlier when a child of this process has ended.
        """
        while (status := self._status()) is None:
            received = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, every)
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._pass_on(received)
            meanwhile()
        return status

    def _pass_on(self, received: signal.struct_siginfo) -> None:
        if received.si_code == SENT_BY_TERMINAL or received.si_pid == self.pid:
            return  # the command has it already, or sent it
        with suppress(ProcessLookupError):
            os.kill(self.pid, received.si_signo)

    def _status(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        self.end = time.time()
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code
