"""Finds the training processes of a run on this node, and asks them to stop.

Every user can put a file into the ledger directory, and a pid may soon belong to another process. So only
the run and the rank of a ledger are trusted. Its steps and checkpoints can only spare its own run. A process
gets a signal only under these conditions:

- By the kernel, it holds the lock of the ledger. No file can forge that, and `kill -9` ends it.

- It wrote the ledger: the pid in the ledger is the process's own, in its own PID namespace.

- It runs as the owner of the ledger file, so no user can stop another user's process.

- It is still the same process. Its start time, its user and its lock are compared just before the signal,
  which goes to a pidfd if the kernel has them: that is one process, never a later one with its pid.
"""

import errno
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stepscope.common.users import user_name
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers

logger = logging.getLogger(__name__)

PROC = Path("/proc")
LONGEST_CHECKPOINT = 600.0  # seconds; as TrainingStalled's parameter `known`


@dataclass(frozen=True)
class Identity:
    """Pid, start and users of a process: no later process has the same ones. Source: proc(5)."""

    pid: int
    start: int  # clock ticks from the node's boot to the start of the process
    users: frozenset[int]  # real, effective and saved
    own_pid: int  # in its innermost PID namespace

    @classmethod
    def read(cls, pid: int) -> "Identity | None":
        """Returns the identity of a process; None if it has ended or is hidden from this user."""
        try:
            stat = (PROC / str(pid) / "stat").read_bytes()
            status = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # hidepid=1 refuses
            return None
        start = int(stat.rpartition(b")")[2].split()[19])  # the name before it may contain anything
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        users = frozenset(map(int, fields["Uid"].split()[:3]))
        own_pid = fields.get("NSpid", f"{pid}").split()[-1]  # missing before Linux 4.1
        return cls(pid, start, users, int(own_pid))


class TrainingProcess:
    """A process that holds a ledger, and the reason to spare it ("": there is none)."""

    def __init__(self, reader: LedgerReader, pid: int) -> None:
        self._reader = reader
        self.ledger = reader.path.name
        self.owner = reader.owner
        self.rank = reader.header.rank
        self.run_start = reader.header.start  # seconds since the epoch
        self.pid = pid
        self.identity = Identity.read(pid) if pid > 0 else None
        self.key = (pid, self.identity.start if self.identity else None)
        self.spared = self._reason_to_spare()
        self._last_step_end = 0.0
        self._checkpoint_since: float | None = None
        with suppress(LedgerError):  # corrupt counters spare nobody
            totals = reader.totals()
            self._last_step_end = totals.last_step_end or 0.0
            self._checkpoint_since = totals.component_since if totals.component == "checkpoint" else None

    def trains_since(self, time: float) -> bool:
        """Returns whether it has finished a step since then, in seconds since the epoch."""
        return self._last_step_end > time

    def writes_checkpoint(self, now: float) -> bool:
        """Returns whether it writes a checkpoint, for no longer than one may take."""
        return self._checkpoint_since is not None and now - self._checkpoint_since < LONGEST_CHECKPOINT

    def ask_to_stop(self) -> str:
        """Sends SIGTERM if it is still the process that was found. Returns the result in words."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return "had ended already"
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):  # before Linux 5.3, or not allowed here
                return f"has no pidfd: {error.strerror}"
            return self._signal(lambda: os.kill(self.pid, signal.SIGTERM))
        try:
            return self._signal(lambda: signal.pidfd_send_signal(pidfd, signal.SIGTERM))
        finally:
            os.close(pidfd)

    def _signal(self, send: Callable[[], None]) -> str:
        if not self._holds_ledger():
            return "no longer holds its ledger"
        if Identity.read(self.pid) != self.identity:
            return "is not the same process any more"
        try:
            send()
        except ProcessLookupError:
            return "had ended already"
        except PermissionError:
            return f"not permitted to user {user_name(os.geteuid())}"
        return "sent"

    def _holds_ledger(self) -> bool:
        try:
            with self._reader:
                return self._reader.holder() == self.pid
        except OSError:  # removed, or replaced by another file
            return False

    def _reason_to_spare(self) -> str:
        if self.pid <= 0:
            return "runs in a PID namespace that cannot be seen from here"
        if self.identity is None:
            return "cannot be seen in /proc"
        if others := self.identity.users - {self.owner}:
            return f"runs as user {user_name(min(others))}, but its ledger is of {user_name(self.owner)}"
        if self.identity.own_pid != self._reader.header.pid:
            return f"is not the process {self._reader.header.pid} that the ledger names"
        return ""


def processes_of(run: str, owner: int, ledger_directory: Path) -> list[TrainingProcess]:
    """Returns the live processes of a user's run, by rank. Logs and skips ledgers that cannot be read.

    Raises OSError if the directory exists but cannot be read.
    """
    found = (_process(path, run, owner) for path in open_ledgers(ledger_directory))
    by_pid = {process.pid: process for process in found if process}
    return sorted(by_pid.values(), key=lambda process: (process.rank, process.pid))


def _process(ledger: Path, run: str, owner: int) -> TrainingProcess | None:
    """Returns the process that holds a ledger of this user's run; None if there is none."""
    try:
        with LedgerReader(ledger) as reader:
            pid = reader.holder() if (reader.header.run, reader.owner) == (run, owner) else None
            return TrainingProcess(reader, pid) if pid is not None else None
    except FileNotFoundError:  # removed meanwhile
        pass
    except (LedgerError, OSError) as error:
        logger.warning("skipping a ledger: %s", error)
    return None
