"""Addresses: a server with Prometheus's HTTP API, how it lets readers in, and the part of a run to read."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from stepscope.common.errors import UserError
from stepscope.common.masking import masked

PREFIX = "prometheus+"
EXAMPLE = "prometheus+http://localhost:9090?run=NAME"
# The parameters of an address that let a reader in. Each may be in the environment instead, for example as
# STEPSCOPE_PROMETHEUS_TENANT. Secrets are in files, so that no address contains them.
ENVIRONMENT = "STEPSCOPE_PROMETHEUS_"
TOKEN = f"{ENVIRONMENT}TOKEN"  # in the environment only: the token itself
FILES = ("token_file", "password_file", "ca_file", "cert_file", "key_file")
ACCESS = ("tenant", *FILES)
SELECTION = ("run", "cluster", "start", "end")


@dataclass(frozen=True)
class Access:
    """A server, and how it lets readers in. `url` has no user, password or parameters."""

    url: str
    tenant: str | None = None
    user: str | None = None
    password: str = field(default="", repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @classmethod
    def of_flag(cls, flag: str, url: str) -> "Access":
        """Returns the server at a flag's URL. Raises UserError, also if that is not a URL."""
        shown = without_secrets(url)
        return _parsed(url, f"{flag} {shown}: is not a URL; give one such as http://localhost:9090", ())[0]


@dataclass(frozen=True)
class Address:
    """A server and the part of it to read: `prometheus+http://host:9090?run=NAME&start=TIME&end=TIME`."""

    access: Access
    run: str | None
    start: float | None  # None: everything; the same below
    end: float | None
    cluster: str | None = None  # the value of this label

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Raises UserError if the text is not such an address, or a file that it names cannot be read."""
        shown = without_secrets(text)
        refusal = f"{shown}: is no address of a run in Prometheus; give one such as {EXAMPLE}"
        if not text.startswith(PREFIX):
            raise UserError(refusal)
        access, wanted = _parsed(text.removeprefix(PREFIX), refusal, SELECTION)
        start, end = (_moment(shown, name, wanted.get(name)) for name in ("start", "end"))
        if start is not None and end is not None and start >= end:
            raise UserError(f"{shown}: start is not before end")
        return cls(access, wanted.get("run") or None, start, end, wanted.get("cluster"))


def without_secrets(text: str) -> str:
    """Returns the address without user and password, and without values that look like secrets."""
    return masked([text])[0]


def _parsed(text: str, refusal: str, selection: Sequence[str]) -> tuple[Access, Mapping[str, str]]:
    """Returns the server, and the parameters of the address."""
    try:
        parts = urlsplit(text)
        port_is_a_number = parts.port is None or parts.port > 0
    except ValueError:
        raise UserError(refusal) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_a_number:
        raise UserError(refusal)
    host = parts.netloc.rpartition("@")[2]
    url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
    wanted = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = (*selection, *ACCESS)
    if unknown := sorted(wanted.keys() - set(known)):
        names = f"{', '.join(known[:-1])} and {known[-1]}"
        raise UserError(f"{without_secrets(url)}: {unknown[0]} is not known; there are {names}")
    asked = {name: wanted.get(name) or os.environ.get(ENVIRONMENT + name.upper()) for name in ACCESS}
    for name in ("ca_file", "cert_file", "key_file"):
        _content(name, asked[name])
    if asked["key_file"] and not asked["cert_file"]:
        raise UserError("key_file needs the certificate too; name it with &cert_file=FILE")
    user = unquote(parts.username) if parts.username is not None else None
    token = None if user is not None else _token(wanted.get("token_file"), asked["token_file"])
    access = Access(
        url,
        _of_header("tenant", asked["tenant"]),
        user,
        unquote(parts.password or "") or (_content("password_file", asked["password_file"]) or "").strip(),
        token,
        asked["ca_file"],
        asked["cert_file"],
        asked["key_file"],
    )
    return access, wanted


def _token(of_address: str | None, asked: str | None) -> str | None:
    """Returns the token of the address's file, otherwise the one in the environment."""
    if not of_address and (given := os.environ.get(TOKEN)):
        return _of_header(TOKEN, given.strip())
    content = _content("token_file", asked)
    return _of_header("token_file", content.strip()) if content is not None else None


def _of_header(name: str, text: str | None) -> str | None:
    """Raises UserError for a text that no HTTP header can carry."""
    if text and not (text.isascii() and text.isprintable() and " " not in text):
        raise UserError(f"{name}: holds more than one word of ASCII characters; give the plain value")
    return text or None


def _content(name: str, path: str | None) -> str | None:
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{name}={path}: cannot be read ({reason}); name another file") from None


def moment(text: str) -> float:
    """Returns the seconds since 1970 that a time says. Raises ValueError for what is no time."""
    with suppress(ValueError, OverflowError, OSError):  # no number, or of no year that there is
        if len(text) != len("20261120") or not text.isdecimal():  # otherwise it is a day
            return datetime.fromtimestamp(float(text), UTC).timestamp()
    parsed = datetime.fromisoformat(text)
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _moment(shown: str, name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return moment(text.replace(" ", "+"))  # in a time zone, before an address was parsed
    except ValueError:
        raise UserError(
            f"{shown}: {name}={text} must be a time such as 2026-11-20T12:00:00Z, or seconds since 1970"
        ) from None
