"""The address of a run in Prometheus, and the part of the HTTP API that reading a run requires.

Times are seconds since the epoch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import numpy as np
import requests

from trainwatch.errors import UserError
from trainwatch.runs.model import Times

PREFIX = "prometheus+"
EXAMPLE = "prometheus+http://localhost:9090?run=NAME"
TOKEN = "TRAINWATCH_PROMETHEUS_TOKEN"
TOKEN_FILE = "TRAINWATCH_PROMETHEUS_TOKEN_FILE"
TIMEOUT = 120.0  # seconds per answer: Prometheus itself gives up after 2 minutes


@dataclass(frozen=True)
class Address:
    """A server and the part of it to read: `prometheus+http://host:9090?run=NAME&start=TIME&end=TIME`."""

    url: str  # without user and password
    run: str | None
    start: float | None  # None: everything; the same below
    end: float | None
    user: str | None = None
    password: str = field(default="", repr=False)
    token: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises UserError if the text is not such an address, or the file of the token cannot be read."""
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
        host = parts.netloc.rpartition("@")[2]
        return cls(
            url=urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")),
            run=wanted.get("run") or None,
            start=start,
            end=end,
            user=unquote(parts.username) if parts.username is not None else None,
            password=unquote(parts.password or ""),
            token=_token(),
        )


def without_password(text: str) -> str:
    """Returns the address without its password."""
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
        # The "+" of a time zone becomes a space when an address is parsed.
        parsed = datetime.fromisoformat(text.replace(" ", "+").removesuffix("Z"))
    except ValueError:
        raise UserError(
            f"{shown}: {name}={text} must be a time such as 2026-11-20T12:00:00Z, or seconds since 1970"
        ) from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)).timestamp()


def _token() -> str | None:
    path = os.environ.get(TOKEN_FILE)
    if os.environ.get(TOKEN) or not path:
        return os.environ.get(TOKEN) or None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{TOKEN_FILE}={path}: cannot be read ({reason})") from None


@dataclass(frozen=True)
class Series:
    name: str
    labels: Mapping[str, str]
    times: Times
    values: Times


class Api:
    """A server's API. Raises UserError if the server does not answer, or refuses."""

    def __init__(self, address: Address) -> None:
        self._url = address.url
        self._session = requests.Session()
        if address.user is not None:
            self._session.auth = (address.user, address.password)
        elif address.token is not None:
            self._session.headers["Authorization"] = f"Bearer {address.token}"

    def close(self) -> None:
        self._session.close()

    def now(self) -> float:
        """Returns the server's time."""
        return float(self.get("query", query="time()")["result"][0])

    def samples(self, selector: str, start: float, end: float) -> list[Series]:
        """Returns the samples of series that were stored after `start`, until `end`."""
        milliseconds = max(1, round(1000 * (end - start)))
        data = self.get("query", query=f"{selector}[{milliseconds}ms]", time=f"{end:.3f}")
        # Versions differ in whether a range includes its left end.
        return [_series(found, found["values"], start + 0.0005) for found in data["result"]]

    def values(self, expression: str, time: float) -> list[Series]:
        """Returns the values of an expression at one moment."""
        data = self.get("query", query=expression, time=f"{time:.3f}")
        return [_series(found, [found["value"]]) for found in data["result"]]

    def ranges(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """Returns the values of an expression at every step."""
        data = self.get(
            "query_range", query=expression, start=f"{start:.3f}", end=f"{end:.3f}", step=f"{step:.3f}"
        )
        return [_series(found, found["values"]) for found in data["result"]]

    def runs(self) -> list[str]:
        """Returns the names of all runs that have samples."""
        return sorted(self.get("label/run/values", **{"match[]": "trainwatch_samples_total"}))

    def get(self, path: str, **parameters: str) -> Any:
        """Returns the data of an answer. Labels require GET; queries are too long for it."""
        url = f"{self._url}/api/v1/{path}"

        def ask() -> requests.Response:
            if path.startswith("label/"):
                return self._session.get(url, params=parameters, timeout=TIMEOUT)
            return self._session.post(url, data=parameters, timeout=TIMEOUT)

        return answered(ask, self._url, "read less of the run with &start= and &end=")


def answered(ask: Callable[[], requests.Response], server: str, shorter: str) -> Any:
    """Returns the data of the answer. Raises UserError if there is none; `shorter` says how to query less."""
    try:
        response = ask()
    except requests.Timeout:
        raise UserError(f"{server}: gave no answer within {TIMEOUT:g} s; {shorter}") from None
    except requests.RequestException:
        raise UserError(f"{server}: cannot be reached; is it the address of Prometheus?") from None
    if response.status_code in (401, 403):
        raise UserError(f"{server}: requires authentication; put USER:PASSWORD@ before the host")
    try:
        answer = response.json()
        status = answer["status"]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{server}: does not answer as Prometheus does (HTTP status {response.status_code})"
        ) from None
    if status != "success":
        reason = " ".join(str(answer.get("error", "no reason given")).split())
        raise UserError(f"{server}: refused a query ({reason})")
    return answer["data"]


def quoted(text: str) -> str:
    """Returns a text as a PromQL string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _series(found: Any, points: Any, after: float = 0.0) -> Series:
    labels = dict(found["metric"])
    columns = np.array([(float(time), float(value)) for time, value in points]).reshape(-1, 2)
    columns = columns[columns[:, 0] > after]
    return Series(labels.pop("__name__", ""), labels, columns[:, 0], columns[:, 1])
