"""Reads --web.config.file: TLS and basic authentication, in the format of Prometheus's exporter-toolkit.

Source: github.com/prometheus/exporter-toolkit, docs/web-configuration.md. Keys that are not supported here
are errors, because ignoring a key could leave the exporter unprotected.
"""

import ipaddress
import logging
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any

from stepscope.common.errors import UserError, describe
from stepscope.web.passwords import BasicAuthentication

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0  # between two looks whether a file has changed

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
_TLS_FILES = ("cert_file", "key_file", "client_ca_file")
_TLS_KEYS = (*_TLS_FILES, "client_auth_type", "client_allowed_sans", "min_version", "max_version")
# Keys and values of exporter-toolkit that are refused, and what to do instead.
_UNSUPPORTED = {
    "cert": "put the certificate into a file, with cert_file",
    "key": "put the key into a file, with key_file",
    "client_ca": "put the authority's certificate into a file, with client_ca_file",
    "cipher_suites": "remove it; OpenSSL chooses, and min_version limits its choice",
    "prefer_server_cipher_suites": "remove it; OpenSSL chooses",
    "curve_preferences": "remove it; OpenSSL chooses",
    "http_server_config": "remove it; HTTP/1.1 with strict security headers is all there is",
    "rate_limit": "remove it; the flags --web.max-connections and --web.*-timeout limit clients",
    "RequestClientCert": "it does not verify the certificate; use VerifyClientCertIfGiven",
    "RequireAnyClientCert": "it does not verify the certificate; use RequireAndVerifyClientCert",
    "RequireClientCert": "it does not verify the certificate; use RequireAndVerifyClientCert",
}
# bcrypt takes 2^cost rounds: at cost 10 a check takes about 70 ms, at cost 16 about 4 s.
_BCRYPT_HASH = re.compile(r"\$2[abxy]\$(?:0[4-9]|1[0-6])\$[./A-Za-z0-9]{53}")


