"""Checks what a notebook gives, and refuses what has no answer here: each error is one line that names it."""

import re
from collections.abc import Iterable, Sequence
from math import isnan
from numbers import Integral, Real
from typing import Any

from stepscope.analysis import UserError
from stepscope.common.words import listing

LATEST = 2**62  # microseconds, which is later than any event


def number(given: Any, what: str) -> Any:
    """Returns what is a number, as it is. Raises UserError for anything else, and for NaN."""
    if not isinstance(given, Real) or isnan(given):
        raise UserError(f"{what}={given!r}: is not a number")
    return given


def limit(time_us: Any) -> int | None:
    """Returns a time that limits events, in microseconds; None for 0 and None, which mean no limit."""
    if time_us is None or not number(time_us, "time"):
        return None
    known: int = round(max(-LATEST, min(time_us, LATEST)))
    return known


def several(given: Any) -> list[str]:
    """Returns names, or regular expressions: of one alone, it alone. None: there are none."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        return [] if given is None else [str(given)]
    return list(map(str, given))


def matches(pattern: str, name: str) -> bool:
    """Returns whether a regular expression is in the name. Raises UserError for an invalid one."""
    try:
        return re.search(pattern, name) is not None
    except re.error as error:
        raise UserError(f"{pattern!r}: is not a regular expression ({error}); .* chooses all") from None


def begin_of_last(given: Any, what: str, times: Sequence[float]) -> float | None:
    """Returns the first of the `given` last times; None if there are no more. Raises UserError below 1."""
    if not isinstance(given, Integral) or given < 1:
        raise UserError(f"{what}={given!r}: give a whole number above 0")
    return times[-int(given)] if given < len(times) else None


def not_served(call: str, instead: str) -> NotImplementedError:
    """Returns the error, to be raised: one line."""
    return NotImplementedError(f"{call} is not served; {instead}")


def say_unknown(wanted: Iterable[str], known: Iterable[str], what: str) -> None:
    """Prints which of the wanted names nothing has, and the names that there are: cpu0 for all cores."""
    there = list(known)
    if unknown := [name for name in wanted if name not in there]:
        names = dict.fromkeys(re.sub(r"\d+$", "0", name) for name in there)
        print(f"no {what} is {listing(unknown)}; there are: {', '.join(names) or 'none'}")
