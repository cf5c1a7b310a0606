"""The audit: one line of JSON per decision and signal. After a restart it knows the earlier lines."""

import json
import logging
import os
import stat
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepscope.common.errors import UserError
from stepscope.common.shared_files import UntrustedError, open_file
from stepscope.common.users import user_name
from stepscope.exporter.sampling.state_directory import open_own_directory

logger = logging.getLogger(__name__)

STOP = "stop"  # the decision to send signals

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Audit:
    """Appends to a file, which is made if it does not exist, or writes to stderr.

    The file decides what is done after a restart, so no other user may write to it or to its directory.
    `alerts` are the keys of all alerts on which processes were stopped. `processes` are the keys of those
    processes. Both include earlier lines of the file. Raises UserError if it cannot be used.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.alerts: set[tuple[str, str]] = set()
        self.processes: set[tuple[int, int]] = set()
        if path is not None:
            try:
                with os.fdopen(_open(path), "rb") as file:
                    for number, line in enumerate(file, 1):
                        if not self._remember(line):
                            logger.warning("%s: line %d is not a line of an audit; skipped", path, number)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise UserError(f"--audit-file {path}: {reason}") from None
            except UserError as error:
                raise UserError(f"--audit-file {error}") from None

    def write(self, event: str, entry: Mapping[str, Any]) -> None:
        """Appends a line and waits until it is on the disk. Raises OSError."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, "event": event, **entry})
        if self._path is None:
            print(line, file=sys.stderr, flush=True)
            return
        try:
            fd = _open(self._path)  # each time: the file may have been rotated away
        except UserError as error:
            raise OSError(str(error)) from None
        with os.fdopen(fd, "wb", buffering=0) as file:
            end = os.fstat(fd).st_size
            torn = end > 0 and os.pread(fd, 1, end - 1) != b"\n"  # by a crash or a full disk
            content = b"\n" * torn + f"{line}\n".encode()
            if file.write(content) != len(content):
                raise OSError(f"{self._path}: the disk is full")
            os.fsync(fd)

    def _remember(self, line: bytes) -> bool:
        """Reads an earlier line. Returns false if it is not a line of an audit."""
        try:
            entry = json.loads(line)
            if entry["event"] == "decision" and entry["decision"] == STOP:
                self.alerts.add((entry["fingerprint"], entry["starts_at"]))
                stopped = (process for process in entry["processes"] if process["stop"])
                self.processes.update((process["pid"], process["start"]) for process in stopped)
        except (ValueError, KeyError, TypeError):
            return False
        return True


def _open(path: Path) -> int:
    """Returns a descriptor for reading and appending. Makes the file, and its directory for this user only.

    Follows no link to the file. Raises UserError if another user may write to it, and OSError.
    """
    directory = open_own_directory(path.absolute().parent)
    try:
        fd = open_file(path.name, {os.geteuid()}, _FLAGS, folder=directory, mode=0o640)
        if not os.fstat(fd).st_mode & _OTHERS_WRITE:
            return fd
        os.close(fd)
    except UntrustedError:
        pass
    finally:
        os.close(directory)
    raise UserError(f"{path}: must be a plain file that only user {user_name(os.geteuid())} can write to")
