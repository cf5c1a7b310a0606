"""Runs the training command with its usual terminal, signals and exit status.

Signals are blocked and read one by one, because a handler does not get the sender. A signal from the
terminal reaches the command too; a signal to this process alone must be passed on. Signals must be blocked
before numpy is imported: its BLAS starts threads, and a signal that one thread does not block ends the
whole process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from trainwatch.errors import UserError

SignalMask = set["signal.Signals | int"]

PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)

SENT_BY_TERMINAL = 0x80  # si_code SI_KERNEL, sigaction(2)

_BLOCKED = PASSED_ON | {signal.SIGCHLD}


class TrainingCommand:
    """One command in this process's group: the terminal's Ctrl-C, Ctrl-\\ and Ctrl-Z reach both processes.

    Needs `blocked_signals`; `mask` is the command's signal mask.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], mask: SignalMask) -> None:
        self._words = list(words)
        self._environment = dict(environment)
        self._mask = mask
        self.pid = 0
        self.end: float | None = None  # seconds since the epoch

    def start(self) -> None:
        """Starts the command. Raises UserError if the system cannot."""
        # Python ignores these two signals; a shell does not.
        restored = (signal.SIGPIPE, signal.SIGXFSZ)
        try:
            self.pid = os.posix_spawnp(
                self._words[0], self._words, self._environment, setsigmask=self._mask, setsigdef=restored
            )
        except OSError as error:
            raise UserError(f"cannot run {self._words[0]}: {error.strerror}") from error

    def wait(self, meanwhile: Callable[[], None], every: float = 0.5) -> int:
        """Waits for the command's end and returns its exit status, 128 + n if signal n ended it.

        Calls `meanwhile` every `every` seconds, and earlier when a child of this process has ended.
        """
        while (status := self._status()) is None:
            received = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, every)
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._pass_on(received)
            meanwhile()
        return status

    def _pass_on(self, received: signal.struct_siginfo) -> None:
        if received.si_code == SENT_BY_TERMINAL or received.si_pid == self.pid:
            return  # the command already has it, or sent it
        with suppress(ProcessLookupError):
            os.kill(self.pid, received.si_signo)

    def _status(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        self.end = time.time()
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


@contextmanager
def blocked_signals() -> Iterator[SignalMask]:
    """Blocks signals and yields the mask from before. Drops the signals that arrive while it blocks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        yield set(before)
    finally:
        _forget(_BLOCKED)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interruptible() -> Iterator[None]:
    """Lets Ctrl-C raise KeyboardInterrupt inside; an earlier Ctrl-C is dropped."""
    _forget(frozenset({signal.SIGINT}))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def raise_interrupt() -> None:
    """Raises KeyboardInterrupt after a signal to end, before the command runs."""
    if signal.sigpending() & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}:
        raise KeyboardInterrupt


def _forget(signals: frozenset[signal.Signals]) -> None:
    while signal.sigtimedwait(signals, 0) is not None:
        pass
