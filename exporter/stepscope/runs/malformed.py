"""Reading files that somebody else wrote: they may hold anything."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from stepscope.common.errors import UserError, describe
from stepscope.common.shared_files import UntrustedError, read_file

# What Python raises for a document of another form than expected: for example a text instead of a number.
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
EARLIEST = 1e9  # in 2001, seconds since the epoch: no profile is older
LONGEST = 7 * 86400e6  # microseconds of an event: profilers record for minutes
LATEST = 253_402_300_800.0  # the year 10000, in seconds since the epoch
MOST_BYTES = 1 << 30  # a part of a minute has some megabytes


def finite(value: Any) -> float:
    """Returns a finite number of a file. Raises ValueError or TypeError for anything else, and for NaN."""
    number = float(value)
    if not isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number


def whole(value: Any) -> int:
    """Returns a whole number of 64 bits of a file. Raises ValueError or TypeError for anything else."""
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("a number of more than 64 bits")
    return number


def moment(seconds: Any) -> float:
    """Returns seconds since the epoch. Raises ValueError or TypeError for a time that no file can have."""
    number = finite(seconds)
    if not 0.0 <= number < LATEST:
        raise ValueError(f"{number:g} s is not a time since 1970")
    return number


def is_date(seconds: float) -> bool:
    """Returns whether a time is since the epoch; some profiles count from their start."""
    return seconds >= EARLIEST


@contextmanager
def naming(place: Path | str, expected: str, remedy: str) -> Iterator[None]:
    """Turns whatever the content of a file or answer makes fail into a UserError that names its place."""
    try:
        yield
    except MALFORMED as error:
        raise UserError(f"{place}: not {expected} ({describe(error)}); {remedy}") from error


class DamageError(Exception):
    """A file of a recording that is left out. The message is a clause: "its checksum does not match"."""


def content(path: Path, offset: int = 0, most: int = MOST_BYTES) -> bytes:
    """Returns a file's bytes. Raises DamageError if it cannot be read, FileNotFoundError if it is gone."""
    try:
        return read_file(path, most, offset=offset)
    except FileNotFoundError:
        raise
    except UntrustedError as error:
        raise DamageError(
            "it is too large" if error.reason == "size" else "it is not a plain file"
        ) from error
    except OSError as error:
        raise DamageError(f"it cannot be read: {error.strerror}") from error
