"""Numbers in flags: durations as Prometheus writes them (500ms, 1s, 1m30s, 5m, 2h), counts and speeds."""

import re
from argparse import ArgumentTypeError

_SECONDS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?|\.\d{1,9}")
_DURATION = re.compile("".join(rf"(?:(\d{{1,15}}){unit})?" for unit in _SECONDS))
_LONGEST = 1e9  # seconds: no longer wait is possible everywhere


def parse_duration(text: str) -> float:
    """Returns seconds; a number without a unit is in seconds.

    Raises ArgumentTypeError, so that it can be the `type` of a flag.
    """
    if _NUMBER.fullmatch(text):
        return float(text)
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ArgumentTypeError(f"{text!r} is not a duration such as 500ms, 1s or 1m30s")
    counts = zip(match.groups(default=0), _SECONDS.values(), strict=True)
    duration = sum(int(count) * seconds for count, seconds in counts)
    if duration > _LONGEST:
        raise ArgumentTypeError(f"{text!r} is longer than 30 years")
    return duration


def positive_duration(text: str) -> float:
    """Returns seconds as `parse_duration` does, but not zero."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ArgumentTypeError(f"{text!r} must be more than 0")
    return seconds


def positive_count(text: str) -> int:
    """Returns a whole number above 0. Raises ArgumentTypeError to be the `type` of a flag."""
    if not re.fullmatch(r"\d{1,15}", text) or not int(text):
        raise ArgumentTypeError(f"{text!r} must be a whole number above 0")
    return int(text)


def parse_speed(text: str) -> float:
    """Returns simulated seconds per second. Raises ArgumentTypeError to be the `type` of a flag."""
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 1e-6 <= speed <= 1e6:  # no wait for the next sample is longer than a clock can wait
        raise ArgumentTypeError(f"{text!r} must be a number above 0, such as 10 (1e-6 to 1e6)")
    return speed
