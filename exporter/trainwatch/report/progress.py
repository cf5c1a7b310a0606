"""Shows the progress of reading a run on the terminal."""

from __future__ import annotations

import sys
import time

from trainwatch.words import number, size

PROGRESS_EVERY = 0.2  # seconds
BAR = 20  # characters


class Progress:
    """One line on the terminal; nothing if stderr is not a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._next = 0.0
        self._rows = 0
        self._share = ""  # of the bytes, if known

    def update(self, rows: int) -> None:
        """Shows the number of samples and steps read so far."""
        self._rows = rows
        self._show()

    def update_bytes(self, done: int, total: int) -> None:
        """Shows the bytes read so far, of the total."""
        filled = BAR * done // max(total, 1)
        self._share = f"[{'#' * filled}{'.' * (BAR - filled)}] {size(done)} of {size(total)}, "
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if self._shown and now >= self._next:
            self._next = now + PROGRESS_EVERY
            sys.stderr.write(f"\r{self._share}read {number(self._rows)} samples and steps")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shown and self._next:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
