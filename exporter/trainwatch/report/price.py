"""The flag that lets reports speak of money. Imports no numpy, which `run` must not do yet."""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError


def add_price(parser: ArgumentParser, flag: str = "--price", of: str = "a node") -> None:
    """`--price`: what an hour of a node costs, in dollars; None where it is not given."""
    parser.add_argument(
        flag, type=price, metavar="$/h", help=f"what an hour of {of} costs in dollars, to say what time cost"
    )


def price(text: str) -> float:
    """Dollars. Raises ArgumentTypeError, so that it can be the `type` of a flag."""
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise ArgumentTypeError(f"{text!r} is no price: give dollars for an hour of a node, as in 14.688")
    return amount
