"""Prints the lines of `trainwatch run` on the terminal, between those of the training command."""

from __future__ import annotations

import os
import sys

PREFIX = "trainwatch:"

_BOLD, _YELLOW, _GREEN, _DIM, _PLAIN = "\033[1m", "\033[33m", "\033[32m", "\033[2m", "\033[0m"
_STYLES = {"warning": _BOLD + _YELLOW, "good": _GREEN, "dim": _DIM, "plain": ""}


def say(text: str, style: str = "plain") -> None:
    """Prints one prefixed line on stderr, with colours only on a terminal.

    Never raises: the command and its recording continue if the terminal was closed.
    """
    line = f"{PREFIX} {text}"
    if _STYLES[style] and _has_colours():
        line = f"{_STYLES[style]}{PREFIX}{_PLAIN} {text}" if style != "dim" else f"{_DIM}{line}{_PLAIN}"
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def _has_colours() -> bool:
    try:
        return sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False
