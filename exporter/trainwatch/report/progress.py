"""How far the reading of a run has come, for who waits at a terminal."""

from __future__ import annotations

import sys
import time

from trainwatch.words import number, size

PROGRESS_EVERY = 0.2  # seconds
BAR = 20  # characters


class Progress:
    """One line on a terminal that tells what was read; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._next = 0.0
        self._rows = 0
        self._share = ""  # of the bytes, where they are known

    def update(self, rows: int) -> None:
        """`rows` are the snapshots and steps read so far."""
        self._rows = rows
        self._show()

    def update_bytes(self, done: int, total: int) -> None:
        """The bytes that were read so far, of all that there are to read."""
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
