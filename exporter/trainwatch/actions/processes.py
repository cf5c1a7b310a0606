"""Finds the training processes of a run on this node, and asks them to stop.

Every user can put a file into the ledger directory, and a pid may soon belong to another process. So only
the run and the rank of a ledger are trusted, and a process gets a signal only under these conditions:

- By the kernel, it holds the lock of the ledger. No file can forge that, and `kill -9` ends it.

- It wrote the ledger: the pid in the ledger is the process's own, in its own PID namespace.

- It runs as the owner of the ledger, so no user can stop another user's process.

- It is still the same process: a pidfd refers to one process, never to a later one with its pid.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path

from trainwatch.training.reader import LedgerError, LedgerReader, open_ledgers

logger = logging.getLogger(__name__)


class TrainingProcess:
    """A process that holds a ledger, and the reason to spare it ("": there is none)."""

    def __init__(self, reader: LedgerReader, pid: int, pidfd: int | None, spared: str) -> None:
        self.ledger = reader.path.name
        self.rank = reader.header.rank
        self.start = datetime.fromtimestamp(reader.header.start, timezone.utc)
        self.pid = pid
        self.spared = spared
        self._pidfd = pidfd

    def ask_to_stop(self) -> str:
        """Sends SIGTERM. Returns the result in words."""
        if self._pidfd is None:
            return self.spared
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
        except ProcessLookupError:
            return "had ended already"
        except PermissionError:
            return f"not permitted to user {os.geteuid()}"
        return "sent"


@contextmanager
def processes_of(run: str, ledger_directory: Path) -> Iterator[list[TrainingProcess]]:
    """Yields the live processes of a run, by rank; they can be asked to stop within the block.

    Logs and skips ledgers that cannot be read. Raises OSError if the directory exists but cannot be read.
    """
    with ExitStack() as opened:
        found = []
        for path in open_ledgers(ledger_directory):
            try:
                reader = opened.enter_context(LedgerReader(path))
                process = _process(reader, opened) if reader.header.run == run else None
            except FileNotFoundError:  # removed meanwhile
                continue
            except (LedgerError, OSError) as error:
                logger.warning("skipping a ledger: %s", error)
                continue
            if process:
                found.append(process)
        yield sorted(found, key=lambda process: (process.rank, process.pid))


def _process(reader: LedgerReader, opened: ExitStack) -> TrainingProcess | None:
    """Returns the process that holds a ledger; None if it has ended."""
    pid = reader.holder()
    if pid is None:
        return None
    if pid <= 0:
        return TrainingProcess(reader, 0, None, "runs in a PID namespace that cannot be seen from here")
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:  # a kernel before 5.3 has no pidfd, and the pid alone is not safe
        return TrainingProcess(reader, pid, None, f"has no pidfd: {error.strerror}")
    opened.callback(os.close, pidfd)
    if reader.holder() != pid:  # the pidfd may be of a later process
        return None
    try:
        user, own_pid = _user_and_own_pid(pid)
    except (ProcessLookupError, FileNotFoundError):
        return TrainingProcess(reader, pid, None, "cannot be seen in /proc")
    spared = ""
    if user != reader.owner():
        spared = f"runs as user {user}, but its ledger is of user {reader.owner()}"
    elif own_pid != reader.header.pid:
        spared = f"is not the process {reader.header.pid} that the ledger names"
    return TrainingProcess(reader, pid, None if spared else pidfd, spared)


def _user_and_own_pid(pid: int) -> tuple[int, int]:
    """Returns a process's effective user, and its pid in its innermost PID namespace: proc(5), status."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["Uid"].split()[1]), int(fields["NSpid"].split()[-1])
