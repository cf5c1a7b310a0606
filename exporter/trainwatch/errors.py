"""Mistakes of a user, reported on one line."""


class UserError(Exception):
    """A mistake that the user can fix: the message names the cause and the fix, on one line.

    `trainwatch.cli.main` prints it on stderr as `trainwatch: MESSAGE` and exits with status 2.
    """
