"""HTTP/1.1 messages: requests, responses, and the negotiation of formats."""

import gzip
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

GZIP_LEVEL = 1  # a scrape at level 6 is 10 % smaller and takes 4 times as long

# Nothing may run, load, frame or send; a page with scripts or style replaces this by its own policy.
CONTENT_SECURITY_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class RequestError(Exception):
    """A request that cannot be served. Handlers may raise it, too. `text` is one line.

    `refusal` names the limit that it is counted under, if it is a limit (limits.py).
    """

    def __init__(self, status: HTTPStatus, text: str = "", refusal: str = "") -> None:
        super().__init__(text or status.phrase)
        self.status = status
        self.refusal = refusal

    @property
    def response(self) -> "Response":
        headers = {"Retry-After": "1"} if self.status is HTTPStatus.TOO_MANY_REQUESTS else {}
        return Response(self.status, f"{self}\n".encode(), headers=headers)


async def _no_body() -> bytes:
    return b""


@dataclass(frozen=True)
class Request:
    """A request. `body` reads its body once, within the server's limits. It may raise RequestError."""

    method: str
    path: str
    headers: Mapping[str, str]  # by lower-case name
    client: str = ""  # the client's address
    body: Callable[[], Awaitable[bytes]] = _no_body


@dataclass(frozen=True)
class Response:
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    gzipped: bytes | None = None  # the body in gzip, if it is known already


Handler = Callable[[Request], Awaitable[Response]]

_REQUEST_LINE = re.compile(r"([A-Z]{1,16}) ([!-~]{1,8000}) HTTP/1\.([01])")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")


def parse(head: bytes) -> tuple[Request, bool]:
    """Returns the request, and whether the client wants to keep the connection. Raises RequestError."""
    first, *lines = head.decode("latin-1").strip("\r\n").split("\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise RequestError(HTTPStatus.BAD_REQUEST)
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise RequestError(HTTPStatus.BAD_REQUEST)
        name = header[1].lower()
        if name == "host" and name in headers:
            raise RequestError(HTTPStatus.BAD_REQUEST)
        headers[name] = f"{headers[name]}, {header[2]}" if name in headers else header[2]
    if match[3] == "1" and "host" not in headers:
        raise RequestError(HTTPStatus.BAD_REQUEST)
    connection = headers.get("connection", "").lower()
    keep = "close" not in connection if match[3] == "1" else "keep-alive" in connection
    return Request(match[1], match[2].partition("?")[0], headers), keep


def render_head(response: Response, keep: bool) -> bytes:
    """Returns the status line and the headers, up to the empty line."""
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        "Connection": "keep-alive" if keep else "close",
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        **response.headers,
    }
    if response.status is HTTPStatus.NOT_MODIFIED:  # the length would be that of the page (RFC 9110, 8.6)
        del headers["Content-Length"]
    lines = [f"HTTP/1.1 {response.status.value} {response.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def in_gzip(body: bytes) -> bytes:
    """Returns a body in gzip."""
    return gzip.compress(body, GZIP_LEVEL, mtime=0)


def accepts_gzip(accept_encoding: str) -> bool:
    """Returns whether an `Accept-Encoding` header allows gzip."""
    qualities = {coding: quality for coding, _, quality in accepted(accept_encoding)}
    return qualities.get("gzip", qualities.get("x-gzip", qualities.get("*", 0.0))) > 0


def accepted(header: str) -> Iterable[tuple[str, dict[str, str], float]]:
    """Yields the entries of an `Accept` or `Accept-Encoding` header: name, parameters and quality 0..1."""
    for element in header.split(","):
        name, *words = (word.strip() for word in element.split(";"))
        parameters = {
            key.strip().lower(): value.strip().strip('"')
            for key, _, value in (word.partition("=") for word in words)
        }
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 0.0
        if name and 0 <= quality <= 1:
            yield name.lower(), parameters, quality
