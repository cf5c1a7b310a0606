"""The limits of clients, and the count of what was refused because of them."""

import logging
from argparse import _ArgumentGroup
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from time import monotonic
from typing import Any

from stepscope.common.durations import positive_count, positive_duration

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


def _limit(default: float, flag: str, type: Callable[[str], float], metavar: str, words: str) -> Any:
    metadata = {"flag": flag, "type": type, "metavar": metavar, "words": words}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Limits:
    """The limits of clients, in seconds and bytes."""

    connections: int = _limit(128, "--web.max-connections", positive_count, "NUMBER", "connections at once")
    header_bytes: int = _limit(
        *(16 * 1024, "--web.max-header-bytes", positive_count, "BYTES", "longest request line with headers")
    )
    # 0: no handler reads bodies.
    body_bytes: int = _limit(0, "--web.max-body-bytes", positive_count, "BYTES", "longest body of a request")
    # Twice: up to the first byte of a request, and up to its last.
    read_seconds: float = _limit(
        *(10.0, "--web.read-timeout", positive_duration, "DURATION", "time to send a request")
    )
    write_seconds: float = _limit(
        *(30.0, "--web.write-timeout", positive_duration, "DURATION", "time to read a response")
    )
    # Prometheus keeps its connection from scrape to scrape.
    idle_seconds: float = _limit(
        *(120.0, "--web.idle-timeout", positive_duration, "DURATION", "time between two requests")
    )


def add_limit_flags(group: _ArgumentGroup, defaults: Limits) -> None:
    """Adds a flag per limit, for `limits_of`; none for a limit that is 0."""
    for each in fields(defaults):
        default, flag = getattr(defaults, each.name), {**each.metadata}
        group.set_defaults(**{f"web_{each.name}": default})
        if default:
            shown = f"{default:g}s" if flag["type"] is positive_duration else default
            text = f"{flag.pop('words')} (default: {shown})"
            group.add_argument(flag.pop("flag"), dest=f"web_{each.name}", help=text, **flag)


def limits_of(flags: Mapping[str, Any]) -> Limits:
    """Returns the limits that the flags give."""
    return Limits(**{each.name: flags[f"web_{each.name}"] for each in fields(Limits)})


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
