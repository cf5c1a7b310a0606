"""The log of a server: on stderr, one line an event."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser


class _OneLine(logging.Formatter):
    """One line an event, whatever a message holds; a traceback follows only an error of our own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return super().formatMessage(record).replace("\n", r"\n")


def add_log_level(parser: ArgumentParser) -> None:
    """`--log-level`, for `log_to_stderr`."""
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="default: %(default)s",
    )


def log_to_stderr(level: str) -> None:
    """Everything from this level (debug, info, warning, error) on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
