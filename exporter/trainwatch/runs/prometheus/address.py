"""What `prometheus+http://host:9090?run=NAME&start=TIME&end=TIME` says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from trainwatch.errors import UserError

PREFIX = "prometheus+"
EXAMPLE = "prometheus+http://localhost:9090?run=NAME"
TOKEN = "TRAINWATCH_PROMETHEUS_TOKEN"
TOKEN_FILE = "TRAINWATCH_PROMETHEUS_TOKEN_FILE"


@dataclass(frozen=True)
class Address:
    """Where the server is and what to read there. Times are seconds since the epoch, None: all there is."""

    url: str  # without user and password
    run: str | None
    start: float | None
    end: float | None
    user: str | None = None
    password: str = field(default="", repr=False)
    token: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] | None = None) -> Address:
        """Raises UserError where the text is no such address, or the file of the token cannot be read."""
        parts = urlsplit(text.removeprefix(PREFIX))
        shown = without_password(text)
        if not text.startswith(PREFIX) or parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{shown}: is no address of a run in Prometheus; give one such as {EXAMPLE}")
        wanted = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(wanted.keys() - {"run", "start", "end"})
        if unknown:
            raise UserError(f"{shown}: {unknown[0]} is not known; there are run, start and end")
        start, end = (_moment(shown, name, wanted.get(name)) for name in ("start", "end"))
        if start is not None and end is not None and start >= end:
            raise UserError(f"{shown}: start is not before end")
        environment = os.environ if environment is None else environment
        host = parts.netloc.rpartition("@")[2]
        return cls(
            url=urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")),
            run=wanted.get("run") or None,
            start=start,
            end=end,
            user=unquote(parts.username) if parts.username is not None else None,
            password=unquote(parts.password or ""),
            token=_token(environment),
        )


def without_password(text: str) -> str:
    """The text without a password."""
    scheme, separator, rest = text.partition("://")
    credentials, at, host = rest.rpartition("@")
    return f"{scheme}{separator}{credentials.partition(':')[0]}{at}{host}"


def _moment(shown: str, name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        # A "+" of a time zone is a space where an address is taken apart.
        parsed = datetime.fromisoformat(text.replace(" ", "+").removesuffix("Z"))
    except ValueError:
        raise UserError(
            f"{shown}: {name}={text} must be a time such as 2026-11-20T12:00:00Z, or seconds since 1970"
        ) from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)).timestamp()


def _token(environment: Mapping[str, str]) -> str | None:
    if token := environment.get(TOKEN):
        return token
    if not (path := environment.get(TOKEN_FILE)):
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{TOKEN_FILE}={path}: cannot be read ({reason})") from None
