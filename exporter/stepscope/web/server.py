"""The exporter's HTTP/1.1 server: one thread, any number of slow clients.

Every connection is a coroutine with a deadline for the TLS handshake, the request and the reading of the
response. So a client that is slow, silent or hostile delays only itself. If there are too many connections,
the client with the most of them loses one: clients that only open sockets replace each other, not Prometheus.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import re
import resource
import socket
import struct
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from stepscope.common.errors import UserError
from stepscope.common.watchdog import Watchdog
from stepscope.web.hosts import Hosts
from stepscope.web.limits import Limits, Refusals
from stepscope.web.messages import (
    Handler,
    Request,
    RequestError,
    Response,
    accepts_gzip,
    in_gzip,
    parse,
    render_head,
)
from stepscope.web.web_config import Tls, WebConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time

ACCEPTING = "accepting connections"
BACKLOG = 1024  # connections that the kernel keeps until they are accepted; it may allow fewer
OPEN_FILES_SHARE = 0.25  # of the files that the process may open, for connections
ACCEPT_AT_ONCE = 32  # connections, before those that are open get their turn
ANSWERS_AT_ONCE = 4  # to one client, so that another one does not wait for hundreds
ACCEPT_AGAIN_AFTER = 0.1  # seconds, when there is no file descriptor
PIECE = 64 * 1024  # bytes of a response that are sent at once
BUFFER = 128 * 1024  # bytes that the kernel keeps per connection and direction
UNREAD_BYTES = 32 * 1024 * 1024  # of all responses that are not read yet
GZIP_FROM_BYTES = 1024  # below, gzip is not worth its header and its CPU time


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
                return socket.create_server(
                    ("", address.port), family=family, dualstack_ipv6=both, backlog=BACKLOG
                )
            except OSError:
                if not both:
                    raise
                # The kernel has IPv6, but it is switched off on this node.
                return socket.create_server(("", address.port), backlog=BACKLOG)
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, *_, where = min(found, key=lambda info: info[0] != socket.AF_INET)  # IPv4 first, as Go does
        return socket.create_server((str(where[0]), address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        # create_server adds the address to `strerror`; an unknown host has no errno of the system.
        number = error.errno or 0
        reason = (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()
        raise UserError(
            f"cannot listen on {shown}: {reason}; choose another with --web.listen-address"
        ) from None


class Server:
    """Serves requests on listening sockets, until it is closed.

    Without `hosts`, any Host header is accepted. With a `watchdog` it may end the process.
    """

    def __init__(
        self,
        handler: Handler,
        config: WebConfig | None = None,
        limits: Limits | None = None,
        hosts: Hosts | None = None,
        refusals: Refusals | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._handler = handler
        self._config = config or WebConfig()
        self._limits = limits or Limits()
        self._hosts = hosts
        self._refusals = refusals or Refusals()
        self._watchdog = watchdog
        self._room = _room(self._limits.connections)
        self._clients: dict[str, _Client] = {}
        self._unread = 0  # bytes of responses
        self._acceptors: list[asyncio.Task[None]] = []

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """Starts to accept connections; the sockets then belong to the server."""
        self._acceptors += [asyncio.create_task(self._accept(listening)) for listening in sockets]

    async def close(self) -> None:
        """Stops listening and drops every connection."""
        uses = [use for client in self._clients.values() for use in (*client.used, *client.unused)]
        for use in uses:
            use.drop()
        for acceptor in self._acceptors:
            acceptor.cancel()
        tasks = [*self._acceptors, *(use.task for use in uses if use.task)]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # connections inherit them
            listening.setsockopt(socket.SOL_SOCKET, option, BUFFER // 2)  # Linux doubles it
        with listening:
            while True:
                try:
                    self._begin(*await loop.sock_accept(listening))
                    if self._watchdog:
                        self._watchdog.worked(ACCEPTING)
                    for _ in range(ACCEPT_AT_ONCE):  # while other connections wait for their turn
                        self._begin(*listening.accept())
                except BlockingIOError:
                    pass
                except OSError as error:
                    await self._after_failure(error)
                except Exception:
                    logger.exception("connections could not be accepted")
                await asyncio.sleep(0)

    def _begin(self, connection: socket.socket, address: tuple[Any, ...]) -> None:
        """Starts to serve an accepted connection, which closes it in the end."""
        try:
            connection.setblocking(False)
            while sum(map(len, self._clients.values())) >= self._room:
                self._drop_one("connections")
            name = client_of(str(address[0]))
            client = self._clients.setdefault(name, _Client(name))
            use = _Use(client, str(address[0]), connection)
            use.task = asyncio.create_task(self._serve(connection, use))
        except BaseException:
            connection.close()
            raise
        use.task.add_done_callback(lambda _: self._end(use))
        client.unused[use] = None

    def _end(self, use: _Use) -> None:
        use.client.forget(use)
        if not len(use.client):
            self._clients.pop(use.client.name, None)
        use.abort()  # for a task that was dropped before it began

    async def _after_failure(self, error: OSError) -> None:
        """Makes room if there is no file descriptor for a connection. Other failures are the client's."""
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            if self._watchdog:
                self._watchdog.failed(ACCEPTING, error)
            self._drop_one("open_files")
            await asyncio.sleep(ACCEPT_AGAIN_AFTER)  # the listening socket stays readable: do not spin
        else:
            logger.debug("a connection could not be accepted: %s", error)

    def _drop_one(self, reason: str) -> None:
        """Drops a connection of the client that has the most: the one that has been silent for longest.

        If most of that client's connections sent a whole request, it is one of these, otherwise one of the
        others. So neither kind pushes out the other.
        """
        most = max(map(len, self._clients.values()), default=0)
        if not most:
            self._refusals.note(reason, "")
            return
        clients = [client for client in self._clients.values() if len(client) == most]
        mostly_used = 2 * sum(len(client.used) for client in clients) > most * len(clients)
        kinds = [client.used if mostly_used else client.unused for client in clients]
        victim = min((next(iter(kind)) for kind in kinds if kind), key=lambda use: use.since)
        self._refusals.note(reason, victim.address)
        victim.client.forget(victim)
        victim.drop()

    async def _serve(self, connection: socket.socket, use: _Use) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=self._limits.header_bytes, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        tls = self._config.tls
        try:
            use.transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=tls.context if tls else None,
                ssl_handshake_timeout=self._limits.read_seconds if tls else None,
            )
            if tls and not tls.admits(use.transport.get_extra_info("peercert")):
                self._refusals.note("certificate", use.address)
                return
            writer = asyncio.StreamWriter(use.transport, protocol, reader, loop)
            writer.transport.set_write_buffer_limits(high=0)  # so that drain() waits until all is sent
            while await self._serve_one(reader, writer, use, tls) and not use.dropped:
                use.requests += 1
                use.sign()
            if not use.dropped:
                writer.close()
                await asyncio.wait_for(writer.wait_closed(), self._limits.read_seconds)
        except (TimeoutError, OSError):  # caused by the client: left, too slow, no TLS
            pass
        except Exception:
            logger.exception("a connection could not be served")
        finally:
            use.abort()

    async def _serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, use: _Use, tls: Tls | None
    ) -> bool:
        """Answers one request. Returns whether the connection stays open for another."""
        try:
            request, keep = parse(await self._read_head(reader, use))
        except RequestError as error:
            await self._write(writer, self._refuse(error, use.address), use)
            return False
        except asyncio.IncompleteReadError:
            return False
        if tls is not self._config.tls:  # certificates have changed: the client may connect again
            return False
        body = _Body(reader, request.headers, self._limits)
        async with use.client.turn:
            response = await self._answer(replace(request, client=use.client.name, body=body.read), use)
        keep = keep and body.ended  # otherwise the rest of the body would be read as another request
        await self._write(writer, response, use, keep, request.method == "HEAD")
        await body.discard()
        return keep

    async def _read_head(self, reader: asyncio.StreamReader, use: _Use) -> bytes:
        """Reads up to the empty line. Raises TimeoutError, IncompleteReadError, RequestError."""
        limits = self._limits
        if use.requests:
            first = await asyncio.wait_for(reader.readexactly(1), limits.idle_seconds)
            use.sign()
        else:
            first = await self._within(limits.read_seconds, "read_timeout", reader.readexactly(1), use)
        try:
            rest = await self._within(limits.read_seconds, "read_timeout", reader.readuntil(b"\r\n\r\n"), use)
        except asyncio.LimitOverrunError:
            raise RequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, refusal="header_bytes") from None
        return first + rest

    async def _within(self, seconds: float, reason: str, work: Awaitable[T], use: _Use) -> T:
        """Waits for the client. Raises TimeoutError, counted as `reason`, if it takes longer."""
        try:
            return await asyncio.wait_for(work, seconds)
        except TimeoutError:
            self._refusals.note(reason, use.address)
            raise

    async def _write(
        self,
        writer: asyncio.StreamWriter,
        response: Response,
        use: _Use,
        keep: bool = False,
        head_only: bool = False,
    ) -> None:
        body = b"" if head_only else response.body
        self._unread += len(body)
        if self._unread > UNREAD_BYTES:
            self._drop_one("unread")
        try:
            await self._within(
                self._limits.write_seconds,
                "write_timeout",
                _send(writer, render_head(response, keep), body),
                use,
            )
        finally:
            self._unread -= len(body)

    async def _answer(self, request: Request, use: _Use) -> Response:
        try:
            if self._hosts:
                self._hosts.check(request)
            response = await self._handler(request)
        except RequestError as error:
            return self._refuse(error, use.address)
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"Internal Server Error\n")
        if len(response.body) < GZIP_FROM_BYTES or not accepts_gzip(
            request.headers.get("accept-encoding", "")
        ):
            return response
        headers = {**response.headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return replace(response, body=response.gzipped or in_gzip(response.body), headers=headers)

    def _refuse(self, error: RequestError, address: str) -> Response:
        if error.refusal:
            self._refusals.note(error.refusal, address)
        return error.response


async def _send(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    """Sends a response in pieces, because asyncio copies what a client does not read at once."""
    content = memoryview(body)
    writer.write(head + content[:PIECE])
    await writer.drain()
    for begin in range(PIECE, len(content), PIECE):
        writer.write(content[begin : begin + PIECE])
        await writer.drain()


def _room(connections: int) -> int:
    """Returns how many connections there may be: collectors need open files, too."""
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if open_files == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, int(open_files * OPEN_FILES_SHARE)))


