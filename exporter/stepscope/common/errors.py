"""Errors of users, and other exceptions, each reported on one line."""

from collections.abc import Iterable
from difflib import get_close_matches
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM

# Errors about this process, or the node: everything else fails, too.
EXHAUSTED = (EMFILE, ENFILE, ENOBUFS, ENOMEM)


class UserError(Exception):
    """An error that the user can fix: the message names the cause and the fix, on one line.

    `stepscope.commands.cli.main` prints it on stderr as `stepscope: MESSAGE` and exits with status 2.
    """


def did_you_mean(name: str, known: Iterable[str], otherwise: str, likeness: float = 0.6) -> str:
    """Returns "did you mean NAME?" with the known name that is most similar, or `otherwise`.

    `likeness` is the least that counts: difflib's ratio, 1 for the same name.
    """
    names = {known_name.lower(): known_name for known_name in known}
    near = get_close_matches(name.lower(), names, n=1, cutoff=likeness)
    return f"did you mean {names[near[0]]}?" if near else otherwise


def describe(error: BaseException) -> str:
    """Returns an exception in one line, with its type unless the message is clear without it."""
    words = " ".join(str(error).split())
    return words if isinstance(error, (OSError, UserError)) and words else f"{type(error).__name__}: {words}"


def raise_if_exhausted(error: Exception) -> None:
    """Raises an error that is about this process, such as too many open files, and no other."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in EXHAUSTED):
        raise error
