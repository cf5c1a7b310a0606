"""One line on a terminal that tells how far long work is; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainwatch.words import number

Progress = Callable[[int], None]


@contextmanager
def shown(what: str, total: int) -> Iterator[Progress]:
    """A function that is told how many of `total` are done; the line goes behind the block."""
    on_terminal = sys.stderr.isatty()

    def show(done: int) -> None:
        if on_terminal:
            sys.stderr.write(f"\r\033[K{what}: {number(done)} of {number(total)}")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if on_terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
