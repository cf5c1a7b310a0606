"""Checks the Host header, so that a web page cannot read this server through its visitor's browser.

In DNS rebinding, a page of evil.example lets its own name point at this server. The browser then considers
both the same site, but still sends `Host: evil.example`. So only names that no stranger controls are
accepted. Any IP address is one of them: a page has an address as its origin only if that address served it.
The port is ignored, because forwarded ports differ and the name alone identifies the stranger.
"""

import ipaddress
import re
import socket
from argparse import ArgumentTypeError
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from stepscope.web.messages import Request, RequestError

UNCHECKED = "/metrics"  # Prometheus may know this node by any name, and a page gains only numbers

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_-][A-Za-z0-9._-]*)(:\d{0,5})?", re.ASCII)


class Hosts:
    """The names under which this server may be opened: localhost, any IP address, and this machine's names.

    `listen` are hosts that it listens on, `external_urls` are URLs at which users open it.
    """

    def __init__(self, listen: Iterable[str] = (), external_urls: Iterable[str] = ()) -> None:
        name = _plain(socket.gethostname())
        self._names = {"localhost", name, name.partition(".")[0], *map(_plain, listen)}
        self._names |= {_plain(urlsplit(url).hostname or "") for url in external_urls}
        self._names.discard("")  # the host of a wildcard
        # The full name comes from DNS, which may take seconds or hang: the server does not wait for it.
        Thread(target=self._add_full_name, name="full host name", daemon=True).start()

    def check(self, request: Request) -> None:
        """Raises RequestError if the request was made for another name."""
        given = request.headers.get("host")
        if request.path == UNCHECKED or given is None:  # HTTP/1.0 without Host: not a browser
            return
        match = _HOST.fullmatch(given)
        if match is None:
            raise RequestError(HTTPStatus.BAD_REQUEST, "Host: not a host name")
        host = _plain(match[1])
        if host not in self._names and not _is_address(host):
            raise RequestError(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"{host} is not a name of this server: use its IP address or host name, "
                f"or start it with --web.external-url=http://{given}/",
                refusal="host",
            )

    def _add_full_name(self) -> None:
        with suppress(UnicodeError):  # a host name that DNS cannot have
            self._names |= {_plain(socket.getfqdn())}


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def external_url(text: str) -> str:
    """Returns the URL. Raises ArgumentTypeError, as the `type` of a flag must."""
    try:
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname:
            return text
    except ValueError:  # such as http://[::1
        pass
    raise ArgumentTypeError(f"{text!r} is not a URL such as http://gpu-node-1.example:9870/")


# What the flag is to argparse, whatever a command calls it.
EXTERNAL_URLS: dict[str, Any] = {
    "dest": "external_urls",
    "action": "append",
    "type": external_url,
    "default": [],
    "metavar": "URL",
}
