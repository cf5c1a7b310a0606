"""The limits of clients, and the count of what was refused because of them."""

import logging
from argparse import ArgumentTypeError, _ArgumentGroup
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from time import monotonic
from typing import Any

from stepscope.common.durations import positive_duration

logger = logging.getLogger(__name__)

# Everything that a server refuses, by the `reason` of its metric: what is logged about it.
REFUSALS = {
    "connections": "more connections than --web.max-connections, so the client with the most loses one",
    "open_files": "no file descriptor is left for another connection; raise `ulimit -n`",
    "header_bytes": "a request longer than --web.max-header-bytes",
    "body_bytes": "a body longer than --web.max-body-bytes",
    "read_timeout": "a request that took longer than --web.read-timeout",
    "write_timeout": "a response that was not read within --web.write-timeout",
    "unread": "32 MiB of responses wait to be read, so the client with the most connections loses one",
    "passwords": "more passwords to check than one thread can; the client may retry",
    "host": "a Host header that is no name of this server; see --web.external-url",
    "certificate": "a client certificate without any of client_allowed_sans",
}
LOG_AGAIN_AFTER = 60.0  # seconds between two lines about the same reason


@dataclass(frozen=True)
class Limits:
    """The limits of clients, in seconds and bytes."""

    connections: int = 128
    read_seconds: float = 10.0  # for a request, twice: up to its first byte, and up to its last
    idle_seconds: float = 120.0  # between requests: Prometheus keeps its connection from scrape to scrape
    write_seconds: float = 30.0  # for reading a response to its end
    header_bytes: int = 16 * 1024  # request line and headers
    body_bytes: int = 0  # a request's body; 0: no handler reads bodies


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ArgumentTypeError(f"{text!r} must be a whole number above 0")
    return int(text)


_Flag = tuple[str, Callable[[str], float], str, str]
_FLAGS: dict[str, _Flag] = {
    "connections": ("--web.max-connections", _positive, "NUMBER", "connections at once"),
    "header_bytes": ("--web.max-header-bytes", _positive, "BYTES", "longest request line with headers"),
    "body_bytes": ("--web.max-body-bytes", _positive, "BYTES", "longest body of a request"),
    "read_seconds": ("--web.read-timeout", positive_duration, "DURATION", "time to send a request"),
    "write_seconds": ("--web.write-timeout", positive_duration, "DURATION", "time to read a response"),
    "idle_seconds": ("--web.idle-timeout", positive_duration, "DURATION", "time between two requests"),
}


def add_limit_flags(group: _ArgumentGroup, defaults: Limits) -> None:
    """Adds a flag per limit, for `limits_of`; none for a limit that is 0."""
    for field, (flag, kind, metavar, words) in _FLAGS.items():
        default = getattr(defaults, field)
        group.set_defaults(**{f"web_{field}": default})
        if default:
            shown = f"{default:g}s" if kind is positive_duration else default
            group.add_argument(
                flag,
                dest=f"web_{field}",
                type=kind,
                metavar=metavar,
                help=f"{words} (default: {shown})",
            )


def limits_of(flags: Mapping[str, Any]) -> Limits:
    """Returns the limits that the flags give."""
    return Limits(**{field.name: flags[f"web_{field.name}"] for field in fields(Limits)})


class Refusals:
    """Counts what was refused, and logs one line per reason and minute."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(REFUSALS, 0)
        self._logged: dict[str, float] = {}

    def note(self, reason: str, client: str) -> None:
        """Counts one refusal. `client` is its address."""
        self.counts[reason] += 1
        now = monotonic()
        if now - self._logged.get(reason, -LOG_AGAIN_AFTER) >= LOG_AGAIN_AFTER:
            self._logged[reason] = now
            logger.warning(
                "refused %s: %s (%d so far)", client or "a client", REFUSALS[reason], self.counts[reason]
            )
