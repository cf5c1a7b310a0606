"""Signals while a command is observed: blocked, and looked at one by one instead.

A handler would not learn who sent a signal. What the terminal sent has reached the command too; what
somebody sent to us alone must be passed on. Signals must be blocked before numpy is imported: its
BLAS starts threads, and a signal that one thread does not block ends the whole process.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SignalMask = set["signal.Signals | int"]

PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)

SENT_BY_TERMINAL = 0x80  # si_code SI_KERNEL, sigaction(2)

_BLOCKED = PASSED_ON | {signal.SIGCHLD}


@contextmanager
def blocked_signals() -> Iterator[SignalMask]:
    """Blocks them for a while; gives the mask of before. Those that come meanwhile end nothing."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        yield set(before)
    finally:
        _forget(_BLOCKED)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interruptible() -> Iterator[None]:
    """Lets Ctrl-C raise KeyboardInterrupt for a while; those that came before do not count."""
    _forget(frozenset({signal.SIGINT}))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def raise_interrupt() -> None:
    """Raises KeyboardInterrupt where somebody wants us to end. For the time before the command runs."""
    if signal.sigpending() & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}:
        raise KeyboardInterrupt


def _forget(signals: frozenset[signal.Signals]) -> None:
    while signal.sigtimedwait(signals, 0) is not None:
        pass
