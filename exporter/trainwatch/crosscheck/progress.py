"""Shows the progress of long work in one line, if stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainwatch.words import number

Progress = Callable[[int], None]


@contextmanager
def shown(title: str, total: int) -> Iterator[Progress]:
    """Yields a function to call with the number done; clears the line after the block."""
    on_terminal = sys.stderr.isatty()

    def show(done: int) -> None:
        if on_terminal:
            sys.stderr.write(f"\r\033[K{title}: {number(done)} of {number(total)}")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if on_terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
