"""Names the users of the machine."""

import pwd
from time import monotonic

KEPT_SECONDS = 3600.0  # a directory service may be slow, or down
RETRY_SECONDS = 60.0  # between two searches for a user without a name
_names: dict[int, tuple[str, float]] = {}  # by uid, and until when (monotonic)


def user_name(uid: int) -> str:
    """Returns the name of a user, at most an hour old, or the number if the user has none."""
    name, until = _names.get(uid, (str(uid), 0.0))
    if (now := monotonic()) < until:
        return name
    try:
        name, until = pwd.getpwuid(uid).pw_name, now + KEPT_SECONDS
    except KeyError:  # a name that was known stays
        until = now + RETRY_SECONDS
    _names[uid] = name, until
    return name
