"""Remembers which users have had ledgers of which run on this node.

An alert names a run, and every user can give a run any name. So if two users have ledgers of one name, its
alert may be about either of them. One of the ledgers may be gone by the time of the notification.
"""

import logging
import pwd
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # between two looks
BUSY_SHARE = 0.01  # of a core, however many ledgers there are: then looks are less frequent
REMEMBERED_SECONDS = 3600.0  # longer than an alert outlives the series that it fired on
MOST_RUNS = 10_000  # a user with more of them may have had a ledger of any run


class Owners:
    """The owners of ledgers, by run. Nothing that a user does makes it forget another user's run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[int, dict[str, float]] = {}  # by user: when a ledger of each run was seen last
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Looks every few seconds, in a thread that ends with the process."""
        threading.Thread(target=self._watch, name="owners", daemon=True).start()

    def meant(self, run: str) -> set[tuple[str, int]]:
        """Returns the runs that an alert about `run` may mean: their names in ledgers, and their owners.

        The exporter calls a run NAME@USER if another user's run had the name before. Looks again first.
        Raises OSError.
        """
        self.look()
        name, at, user = run.rpartition("@")
        with self._lock:
            found = {(run, owner) for owner in self._of(run)}
            found |= {(name, owner) for owner in self._of(name) if at and owner == user_number(user)}
        return found

    def _of(self, run: str) -> set[int]:
        return {user for user, runs in self._seen.items() if run in runs or len(runs) >= MOST_RUNS}

    def look(self) -> None:
        """Notes the owner and the run of every ledger. Raises OSError if the directory cannot be read."""
        now = time.monotonic()
        with self._lock:
            self._seen = {user: _recent(runs, now) for user, runs in self._seen.items()}
            for path in open_ledgers(self._directory):
                with suppress(LedgerError, OSError), LedgerReader(path) as reader:  # `processes_of` logs them
                    runs = self._seen.setdefault(reader.owner, {})
                    if len(runs) < MOST_RUNS:
                        runs[reader.header.run] = now

    def _watch(self) -> None:
        while True:
            before = time.thread_time()  # on a crowded machine it is less than the time that passes
            try:
                self.look()
            except OSError as error:
                logger.warning("%s cannot be read: %s", self._directory, error.strerror)
            time.sleep(max(LOOK_SECONDS, (time.thread_time() - before) / BUSY_SHARE))


def user_number(user: str) -> int | None:
    """Returns the number of a user of this node, given by name or number; None if there is no such user."""
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        return int(user) if re.fullmatch("[0-9]{1,10}", user) else None


def _recent(runs: dict[str, float], now: float) -> dict[str, float]:
    return {run: seen for run, seen in runs.items() if now - seen < REMEMBERED_SECONDS}
