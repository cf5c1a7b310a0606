"""The status line of `stepscope run`: the last row of the terminal, while the command writes above it."""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from stepscope.common.console import COLOURS, Console
from stepscope.common.status import Status

FEWEST_ROWS = 5
EVERY = 1.0  # seconds

# VT100, which terminals, tmux and screen know.
_SAVE, _RESTORE = "\0337", "\0338"  # the cursor and its colours
_ROOM = "\033D\033[A"  # the cursor leaves the last row, and stays in its column
_CLEAR = "\033[K"


class LastRow:
    """The last row of the terminal on stderr.

    The rows above it become the region that scrolls (DECSTBM), as apt does for its progress. So whatever the
    command prints, as a progress bar too, never touches the last row, and the other way round. Each look of
    the row is one write, because the command writes at the same time.
    """

    def __init__(self) -> None:
        self._size = (0, 0)  # columns and rows of the terminal when the region was set; 0: it is not set
        self._lock = threading.Lock()

    @staticmethod
    def is_possible() -> bool:
        """Returns whether stderr is a terminal with a cursor. Notebooks have one without."""
        return (
            Console(sys.stderr).is_terminal
            and bool(os.environ.get("TERM"))
            and "JPY_PARENT_PID" not in os.environ
        )

    def show(self, status: Status, parts: Sequence[str]) -> None:
        """Shows the icon of a state, and the parts that fit, while this process is in the foreground."""
        with self._lock, suppress(OSError):  # a terminal that was closed
            if os.tcgetpgrp(2) != os.getpgrp():
                return
            columns, rows = os.get_terminal_size(2)
            if rows < FEWEST_ROWS:
                return
            region = ""
            if (columns, rows) != self._size:  # terminals forget their region when their size changes
                old = self._size[1]  # that was the last row before the terminal grew
                cleared = f"\033[{old};1H{_CLEAR}" if 0 < old < rows else ""
                region = f"{_ROOM}{_SAVE}{cleared}\033[1;{rows - 1}r{_RESTORE}"
                self._size = columns, rows
            icon = Console(sys.stderr).styled(status.icon, COLOURS[status])
            text = icon + fitting(parts, columns - 1 - len(status.icon))
            _write(f"{region}{_SAVE}\033[{rows};1H{text}{_CLEAR}{_RESTORE}")

    def clear(self) -> None:
        """Gives the row back to the command."""
        with self._lock, suppress(OSError):
            rows = self._size[1]
            if rows:
                _write(f"{_SAVE}\033[r\033[{rows};1H{_CLEAR}{_RESTORE}")
                self._size = (0, 0)


def fitting(parts: Sequence[str], columns: int) -> str:
    """Returns the parts, each after two spaces at most, without those at the end that do not fit."""
    text = ""
    for part in parts:
        more = f"{text}  {part}" if text else f" {part}"
        if len(more) > columns:
            break
        text = more
    return text


def _write(text: str) -> None:
    os.write(2, text.encode(errors="replace"))


class StatusLine:
    """A thread that shows what `look` returns, once per second, between `start` and `stop`."""

    def __init__(self, look: Callable[[], tuple[Status, Sequence[str]]]) -> None:
        self._look = look
        self._row = LastRow()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status line", daemon=True)

    def start(self) -> None:
        if LastRow.is_possible():
            with suppress(RuntimeError):  # the system has no thread left
                self._thread.start()

    def pause(self) -> None:
        """Gives the row back until the next look, as before Ctrl-Z stops this process."""
        self._row.clear()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._row.clear()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._row.show(*self._look())
            self._stopping.wait(EVERY)
