"""Writes for people: wrapped lines, colours and links on a terminal, plain lines into anything else."""

import io
import os
import socket
import sys
import textwrap
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

from stepscope.common.status import Status

PLAIN_WIDTH = 80  # of headings, if the stream is no terminal
BOLD, DIM, PLAIN = "1", "2", ""
COLOURS = {
    Status.FOUND: "1;33",  # yellow
    Status.HEALTHY: "32",  # green
    Status.NOT_ENOUGH_DATA: "34",  # blue
    Status.COLLECTING: "36",  # cyan
    Status.FAILED: "1;31",  # red
    Status.STOPPED: "90",  # grey
}
# Terminals that show OSC 8 links set them. Others ignore them or print rubbish, and none can be asked.
LINKING = ("KITTY_WINDOW_ID", "KONSOLE_VERSION", "VTE_VERSION", "WEZTERM_PANE", "WT_SESSION")
LINKING_PROGRAMS = ("ghostty", "iTerm.app", "vscode", "WezTerm")
# What controls a terminal: a recording may be somebody else's, and has names and messages of a program.
CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), " ")


class Console:
    """A stream for people. Writing never raises: commands continue if the terminal was closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def is_terminal(self) -> bool:
        try:
            return self._stream.isatty() and os.environ.get("TERM") != "dumb"
        except ValueError:  # closed
            return False

    @property
    def width(self) -> int:
        """Returns the columns of the terminal."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or PLAIN_WIDTH
        except (OSError, ValueError):
            return PLAIN_WIDTH

    def styled(self, text: str, style: str) -> str:
        """Returns the text in a style (SGR), on terminals that may have colours (no-color.org)."""
        coloured = style and self.is_terminal and not os.environ.get("NO_COLOR")
        return f"\033[{style}m{text}\033[0m" if coloured else text

    def state(self, status: Status, text: str = "") -> str:
        """Returns the icon and the word of a state, or icon and text, in its colour."""
        return self.styled(f"{status.icon} {text or status}", COLOURS[status])

    def link(self, path: Path) -> str:
        """Returns the absolute path, as a link to the file (OSC 8) on terminals that show links."""
        path = path.absolute()
        if not self.is_terminal or not _shows_links():
            return str(path)
        return f"\033]8;;file://{socket.gethostname()}{quote(os.fsencode(path))}\033\\{path}\033]8;;\033\\"

    def wrapped(self, text: str, first: int = 0, rest: int = 0) -> list[str]:
        """Returns the lines of a text: one, unless a terminal is too narrow for it.

        The first line has room for `first` more columns; the others begin with `rest` spaces. Paths and
        commands are never broken, so that they can be copied.
        """
        text = text.translate(CONTROLS)
        if not self.is_terminal:
            return [text]
        lines = textwrap.wrap(
            text,
            self.width,
            initial_indent=" " * first,
            subsequent_indent=" " * rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [lines[0][first:], *lines[1:]] if lines else [""]

    def heading(self, text: str, style: str = PLAIN) -> str:
        """Returns a line across the terminal with a text in its middle."""
        width = self.width if self.is_terminal else PLAIN_WIDTH
        return self.styled(f" {text.translate(CONTROLS)} ".center(width, "="), style)

    def write(self, *lines: str, end: str = "\n") -> None:
        """Writes lines at once, each with this end."""
        try:
            self._stream.write("".join(f"{line}{end}" for line in lines))
            self._stream.flush()
        except (OSError, ValueError):
            pass


def print_document(text: str) -> None:
    """Prints what programs read: in UTF-8, whatever the terminal has."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stdout.write(text)


def _shows_links() -> bool:
    forced = os.environ.get("FORCE_HYPERLINK")  # as the npm package supports-hyperlinks reads it
    if forced is not None:
        return forced != "0"
    if os.environ.get("TERM", "").startswith(("screen", "tmux")):
        return False
    return os.environ.get("TERM_PROGRAM") in LINKING_PROGRAMS or any(name in os.environ for name in LINKING)
