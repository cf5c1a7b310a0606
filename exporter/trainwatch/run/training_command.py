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
from trainwatch.masking import masked

SignalMask = set["signal.Signals | int"]

PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)

STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})

SENT_BY_TERMINAL = 0x80  # si_code SI_KERNEL, sigaction(2)

_BLOCKED = PASSED_ON | {signal.SIGCHLD, signal.SIGTSTP}


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
        self.ended_by: signal.Signals | None = None  # that was sent to stop it, or that killed it

    def start(self) -> None:
        """Starts the command. Raises UserError if the system cannot."""
        # Python ignores these two signals; a shell does not.
        restored = (signal.SIGPIPE, signal.SIGXFSZ)
        try:
            self.pid = os.posix_spawnp(
                self._words[0], self._words, self._environment, setsigmask=self._mask, setsigdef=restored
            )
        except OSError as error:
            raise UserError(f"cannot run {masked(self._words)[0]}: {error.strerror}") from error

    def wait(self, meanwhile: Callable[[], None], before_stop: Callable[[], None], every: float = 0.5) -> int:
        """Waits for the command's end and returns its exit status, 128 + n if signal n ended it.

        Calls `meanwhile` every `every` seconds, and earlier when a child of this process has ended. Calls
        `before_stop` before Ctrl-Z stops this process, too.
        """
        while (status := self._status()) is None:
            received = signal.sigtimedwait(_BLOCKED, every)
            if received is not None and received.si_signo == signal.SIGTSTP:
                before_stop()
                _stop()
            # After SIGCONT, Python may return a signal that there was not.
            elif received is not None and received.si_signo in PASSED_ON:
                if received.si_signo in STOPPING:
                    self.ended_by = signal.Signals(received.si_signo)
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
        if code < 0 and self.ended_by is None:
            self.ended_by = signal.Signals(-code)
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


def _stop() -> None:
    """Stops this process until it is continued, unless the kernel sees that nobody could continue it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


@contextmanager
def interruptible() -> Iterator[None]:
    """Lets Ctrl-C raise KeyboardInterrupt inside, and Ctrl-Z stop; an earlier Ctrl-C is dropped."""
    _forget(frozenset({signal.SIGINT}))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTSTP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTSTP})


def raise_interrupt() -> None:
    """Raises KeyboardInterrupt after a signal to end, before the command runs."""
    if signals_to_end():
        raise KeyboardInterrupt


def signals_to_end() -> bool:
    """Returns whether a signal to end waits to be handled."""
    return bool(signal.sigpending() & STOPPING)


def _forget(signals: frozenset[signal.Signals]) -> None:
    while signal.sigtimedwait(signals, 0) is not None:
        pass
