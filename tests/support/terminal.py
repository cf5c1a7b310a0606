"""Runs a command on a pseudo-terminal, as from a shell, and shows what a person would see on it."""

import codecs
import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

from tests.support.observing import RUN
from tests.support.waiting import SECONDS

ON_A_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""

# What a terminal obeys: CSI sequences, OSC 8 links, and single characters after an escape.
SEQUENCE = re.compile(r"\033\[([0-9;]*)([A-Za-z])|\033\]8;[^\033]*\033\\\\|\033([78DM])|(\r|\n)")

UNFINISHED = re.compile(r"(\0337((?!\0338)[\s\S])*|\033(\[[0-9;]*|\]8;[^\033]*\033?)?)\Z")


def on_terminal(tmp_path: Path, script: str, *flags: str) -> list[str]:
    """Returns a `stepscope run` of the script that samples every 100 ms."""
    always = ["--interval", "100ms", "--listen", "127.0.0.1:0", "--out", str(tmp_path / "run")]
    return [*RUN, *always, *flags, "--", sys.executable, "-c", script]


class Terminal:
    """A pseudo-terminal on which a command runs. `shown` is all that was written to it."""

    def __init__(
        self, command: list[str], cwd: Path, columns: int = 80, rows: int = 24, **environment: str
    ) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.shown = ""
        self.screen = Screen(columns, rows)
        self._pending = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        given = {"TERM": "xterm-256color", **os.environ, **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_A_TERMINAL, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={name: value for name, value in given.items() if value},
        )
        os.close(slave)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Changes the size as a person does who pulls at the window."""
        self.screen.resize(columns, rows)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, seen: Callable[[], bool]) -> None:
        """Reads until the condition holds. Raises OSError if the command ends first."""
        while not seen():
            self._read()

    def until_shown(self, text: str) -> None:
        self.until(lambda: text in self.shown)

    def status(self) -> int:
        """Returns the exit status, once everything was shown."""
        try:
            while True:
                self._read()
        except OSError:  # nobody holds the terminal any more
            os.close(self._master)
        return self.process.wait(SECONDS)

    def _read(self) -> None:
        """Shows what was written, except the beginning of a sequence or of a look of the status line."""
        self._pending += self._decoder.decode(os.read(self._master, 10_000))
        unfinished = UNFINISHED.search(self._pending)
        end = unfinished.start() if unfinished else len(self._pending)
        text, self._pending = self._pending[:end], self._pending[end:]
        self.shown += text
        self.screen.feed(text)


class Screen:
    """The characters that a terminal shows, as far as VT100 goes; `gone`: the lines above its first row."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines = [[" "] * columns for _ in range(rows)]
        self.gone: list[str] = []
        self._row = self._column = 0
        self._bottom = rows - 1  # of the region that scrolls
        self._saved = (0, 0)

    @property
    def text(self) -> list[str]:
        """Returns all lines from the first one on, without empty rows at the end."""
        return [*self.gone, *(self.row(number) for number in range(self.rows))]

    def row(self, number: int) -> str:
        return "".join(self.lines[number]).rstrip()

    def resize(self, columns: int, rows: int) -> None:
        """Adds or cuts at the right and below, above if the cursor needs it; all rows scroll again."""
        cut = max(self._row - (rows - 1), 0)
        self.gone += ["".join(line).rstrip() for line in self.lines[:cut]]
        kept = [(line + [" "] * columns)[:columns] for line in self.lines[cut : cut + rows]]
        self.lines = [*kept, *([" "] * columns for _ in range(rows - len(kept)))]
        self.columns, self.rows, self._bottom = columns, rows, rows - 1
        self._row, self._column = self._row - cut, min(self._column, columns - 1)

    def feed(self, text: str) -> None:
        at = 0
        for match in SEQUENCE.finditer(text):
            self._print(text[at : match.start()])
            at = match.end()
            self._obey(match)
        self._print(text[at:])

    def _print(self, text: str) -> None:
        for character in text:
            if self._column == self.columns:
                self._column = 0
                self._down()
            self.lines[self._row][self._column] = character
            self._column += 1

    def _obey(self, match: re.Match[str]) -> None:
        numbers = [int(number) for number in (match[1] or "").split(";") if number]
        single = match[3] or match[4]
        if single == "\r":
            self._column = 0
        elif single in ("\n", "D"):
            self._down()
        elif single == "7":
            self._saved = (self._row, self._column)
        elif single == "8":
            self._row, self._column = self._saved
        elif match[2] == "A":
            self._row = max(self._row - 1, 0)
        elif match[2] == "K":
            self.lines[self._row][self._column :] = " " * (self.columns - self._column)
        elif match[2] == "H":
            self._row, self._column = numbers[0] - 1, numbers[1] - 1
        elif match[2] == "r":
            self._bottom = numbers[1] - 1 if numbers else self.rows - 1
            self._row = self._column = 0

    def _down(self) -> None:
        if self._row == self._bottom:
            self.gone.append("".join(self.lines.pop(0)).rstrip())
            self.lines.insert(self._bottom, [" "] * self.columns)
        elif self._row < self.rows - 1:
            self._row += 1