class _Client:
    """The connections of one client, each kind in the order of their last signs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.unused: dict[_Use, None] = {}  # no request was answered yet
        self.used: dict[_Use, None] = {}
        self.turn = asyncio.Semaphore(ANSWERS_AT_ONCE)

    def __len__(self) -> int:
        return len(self.unused) + len(self.used)

    def forget(self, use: _Use) -> None:
        self.unused.pop(use, None)
        self.used.pop(use, None)


class _Use:
    """The use of one connection."""

    def __init__(self, client: _Client, address: str, connection: socket.socket) -> None:
        self.client = client
        self.connection = connection
        self.address = address
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self.dropped = False
        self.requests = 0
        self.since = asyncio.get_running_loop().time()  # its last sign: when a request began or ended

    def abort(self) -> None:
        """Closes the connection, and resets it: the kernel would keep a response that is not read."""
        with suppress(OSError):  # closed already: the usual end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if self.transport:
            self.transport.abort()
        else:
            self.connection.close()

    def drop(self) -> None:
        """Ends the connection at once, and its task soon."""
        self.dropped = True  # `wait_for` may swallow the cancellation
        if self.transport:
            self.abort()
        assert self.task
        self.task.cancel()

    def sign(self) -> None:
        """Notes that the client uses this connection."""
        if not self.dropped:
            self.since = asyncio.get_running_loop().time()
            self.client.forget(self)
            self.client.used[self] = None


def client_of(address: str) -> str:
    """Returns what counts as one client: an IPv4 address, or the /64 network that one IPv6 host may fill."""
    if ":" not in address:
        return address
    ip = ipaddress.IPv6Address(address.partition("%")[0])
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip) >> 64 << 64, 64)))


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
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"longer than {self._limits.body_bytes} bytes",
                refusal="body_bytes",
            )
        try:
            body = await asyncio.wait_for(self._reader.readexactly(self._left), self._limits.read_seconds)
        except TimeoutError:
            raise RequestError(HTTPStatus.REQUEST_TIMEOUT, refusal="read_timeout") from None
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
                await asyncio.wait_for(self._discard(room), self._limits.read_seconds)

    async def _discard(self, room: int) -> None:
        while room > 0 and (piece := await self._reader.read(min(room, 65536))):
            room -= len(piece)
