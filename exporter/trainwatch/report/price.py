"""The flag for the price of a node. Imports no numpy, so that `trainwatch run` starts fast."""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError


def add_price(parser: ArgumentParser, flag: str = "--price", of: str = "a node") -> None:
    """Adds `--price`: dollars per hour of a node; None if not given."""
    parser.add_argument(
        flag, type=price, metavar="$/h", help=f"what an hour of {of} costs in dollars, to say what time cost"
    )


def price(text: str) -> float:
    """Parses dollars. Raises ArgumentTypeError, as the `type` of a flag must."""
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a price: give dollars per hour of a node, as in 14.688")
    return amount