@dataclass(frozen=True)
class Tls:
    """How connections are encrypted, and which clients may connect."""

    context: ssl.SSLContext
    allowed_sans: frozenset[str] = frozenset()  # if any: a client's certificate must have one of them

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Returns whether a client may connect with a certificate, as `SSLSocket.getpeercert` gives it."""
        names = (certificate or {}).get("subjectAltName", ())
        return not self.allowed_sans or any(_san(name) in self.allowed_sans for _, name in names)


class WebConfig:
    """TLS and passwords of a configuration file, which is reread when it changes; neither without a file.

    A file that cannot be used changes nothing, and neither does one without TLS or passwords if there were
    some: half of a file, read while it is written, must not open the server to everybody.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Reads the file. Raises UserError if it cannot be used."""
        self._path = path
        self._files: list[Path] = []
        self._seen: list[object] = []
        self._stopping = Event()
        self.tls: Tls | None = None
        self.authentication = BasicAuthentication()
        self.last_reload_successful = True
        if path is not None:
            self._read(path)

    def watch(self) -> None:
        """Starts a thread that rereads the file when it or a file that it names has changed."""
        if self._path is not None:
            Thread(target=self._watch, name="web configuration", daemon=True).start()

    def reread(self) -> None:
        """Rereads the file if it has changed, or a file that it names. Keeps what holds if that fails."""
        if self._path is None or [*map(stamp_of, (self._path, *self._files))] == self._seen:
            return
        try:
            self._read(self._path)
        except Exception as error:  # noqa: BLE001 - the server goes on, whatever is wrong with the file
            self.last_reload_successful = False
            reason = str(error) if isinstance(error, UserError) else describe(error)
            logger.error("the web configuration in use is kept: %s", reason)
        else:
            self.last_reload_successful = True
            logger.info("reread %s", self._path)

    def close(self) -> None:
        """Ends the threads."""
        self._stopping.set()
        self.authentication.close()

    def _watch(self) -> None:
        while not self._stopping.wait(CHECK_SECONDS):
            self.reread()

    def _read(self, path: Path) -> None:
        stamp = stamp_of(path)  # before reading: what changes meanwhile is read again
        self._seen = [stamp, *map(stamp_of, self._files)]
        content = _content(path)
        try:
            sections = _mapping("the file", content or {})
            _refuse_unknown("", sections, ("tls_server_config", "basic_auth_users"))
            settings, users = (
                _mapping(key, sections.get(key) or {}) for key in ("tls_server_config", "basic_auth_users")
            )
            names = [settings.get(key) for key in _TLS_FILES]
            self._files = [path.parent / name for name in names if isinstance(name, str) and name]
            self._seen = [stamp, *map(stamp_of, self._files)]
            tls = _tls(path.parent, settings) if settings else None
            hashes = _hashes(users)
            known = self.authentication.users
            for what, before, now in (("TLS", self.tls, tls), ("passwords", known, hashes)):
                if before and not now:
                    raise UserError(f"no longer has {what}; to serve without {what}, restart")
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        self.tls, self.authentication.users = tls, hashes


def _content(path: Path) -> Any:
    import yaml  # only with the flag

    try:
        return yaml.safe_load(path.read_bytes())  # in UTF-8, whatever the locale
    except OSError as error:
        raise UserError(f"--web.config.file {path}: {_reason(error)}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as a date that there is not
        raise UserError(f"--web.config.file {path}: not YAML: {' '.join(str(error).split())}") from None


def _tls(folder: Path, settings: Mapping[str, Any]) -> Tls:
    _refuse_unknown("tls_server_config.", settings, _TLS_KEYS)
    for key in set(_TLS_KEYS) - {"client_allowed_sans"}:
        if not isinstance(settings.get(key, ""), str):
            raise UserError(f"tls_server_config.{key}: must be a string")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _choice(settings, "min_version", _TLS_VERSIONS, "TLS12")
    context.maximum_version = _choice(settings, "max_version", _TLS_VERSIONS, "TLS13")
    certificate = _existing_file(folder, settings, "cert_file")
    private_key = _existing_file(folder, settings, "key_file")
    try:
        # An encrypted key would ask for its pass phrase on the terminal: give a wrong pass phrase.
        context.load_cert_chain(certificate, private_key, password=lambda: b"")
    except (ssl.SSLError, OSError) as error:
        raise UserError(
            f"tls_server_config.cert_file {certificate} and key_file {private_key}: {_reason(error)}"
        ) from None
    policy = _choice(settings, "client_auth_type", _CLIENT_AUTHENTICATION, "NoClientCert")
    sans = _sans(settings, policy)
    if policy == ssl.CERT_NONE:
        if settings.get("client_ca_file"):
            raise UserError("tls_server_config.client_ca_file: needs a client_auth_type that verifies")
        return Tls(context)
    authority = _existing_file(folder, settings, "client_ca_file")
    try:
        context.load_verify_locations(authority)
    except (ssl.SSLError, OSError) as error:
        raise UserError(f"tls_server_config.client_ca_file {authority}: {_reason(error)}") from None
    context.verify_mode = policy
    return Tls(context, sans)


def _sans(settings: Mapping[str, Any], policy: ssl.VerifyMode) -> frozenset[str]:
    names = settings.get("client_allowed_sans")
    if names is None:
        return frozenset()
    where = "tls_server_config.client_allowed_sans"
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{where}: must be a list of names")
    if policy != ssl.CERT_REQUIRED:  # otherwise a client without a certificate would have no name to check
        raise UserError(f"{where}: needs client_auth_type: RequireAndVerifyClientCert")
    return frozenset(map(_san, names))


def _san(name: str) -> str:
    """Returns a subject alternative name as it is compared: exactly, and IP addresses in one notation."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _hashes(users: Mapping[str, Any]) -> dict[str, bytes]:
    if users and find_spec("bcrypt") is None:
        raise UserError("basic_auth_users needs the package bcrypt; pip install 'stepscope[passwords]'")
    for user, hashed in users.items():
        if not _BCRYPT_HASH.fullmatch(str(hashed)):
            raise UserError(
                f"basic_auth_users.{user}: not a bcrypt hash of cost 4 to 16; "
                "make one with `htpasswd -nBC 10 ''`"
            )
    return {str(user): str(hashed).encode() for user, hashed in users.items()}


def stamp_of(path: Path) -> object:
    """Returns what changes when a file is written, replaced or removed."""
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _mapping(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{key}: must be a mapping of keys to values")
    return value


def _refuse_unknown(prefix: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key in _UNSUPPORTED:
            raise UserError(f"{prefix}{key}: not supported: {_UNSUPPORTED[key]}")
        if key not in known:
            raise UserError(f"{prefix}{key}: not a key of this file; use one of {', '.join(known)}")


def _choice(settings: Mapping[str, Any], key: str, choices: Mapping[str, Any], default: str) -> Any:
    value = settings.get(key) or default
    if value in _UNSUPPORTED:
        raise UserError(f"tls_server_config.{key}: {value}: not supported: {_UNSUPPORTED[value]}")
    if value not in choices:
        raise UserError(f"tls_server_config.{key}: {value} must be one of {', '.join(choices)}")
    return choices[value]


def _existing_file(folder: Path, settings: Mapping[str, Any], key: str) -> Path:
    """Returns the path of a file in the configuration, relative to the configuration's directory."""
    if not settings.get(key):
        raise UserError(f"tls_server_config.{key}: is missing")
    file = folder / str(settings[key])
    try:
        file.open("rb").close()
    except OSError as error:
        raise UserError(f"tls_server_config.{key}: {file}: {_reason(error)}") from None
    return file


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
