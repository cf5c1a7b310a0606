"""Reads --web.config.file: TLS and basic authentication, in the format of Prometheus's exporter-toolkit.

Source: github.com/prometheus/exporter-toolkit, docs/web-configuration.md. Keys that Python's ssl does not
support are errors, because ignoring a key could leave the exporter unprotected.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from trainwatch.errors import UserError

_TLS_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTHENTICATION = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_TLS_KEYS = ("cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version", "max_version")


class BasicAuthentication:
    """Checks passwords against bcrypt hashes, on a separate thread because bcrypt is slow by design.

    The digest of a correct password is kept, so each client pays for bcrypt once. Wrong passwords are
    checked one after another and do not delay clients whose password is known.
    """

    def __init__(self, users: Mapping[str, bytes]) -> None:
        self._users = dict(users)
        self._known: set[bytes] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bcrypt")
        # An unknown user costs the same time as a wrong password, so that names cannot be guessed.
        self._nobody = next(iter(self._users.values()))

    async def allows(self, authorization: str) -> bool:
        """Returns whether an `Authorization` header has a user with the correct password."""
        scheme, _, encoded = authorization.partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            user, separator, password = base64.b64decode(encoded, validate=True).partition(b":")
        except binascii.Error:
            return False
        digest = sha256(user + b"\0" + password).digest()
        if digest in self._known:
            return True
        known = self._users.get(user.decode("utf-8", "replace"))
        loop = asyncio.get_running_loop()
        right = await loop.run_in_executor(self._thread, _check, password, known or self._nobody)
        if not (separator and known and right):
            return False
        self._known.add(digest)
        return True

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class WebConfig:
    """TLS and passwords; neither without a file."""

    tls: ssl.SSLContext | None = None
    authentication: BasicAuthentication | None = None


def read_web_config(path: Path | None) -> WebConfig:
    """Returns the settings of the file. Raises UserError with the file and the wrong key."""
    if path is None:
        return WebConfig()
    import yaml  # only needed with the flag

    try:
        content: Any = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"--web.config.file {path}: {_reason(error)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--web.config.file {path}: not YAML: {' '.join(str(error).split())}") from None
    sections = _mapping(path, "the file", content or {})
    _refuse_unknown(path, "", sections, ("tls_server_config", "basic_auth_users"))
    tls = users = None
    if sections.get("tls_server_config"):
        tls = _tls(path, _mapping(path, "tls_server_config", sections["tls_server_config"]))
    if sections.get("basic_auth_users"):
        users = _users(path, _mapping(path, "basic_auth_users", sections["basic_auth_users"]))
    return WebConfig(tls, BasicAuthentication(users) if users else None)


def _tls(path: Path, settings: Mapping[str, Any]) -> ssl.SSLContext:
    _refuse_unknown(path, "tls_server_config.", settings, _TLS_KEYS)
    for key in _TLS_KEYS:
        if not isinstance(settings.get(key, ""), str):
            raise UserError(f"{path}: tls_server_config.{key}: must be a string")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _choice(path, settings, "min_version", _TLS_VERSIONS, "TLS12")
    context.maximum_version = _choice(path, settings, "max_version", _TLS_VERSIONS, "TLS13")
    certificate = _existing_file(path, settings, "cert_file")
    private_key = _existing_file(path, settings, "key_file")
    try:
        # An encrypted key would ask for its pass phrase on the terminal: give a wrong pass phrase.
        context.load_cert_chain(certificate, private_key, password=lambda: b"")
    except (ssl.SSLError, OSError) as error:
        raise UserError(
            f"{path}: tls_server_config.cert_file {certificate} and key_file {private_key}: {_reason(error)}"
        ) from None
    policy = _choice(path, settings, "client_auth_type", _CLIENT_AUTHENTICATION, "NoClientCert")
    if policy == ssl.CERT_NONE:
        if settings.get("client_ca_file"):
            raise UserError(
                f"{path}: tls_server_config.client_ca_file: needs a client_auth_type that verifies"
            )
        return context
    authority = _existing_file(path, settings, "client_ca_file")
    try:
        context.load_verify_locations(authority)
    except (ssl.SSLError, OSError) as error:
        raise UserError(f"{path}: tls_server_config.client_ca_file {authority}: {_reason(error)}") from None
    context.verify_mode = policy
    return context


def _users(path: Path, entries: Mapping[str, Any]) -> dict[str, bytes]:
    import bcrypt

    users: dict[str, bytes] = {}
    for user, hashed in entries.items():
        try:
            bcrypt.checkpw(b"", str(hashed).encode())
        except ValueError:
            raise UserError(
                f"{path}: basic_auth_users.{user}: not a bcrypt hash; make one with `htpasswd -nBC 10 ''`"
            ) from None
        users[str(user)] = str(hashed).encode()
    return users


def _check(password: bytes, hashed: bytes) -> bool:
    import bcrypt

    try:
        return bool(bcrypt.checkpw(password, hashed))
    except ValueError:  # longer than 72 bytes, or with a NUL: never a password
        return False


def _mapping(path: Path, key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{path}: {key}: must be a mapping of keys to values")
    return value


def _refuse_unknown(path: Path, prefix: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise UserError(f"{path}: {prefix}{key}: not a key of this file; use one of {', '.join(known)}")


def _choice(
    path: Path, settings: Mapping[str, Any], key: str, choices: Mapping[str, Any], default: str
) -> Any:
    value = settings.get(key) or default
    if value not in choices:
        raise UserError(f"{path}: tls_server_config.{key}: {value} must be one of {', '.join(choices)}")
    return choices[value]


def _existing_file(path: Path, settings: Mapping[str, Any], key: str) -> Path:
    """Returns the path of a file in the configuration, relative to the configuration's directory."""
    if not settings.get(key):
        raise UserError(f"{path}: tls_server_config.{key}: is missing")
    file = path.parent / str(settings[key])
    try:
        file.open("rb").close()
    except OSError as error:
        raise UserError(f"{path}: tls_server_config.{key}: {file}: {_reason(error)}") from None
    return file


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
