"""The audit: one line of JSON per decision and signal. After a restart it knows the earlier lines."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trainwatch.errors import UserError

logger = logging.getLogger(__name__)

STOP = "stop"  # the decision to send signals


class Audit:
    """Appends to a file, which is made if it does not exist, or writes to stderr.

    `alerts` are the keys of all alerts on which processes were stopped. `ledgers` are the names of those
    processes' ledgers. Both include earlier lines of the file. Raises UserError if it cannot be used.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.alerts: set[tuple[str, str]] = set()
        self.ledgers: set[str] = set()
        if path is not None:
            try:
                self._recall(path)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise UserError(f"--audit-file {path}: {reason}") from None

    def write(self, event: str, entry: Mapping[str, Any]) -> None:
        """Appends a line and waits until it is on the disk. Raises OSError."""
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, "event": event, **entry})
        if self._path is None:
            print(line, file=sys.stderr, flush=True)
            return
        # Opened each time: the file may have been rotated away.
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        with open(fd, "wb", buffering=0) as file:
            content = f"{line}\n".encode()
            if file.write(content) != len(content):
                raise OSError(f"{self._path}: the disk is full")
            os.fsync(fd)

    def _recall(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.seek(0)
            line = b"\n"
            for number, line in enumerate(file, 1):
                if not self._remember(line):
                    logger.warning("%s: line %d is not a line of an audit; skipped", path, number)
            if not line.endswith(b"\n"):  # cut short by a crash
                file.write(b"\n")

    def _remember(self, line: bytes) -> bool:
        """Reads an earlier line. Returns false if it is not a line of an audit."""
        try:
            entry = json.loads(line)
            if entry["event"] == "decision" and entry["decision"] == STOP:
                self.alerts.add((entry["fingerprint"], entry["starts_at"]))
                self.ledgers.update(process["ledger"] for process in entry["processes"] if process["stop"])
        except (ValueError, KeyError, TypeError):
            return False
        return True
