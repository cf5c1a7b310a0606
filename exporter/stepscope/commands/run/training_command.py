"""Runs the training command with its usual terminal, signals and exit status.

Signals are blocked (stepscope/common/signals.py) and read one by one, because a handler does not get the
sender. A signal from the terminal reaches the command too; a signal to this process alone must be passed on.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stepscope.commands.run.terminal import say
from stepscope.common.errors import UserError
from stepscope.common.masking import masked
from stepscope.common.signals import (
    OBSERVER,
    PASSED_ON,
    STOPPING,
    Signals,
    exit_as_ended_by,
    is_ignored,
    name_of,
    pending,
    unblocked,
)
from stepscope.exporter.ledgers.presence import OUTSIDE, TERMINAL
from stepscope.exporter.sampling.sampler import SteadyClock

SENT_BY_TERMINAL = 0x80  # si_code SI_KERNEL, sigaction(2)


class TrainingCommand:
    """One command in this process's group: the terminal's Ctrl-C, Ctrl-\\ and Ctrl-Z reach both processes.

    Needs blocked signals; `mask` is the command's signal mask.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], mask: Signals) -> None:
        self._words = list(words)
        self._environment = dict(environment)
        self._mask = mask
        self._clock = SteadyClock()
        self.pid = 0
        self.end: float | None = None  # seconds since the epoch
        self.ended_by: int | None = None  # the signal that was sent to stop it, or that killed it
        self.stopped_by = ""  # who sent that signal, as in run.json
        self._early: set[int] = set()  # signals that may have come before the command was there

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
        # The command has no handlers yet, so it does not matter if it gets one of them twice.
        self._early = set(signal.sigpending() & OBSERVER)

    def wait(self, meanwhile: Callable[[], None], before_stop: Callable[[], None], every: float = 0.5) -> int:
        """Waits for the command's end and returns its exit status, 128 + n if signal n ended it.

        Calls `meanwhile` every `every` seconds, and earlier when a child of this process has ended. Calls
        `before_stop` before Ctrl-Z stops this process, too.
        """
        while (status := self._status()) is None:
            received = signal.sigtimedwait(OBSERVER, every)
            # After SIGCONT, Python may return a signal that there was not.
            if received is not None and received.si_signo in (*PASSED_ON, signal.SIGTSTP):
                self._receive(received, before_stop)
            meanwhile()
        return status

    def _receive(self, received: signal.struct_siginfo, before_stop: Callable[[], None]) -> None:
        number = received.si_signo
        by_terminal = received.si_code == SENT_BY_TERMINAL
        has_it = (by_terminal and number not in self._early) or received.si_pid == self.pid
        self._early.discard(number)
        # Only the terminal continues both: `kill -TSTP` is for this process.
        if not has_it and (by_terminal or number != signal.SIGTSTP):
            has_it = self._pass_on(number) or by_terminal
        if has_it and number in STOPPING and not is_ignored(number):
            self._asked(received)
        if number == signal.SIGTSTP:
            before_stop()
            _stop()

    def _pass_on(self, number: int) -> bool:
        """Returns whether the command may get signals of this user: `sudo` may not."""
        try:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
        except PermissionError:
            say(f"{name_of(number)} was not passed on: process {self.pid} is another user's", "warning")
            return False
        return True

    def _asked(self, received: signal.struct_siginfo) -> None:
        self.ended_by = received.si_signo
        self.stopped_by = TERMINAL if received.si_code == SENT_BY_TERMINAL else _program(received.si_pid)

    def _status(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        self.end = self._clock.time()
        code = os.waitstatus_to_exitcode(status)
        # The command was asked, too, and quicker.
        if self.ended_by is None and (asked := pending(STOPPING)) and (it := signal.sigtimedwait(asked, 0)):
            self._asked(it)
        if self.ended_by is None and code < 0:
            self.ended_by = -code
        return code if code >= 0 else 128 - code


def _program(pid: int) -> str:
    """Returns the name of the program that runs in a process; "" if it has ended."""
    if not pid:  # the kernel gives no pid of a process outside this container
        return OUTSIDE
    with suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
        return name if name.isprintable() else ""
    return ""


def _stop() -> None:
    """Stops this process until it is continued, unless the kernel sees that nobody could continue it."""
    with unblocked(frozenset({signal.SIGTSTP})):
        os.kill(os.getpid(), signal.SIGTSTP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Lets Ctrl-C raise KeyboardInterrupt inside, and Ctrl-Z stop; an earlier Ctrl-C is dropped."""
    while signal.sigtimedwait({signal.SIGINT}, 0) is not None:
        pass
    with unblocked(frozenset({signal.SIGINT, signal.SIGTSTP})):
        yield


def end_if_asked() -> None:
    """Raises SystemExit after a signal that ends a process, before the command runs."""
    if asked := pending(PASSED_ON):
        exit_as_ended_by(asked[0])


def asked_to_stop() -> bool:
    """Returns whether a signal to stop waits to be handled."""
    return bool(pending(STOPPING))
