"""The exporter's HTTP/1.1 server: one thread, any number of slow clients.

Every connection is a coroutine with a deadline for the TLS handshake, the request and the reading of the
response. So a client that is slow, silent or hostile delays only itself. If there are too many connections,
the server drops the one that was idle longest, and first those that never sent a whole request. So clients
that only open sockets replace each other, not Prometheus.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import NamedTuple

from trainwatch.errors import UserError

logger = logging.getLogger(__name__)

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time

GZIP_FROM_BYTES = 1024  # below, gzip is not worth its header and its CPU time
GZIP_LEVEL = 1  # a scrape at level 6 is 10 % smaller and takes 4 times as long


@dataclass(frozen=True)
class Limits:
    """The limits of clients, in seconds and bytes."""

    connections: int = 128
    request_seconds: float = 10.0  # from the first byte of a request to its last
    idle_seconds: float = 120.0  # between requests: Prometheus keeps its connection from scrape to scrape
    first_seconds: float = 10.0  # from the connection to the first byte, TLS handshake included
    response_seconds: float = 30.0  # for reading a response to its end
    head_bytes: int = 16 * 1024  # request line and headers
    body_bytes: int = 0  # a request's body; 0: no handler reads bodies


class RequestError(Exception):
    """A request that cannot be served. Handlers may raise it, too. `text` is one line."""

    def __init__(self, status: HTTPStatus, text: str = "") -> None:
        super().__init__(text or status.phrase)
        self.status = status

    @property
    def response(self) -> Response:
        return Response(self.status, f"{self}\n".encode())


async def _no_body() -> bytes:
    return b""


@dataclass(frozen=True)
class Request:
    """A request. `body` reads its body once, within the server's limits. It may raise RequestError."""

    method: str
    path: str
    headers: Mapping[str, str]  # by lower-case name
    body: Callable[[], Awaitable[bytes]] = _no_body


@dataclass(frozen=True)
class Response:
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


class Address(NamedTuple):
    """An address to listen on; an empty host is every address of the node, IPv4 and IPv6."""

    host: str
    port: int


