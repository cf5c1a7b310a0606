"""Finds the training processes of a run on this node, and asks them to stop.

Anybody may put a file into the ledger directory, and a pid may belong to another process a moment later. So
of what a ledger says only the run and the rank are taken as said, and a process is signalled only when

- the kernel says that it holds the lock of the ledger, which no file can forge and `kill -9` takes away;
- it is the process that wrote the ledger: the pid in it is the process's own, in its own PID namespace;
- it runs as the user whose file the ledger is, so nobody has another user's process stopped;
- it is still the one that was looked at: a pidfd refers to one process, never to the next with its pid.
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
    """A process that holds a ledger, and why it is to be left alone, where it is ("": it is not)."""

    def __init__(self, reader: LedgerReader, pid: int, pidfd: int | None, spared: str) -> None:
        self.ledger = reader.path.name
        self.rank = reader.header.rank
        self.start = datetime.fromtimestamp(reader.header.start, timezone.utc)
        self.pid = pid
        self.spared = spared
        self._pidfd = pidfd

    def ask_to_stop(self) -> str:
        """Sends SIGTERM; returns what became of that."""
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
    """The live processes of a run, by rank; they can be asked to stop within the block.

    Ledgers that cannot be read are said in the log and passed over. Raises OSError when the directory
    cannot be read; one that is not there has no processes.
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
                logger.warning("passing over a ledger: %s", error)
                continue
            if process:
                found.append(process)
        yield sorted(found, key=lambda process: (process.rank, process.pid))


def _process(reader: LedgerReader, opened: ExitStack) -> TrainingProcess | None:
    """The process that holds a ledger; None when there is none (any more)."""
    pid = reader.holder()
    if pid is None:
        return None
    if pid <= 0:
        return TrainingProcess(reader, 0, None, "runs in a PID namespace that cannot be seen from here")
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:  # a kernel before 5.3 has no pidfd: no way to be sure, so nothing is done
        return TrainingProcess(reader, pid, None, f"cannot be held on to: {error.strerror}")
    opened.callback(os.close, pidfd)
    if reader.holder() != pid:  # asked again with the pidfd in hand: now it is the holder's
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
    """A process's effective user, and its pid in the innermost PID namespace it is in: proc(5), status."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["Uid"].split()[1]), int(fields["NSpid"].split()[-1])
