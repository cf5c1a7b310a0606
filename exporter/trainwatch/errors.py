"""Errors of users, and other exceptions, each reported on one line."""


class UserError(Exception):
    """An error that the user can fix: the message names the cause and the fix, on one line.

    `trainwatch.cli.main` prints it on stderr as `trainwatch: MESSAGE` and exits with status 2.
    """


def describe(error: BaseException) -> str:
    """Returns an exception in one line, with its type unless the message is clear without it."""
    words = " ".join(str(error).split())
    return words if isinstance(error, (OSError, UserError)) and words else f"{type(error).__name__}: {words}"
