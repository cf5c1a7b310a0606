"""Durations in flags, as Prometheus writes them (500ms, 1s, 1m30s, 5m, 2h), and the speed of a simulation."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from math import isfinite

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(
    "(?:{})".format("".join(rf"(?:(\d+){unit})?" for unit in ("w", "d", "h", "m", "s", "ms")))
)


def parse_duration(text: str) -> float:
    """Seconds. Raises ArgumentTypeError, so that it can be the `type` of a flag."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ArgumentTypeError(f"{text!r} is not a duration as 500ms, 1s or 1m30s")
    units = ("w", "d", "h", "m", "s", "ms")
    return sum(
        int(count) * _SECONDS[unit] for unit, count in zip(units, match.groups(), strict=True) if count
    )


def positive_duration(text: str) -> float:
    """As `parse_duration`, but not zero."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ArgumentTypeError(f"{text!r} must be more than 0")
    return seconds


def parse_speed(text: str) -> float:
    """Simulated seconds a second. Raises ArgumentTypeError, so that it can be the `type` of a flag."""
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not (isfinite(speed) and speed > 0):
        raise ArgumentTypeError(f"{text!r} must be a number above 0, such as 10")
    return speed
