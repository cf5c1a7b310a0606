"""The signals that a command blocks before it imports anything else, for the rest of its life.

A signal that one thread does not block can end the whole process, and libraries start threads when they are
imported: numpy's BLAS does. Threads inherit the mask of the thread that starts them, so the mask comes first.
A command reads its signals, or unblocks them, where it waits.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

Signals = frozenset["signal.Signals | int"]

STOPPING: Signals = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})

SERVED: Signals = frozenset({signal.SIGINT, signal.SIGTERM})  # that end a server normally

_FAULTS = {
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
}

_ENDS_NOTHING = {
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGPIPE,  # Python ignores it, and SIGXFSZ
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGURG,
    signal.SIGWINCH,
    signal.SIGXFSZ,
}

# Every signal that one process sends another to ask for something, and that ends a process without a handler.
PASSED_ON: Signals = frozenset(signal.valid_signals() - _FAULTS - _ENDS_NOTHING - {signal.SIGKILL})

OBSERVER: Signals = PASSED_ON | {signal.SIGCHLD, signal.SIGTSTP}  # that `stepscope run` reads one by one

_BLOCKED = {"run": OBSERVER, "exporter": SERVED, "actions": SERVED, "demo": SERVED}


def take_signals(command: str) -> None:
    """Prepares this process for a command, whose modules are not imported yet.

    SIGTERM becomes like Ctrl-C: what is not finished is removed. `stepscope run` and the servers also get
    their signals blocked.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # of a child that is ignored, nobody gets the exit status
    if not is_ignored(signal.SIGTERM):
        signal.signal(signal.SIGTERM, lambda number, _: exit_as_ended_by(number))
    if command in _BLOCKED:  # until this process ends
        _inherited.append(frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED[command])))


_inherited: list[Signals] = []  # what was blocked before `take_signals`, if it was called


@contextmanager
def blocked(signals: Signals) -> Iterator[Signals]:
    """Blocks signals inside. Gives the mask for other programs: the one that this process began with."""
    before = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, signals))
    try:
        yield next(iter(_inherited), before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def unblocked(signals: Signals) -> Iterator[None]:
    """Lets these signals do inside what their handlers do, also those that have arrived before."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pending(signals: Signals) -> list[int]:
    """Returns the blocked signals that have arrived, the lowest first. Ignored ones ask for nothing."""
    return sorted(each for each in signal.sigpending() & signals if not is_ignored(each))


def is_ignored(number: int) -> bool:
    """Returns whether this process was started to ignore the signal, as `nohup` does with SIGHUP."""
    return signal.getsignal(number) is signal.SIG_IGN


def exit_as_ended_by(number: int) -> None:
    """Ends this process with the status that a shell shows for a process that the signal ended."""
    raise SystemExit(128 + number)


def name_of(number: int) -> str:
    """Returns the signal's name: SIGTERM. Most real-time signals have none: SIG40."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
