"""The log of all commands with a web server: lines on stderr, which nobody has to read in time."""

import logging
import os
import sys
import time
from argparse import ArgumentParser
from contextlib import suppress
from queue import Full, Queue
from threading import Thread

from stepscope.common.errors import describe

WAITING_LINES = 1000  # more of them are dropped
LAST_SECONDS = 1.0  # for writing the rest at the end


def add_log_level(parser: ArgumentParser) -> None:
    """Adds `--log-level`, for `log_to_stderr`."""
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="default: %(default)s",
    )


def log_to_stderr(level: str) -> None:
    """Logs everything at this level (debug, info, warning, error) or above on stderr."""
    handler: logging.Handler
    try:
        handler = _InThread(sys.stderr.fileno())
    except (AttributeError, OSError):  # no file: closed, or replaced by a test
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _InThread(logging.Handler):
    """Writes in its own thread: a full pipe, or a stopped terminal, blocks only that thread."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor  # not sys.stderr: the end of the process would wait for its lock
        self._lines: Queue[logging.LogRecord] = Queue(WAITING_LINES)
        Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Full):
            self._lines.put_nowait(record)

    def flush(self) -> None:
        """Waits until all lines are written, but not for long. Called at the end of the process."""
        deadline = time.monotonic() + LAST_SECONDS
        while self._lines.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.005)

    def _write(self) -> None:
        while True:
            record = self._lines.get()
            try:
                line = self.format(record)
            except Exception as error:  # noqa: BLE001 - of whatever library wrote it: the next ones are written
                line = f"a message of {record.name} cannot be written: {describe(error)}"
            with suppress(OSError):  # nobody reads it any more
                os.write(self._descriptor, f"{line}\n".encode("utf-8", "backslashreplace"))
            self._lines.task_done()


class _OneLine(logging.Formatter):
    """One line per event, even if a message has several; only unexpected errors have a traceback.

    A message may have the name of a file of another user, which must not control a terminal.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        message = super().formatMessage(record)
        return "".join(each if each.isprintable() else repr(each)[1:-1] for each in message)
