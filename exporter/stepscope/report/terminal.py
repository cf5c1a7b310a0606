"""The flag for the price of a node, and the progress of long work. Imports no numpy: `run` starts fast."""

import math
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from stepscope.common.words import number, size

PROGRESS_EVERY = 0.2  # seconds
BAR = 20  # characters


def add_price(parser: ArgumentParser, flag: str = "--price", of: str = "a node") -> None:
    """Adds `--price`: dollars per hour of a node; None if not given."""
    parser.add_argument(
        flag, type=price, metavar="$/h", help=f"what an hour of {of} costs in dollars, to say what time cost"
    )


def add_prices(parser: ArgumentParser) -> None:
    """Adds `--prices`: the file of a price list; None if not given."""
    parser.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="prices of instance types (CSV or YAML): right-sizing names the type that serves",
    )


def price(text: str) -> float:
    """Parses dollars. Raises ArgumentTypeError, as the `type` of a flag must."""
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a price: give dollars per hour, as in 14.688")
    return amount


class _Line:
    """One line on the terminal that is replaced now and then, and cleared at the end of the block.

    Nothing if stderr is not a terminal.
    """

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown and self._next:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def show(self, text: str) -> None:
        now = time.monotonic()
        if self._shown and now >= self._next:
            self._next = now + PROGRESS_EVERY
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()


class Progress(_Line):
    """The progress of reading a run."""

    def __init__(self) -> None:
        super().__init__()
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
        self.show(f"{self._share}read {number(self._rows)} samples and steps")


@contextmanager
def shown(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number done; clears the line after the block."""
    with _Line() as line:
        yield lambda done: line.show(f"{title}: {number(done)} of {number(total)}")