def parse_address(text: str) -> Address:
    """Parses `HOST:PORT`, `:PORT` or `[IPv6]:PORT`. Raises UserError on anything else."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:]*)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise UserError(f"--web.listen-address {text}: must be [HOST]:PORT, as :9870 or [::1]:9870")
    return Address(match[1] or match[2] or "", int(match[3]))


def bind(address: Address) -> socket.socket:
    """Returns a listening socket. Raises UserError if the port is taken or the host is not this node's."""
    shown = f"{f'[{address.host}]' if ':' in address.host else address.host}:{address.port}"
    try:
        if not address.host:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            try:
                return socket.create_server(("", address.port), family=family, dualstack_ipv6=both)
            except OSError:
                if not both:
                    raise
                # The kernel has IPv6, but it is switched off on this node.
                return socket.create_server(("", address.port))
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, *_, where = min(found, key=lambda info: info[0] != socket.AF_INET)  # IPv4 first, as Go does
        return socket.create_server((str(where[0]), address.port), family=family)
    except OSError as error:
        # create_server adds the address to `strerror`; an unknown host has no errno of the system.
        number = error.errno or 0
        reason = (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()
        raise UserError(
            f"cannot listen on {shown}: {reason}; choose another with --web.listen-address"
        ) from None


class Server:
    """Serves requests on listening sockets, until it is closed."""

    def __init__(
        self, handler: Handler, tls: ssl.SSLContext | None = None, limits: Limits | None = None
    ) -> None:
        self._handler = handler
        self._tls = tls
        self._limits = limits or Limits()
        self._connections: dict[asyncio.Task[None], _Use] = {}
        self._acceptors: list[asyncio.Task[None]] = []

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """Starts to accept connections; the sockets then belong to the server."""
        self._acceptors += [asyncio.create_task(self._accept(listening)) for listening in sockets]

    async def close(self) -> None:
        """Stops listening and drops every connection."""
        tasks = [*self._acceptors, *self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        with listening:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError as error:  # closed before it was accepted, or no descriptor is left
                    logger.debug("a connection could not be accepted: %s", error)
                    await asyncio.sleep(0.1)
                    continue
                self._make_room()
                use = _Use(loop.time())
                task = asyncio.create_task(self._serve(connection, use))
                self._connections[task] = use
                task.add_done_callback(lambda done: self._connections.pop(done, None))
                await asyncio.sleep(0)  # a task cancelled before it began would not close its socket

    def _make_room(self) -> None:
        while len(self._connections) >= self._limits.connections:
            oldest = min(self._connections, key=lambda task: self._connections[task].rank)
            del self._connections[oldest]
            oldest.cancel()

    async def _serve(self, connection: socket.socket, use: _Use) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=self._limits.head_bytes, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport: asyncio.BaseTransport | None = None
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._limits.first_seconds if self._tls else None,
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            writer.transport.set_write_buffer_limits(high=0)  # so that drain() waits until all is sent
            while await self._serve_one(reader, writer, use):
                use.requests += 1
                use.since = loop.time()
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), self._limits.first_seconds)
        except (OSError, asyncio.TimeoutError):  # caused by the client: left, too slow, no TLS
            pass
        except Exception:
            logger.exception("a connection could not be served")
        finally:
            # Resets a connection whose client has not read the response, which the kernel would keep.
            with suppress(OSError):  # closed already: the usual end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
            else:
                connection.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, use: _Use) -> bool:
        """Answers one request. Returns whether the connection stays open for another."""
        limits = self._limits
        try:
            head = await self._read_head(
                reader, limits.idle_seconds if use.requests else limits.first_seconds
            )
            request, keep = _parse(head)
        except RequestError as error:
            writer.write(_render(error.response, False, False))
            await asyncio.wait_for(writer.drain(), limits.response_seconds)
            return False
        except asyncio.IncompleteReadError:
            return False
        body = _Body(reader, request.headers, limits)
        response = await self._answer(replace(request, body=body.read))
        keep = keep and body.ended  # otherwise the rest of the body would be read as another request
        writer.write(_render(response, keep, request.method == "HEAD"))
        await asyncio.wait_for(writer.drain(), limits.response_seconds)
        await body.discard()
        return keep

    async def _read_head(self, reader: asyncio.StreamReader, patience: float) -> bytes:
        """Reads up to the empty line. Raises TimeoutError, IncompleteReadError, RequestError."""
        first = await asyncio.wait_for(reader.readexactly(1), patience)
        try:
            rest = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._limits.request_seconds)
        except asyncio.LimitOverrunError:
            raise RequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
        return first + rest

    async def _answer(self, request: Request) -> Response:
        try:
            response = await self._handler(request)
        except RequestError as error:
            return error.response
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"Internal Server Error\n")
        if len(response.body) < GZIP_FROM_BYTES or not accepts_gzip(
            request.headers.get("accept-encoding", "")
        ):
            return response
        headers = {**response.headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        body = gzip.compress(response.body, GZIP_LEVEL, mtime=0)
        return Response(response.status, body, response.content_type, headers)


class _Use:
    """The use of a connection; the least used connection is dropped first."""

    def __init__(self, now: float) -> None:
        self.requests = 0
        self.since = now  # its last request, or its beginning

    @property
    def rank(self) -> tuple[bool, float]:
        return self.requests > 0, self.since


class _Body:
    """The body of one request, read only if a handler needs it."""

    def __init__(self, reader: asyncio.StreamReader, headers: Mapping[str, str], limits: Limits) -> None:
        self._reader = reader
        self._limits = limits
        self._chunked = "transfer-encoding" in headers
        length = headers.get("content-length", "0")
        self._left = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None  # None: unknown

    @property
    def ended(self) -> bool:
        return self._left == 0 and not self._chunked

    async def read(self) -> bytes:
        """Reads all of it. Raises RequestError if it is too long, too slow, or of unknown length."""
        if self._chunked:
            raise RequestError(HTTPStatus.LENGTH_REQUIRED)
        if self._left is None:
            raise RequestError(HTTPStatus.BAD_REQUEST, "Content-Length: not a number")
        if self._left > self._limits.body_bytes:
            raise RequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"longer than {self._limits.body_bytes} bytes"
            )
        try:
            body = await asyncio.wait_for(self._reader.readexactly(self._left), self._limits.request_seconds)
        except asyncio.TimeoutError:
            raise RequestError(HTTPStatus.REQUEST_TIMEOUT) from None
        except asyncio.IncompleteReadError:
            raise RequestError(HTTPStatus.BAD_REQUEST, "shorter than its Content-Length") from None
        self._left = 0
        return body

    async def discard(self) -> None:
        """Reads the rest that the client sends, within limits: after a reset it might lose our response."""
        room = 0 if self.ended else self._limits.body_bytes
        if self._left is not None and not self._chunked:
            room = min(room, self._left)
        if room:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._discard(room), self._limits.request_seconds)

    async def _discard(self, room: int) -> None:
        while room > 0 and (piece := await self._reader.read(min(room, 65536))):
            room -= len(piece)


_REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (\S{1,8000}) HTTP/1\.([01])")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")


def _parse(head: bytes) -> tuple[Request, bool]:
    """Returns the request, and whether the client wants to keep the connection."""
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
        headers[name] = f"{headers[name]}, {header[2]}" if name in headers else header[2]
    if match[3] == "1" and "host" not in headers:
        raise RequestError(HTTPStatus.BAD_REQUEST)
    connection = headers.get("connection", "").lower()
    keep = "close" not in connection if match[3] == "1" else "keep-alive" in connection
    return Request(match[1], match[2].partition("?")[0], headers), keep


def _render(response: Response, keep: bool, head_only: bool) -> bytes:
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        "Connection": "keep-alive" if keep else "close",
        "X-Content-Type-Options": "nosniff",
        **response.headers,
    }
    lines = [f"HTTP/1.1 {response.status.value} {response.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if head_only else response.body)


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
