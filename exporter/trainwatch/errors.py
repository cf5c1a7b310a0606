"""What a person did wrong, said in one line."""


class UserError(Exception):
    """A mistake the user can mend: the message names the culprit and the mend, on one line.

    `trainwatch.cli.main` prints it on stderr as `trainwatch: MESSAGE` and exits with status 2.
    """
