"""Names the users of the machine."""

import pwd


def user_name(uid: int) -> str:
    """Returns the name of a user, or the number if the user has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
