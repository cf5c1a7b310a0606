"""The server under clients of every kind: good ones are answered, whatever the others do."""

import asyncio
import gzip
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus

import pytest
from stepscope.common.errors import UserError
from stepscope.web.limits import Limits, Refusals
from stepscope.web.messages import Request, Response
from stepscope.web.server import Address, Server, bind, client_of, parse_address

from tests.support.waiting import SECONDS

BIG = b"0123456789" * 2_000_000


async def answer(request: Request) -> Response:
    if request.path == "/fails":
        raise RuntimeError("a bug")
    if request.path == "/reads":
        return Response(HTTPStatus.OK, b"read " + await request.body())
    body = BIG if request.path == "/big" else f"{request.method} {request.path}".encode()
    return Response(HTTPStatus.OK, body)


@contextmanager
def serving(limits: Limits | None = None, refusals: Refusals | None = None) -> Iterator[int]:
    """A server in a thread; gives its port."""
    listening = bind(Address("127.0.0.1", 0))
    port: int = listening.getsockname()[1]
    loop = asyncio.new_event_loop()
    server = Server(answer, limits=limits, refusals=refusals)
    thread = threading.Thread(target=loop.run_forever)
    loop.call_soon(server.start, [listening])
    thread.start()
    try:
        yield port
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Client:
    """A raw connection."""

    def __init__(self, port: int, receive_buffer: int | None = None, source: str = "127.0.0.1") -> None:
        self.socket = socket.socket()
        self.socket.bind((source, 0))
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(SECONDS)
        self.socket.connect(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)

    def get(self, path: str, *headers: str, method: str = "GET", version: str = "1.1") -> None:
        lines = [f"{method} {path} HTTP/{version}", "Host: node", *headers, "", ""]
        self.send("\r\n".join(lines).encode())

    def response(self, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        status = int(self.file.readline().split()[1])
        headers = {}
        while line := self.file.readline().strip().decode():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return status, headers, self.file.read(int(headers["content-length"])) if has_body else b""

    def is_closed(self) -> bool:
        """Whether the server ends the connection, within a generous time, with nothing more to say."""
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True


def fetch(port: int, path: str = "/x") -> bytes:
    with Client(port) as client:
        client.get(path)
        status, _, body = client.response()
        assert status == 200
        return body


def test_a_connection_serves_many_requests_even_when_they_come_at_once() -> None:
    with serving() as port, Client(port) as client:
        client.send(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert [client.response()[2] for _ in range(2)] == [b"GET /1", b"GET /2"]
        client.get("/3?query=1")
        status, headers, body = client.response()
        assert (status, headers["connection"], body) == (200, "keep-alive", b"GET /3")


def test_a_connection_is_closed_when_the_client_wants_it() -> None:
    with serving() as port:
        with Client(port) as client:
            client.get("/", "Connection: close")
            assert client.response()[1]["connection"] == "close"
            assert client.is_closed()
        with Client(port) as client:
            client.get("/", version="1.0")
            client.response()
            assert client.is_closed()
        with Client(port) as client:
            client.get("/", "Connection: keep-alive", version="1.0")
            client.response()
            client.get("/again")
            assert client.response()[2] == b"GET /again"


def test_head_gives_the_headers_of_get_without_the_body() -> None:
    with serving() as port, Client(port) as client:
        client.get("/big", method="HEAD")
        status, headers, _ = client.response(has_body=False)
        assert (status, headers["content-length"]) == (200, str(len(BIG)))
        client.get("/next")
        assert client.response()[2] == b"GET /next"


def test_a_big_response_is_compressed_for_who_accepts_it() -> None:
    with serving() as port, Client(port) as client:
        client.get("/big", "Accept-Encoding: deflate, gzip;q=0.5")
        _, headers, body = client.response()
        assert headers["content-encoding"] == "gzip"
        assert gzip.decompress(body) == BIG
        client.get("/big", "Accept-Encoding: gzip;q=0")
        assert client.response()[2] == BIG
        client.get("/small", "Accept-Encoding: gzip")
        assert "content-encoding" not in client.response()[1]


def test_an_error_of_ours_is_a_500_and_the_connection_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as port, Client(port) as client:
        client.get("/fails")
        assert client.response()[0] == 500
        client.get("/works")
        assert client.response()[0] == 200
    assert "GET /fails failed" in caplog.text


def test_the_body_of_a_request_is_not_taken_for_another_request() -> None:
    with serving() as port, Client(port) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 26\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n")
        assert client.response()[1]["connection"] == "close"
        assert client.is_closed()


def test_a_body_that_is_asked_for_is_read_and_the_connection_goes_on() -> None:
    with serving(Limits(body_bytes=10)) as port, Client(port) as client:
        client.send(b"POST /reads HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n01234")
        client.send(b"56789")
        assert client.response()[2] == b"read 0123456789"
        client.get("/reads")
        assert client.response()[2] == b"read "


@pytest.mark.parametrize(
    ("header", "body", "status"),
    [
        ("Content-Length: 11", b"01234567890", 413),
        ("Content-Length: 10000000", b"0" * 1000, 413),
        ("Content-Length: 9" + "9" * 30, b"", 400),
        ("Content-Length: -1", b"", 400),
        ("Content-Length: 3\r\nContent-Length: 4", b"012", 400),
        ("Transfer-Encoding: chunked", b"1\r\n0\r\n0\r\n\r\n", 411),
        ("Content-Length: 10", b"012", 408),
    ],
)
def test_a_body_of_wrong_length_is_refused_and_ends_the_connection(
    header: str, body: bytes, status: int
) -> None:
    with serving(Limits(body_bytes=10, read_seconds=0.5)) as port:
        with Client(port) as client:
            client.send(f"POST /reads HTTP/1.1\r\nHost: a\r\n{header}\r\n\r\n".encode() + body)
            answered, headers, text = client.response()
            assert (answered, headers["connection"]) == (status, "close")
            assert text.count(b"\n") == 1
            assert client.is_closed()
        assert fetch(port) == b"GET /x"


def test_a_client_reads_the_answer_though_its_body_was_not_wanted() -> None:
    with serving(Limits(body_bytes=4_000_000)) as port, Client(port) as client:
        client.send(b"POST /no HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n" + b"0" * 3_000_000)
        assert client.response()[2] == b"POST /no"
        assert client.is_closed()


@pytest.mark.parametrize(
    "request_head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # a TLS client hello, in part
        b"\0\xff" * 100 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # without Host
        b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    ],
)
def test_garbage_is_a_bad_request(request_head: bytes) -> None:
    with serving() as port:
        with Client(port) as client:
            client.send(request_head)
            assert client.response()[0] == 400
            assert client.is_closed()
        assert fetch(port) == b"GET /x"


def test_a_client_that_sends_byte_by_byte_has_only_so_much_time_for_all_of_them() -> None:
    with serving(Limits(read_seconds=0.5)) as port, Client(port) as slow:
        slow.socket.settimeout(0.05)
        dropped = False
        for _ in range(1200):  # a minute at 50 ms a byte
            try:
                slow.send(b"G")
                dropped = slow.socket.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                dropped = True
            if dropped:
                break
        assert dropped
        assert fetch(port) == b"GET /x"


def test_an_idle_connection_is_kept_for_a_while_and_then_dropped() -> None:
    with serving(Limits(idle_seconds=0.5)) as port, Client(port) as client:
        client.get("/1")
        client.response()
        assert client.is_closed()


def test_a_crowd_of_silent_clients_pushes_out_itself_and_not_the_one_who_uses_its_connection() -> None:
    with serving(Limits(connections=8)) as port, Client(port) as prometheus:
        prometheus.get("/1")
        prometheus.response()
        crowd = [Client(port) for _ in range(40)]
        try:
            prometheus.get("/2")
            assert prometheus.response()[2] == b"GET /2"
            assert fetch(port) == b"GET /x"
            assert all(client.is_closed() for client in crowd[:30])
        finally:
            for client in crowd:
                client.__exit__()


@pytest.mark.parametrize("sends_requests", [False, True])
def test_a_client_with_many_connections_loses_its_own_and_no_other_clients(sends_requests: bool) -> None:
    refusals = Refusals()
    with serving(Limits(connections=8), refusals) as port, Client(port) as prometheus:
        prometheus.get("/1")
        prometheus.response()
        crowd = [Client(port, source="127.0.0.2")]
        try:
            for _ in range(40):
                if sends_requests:  # so that its connections are as good as those of Prometheus
                    crowd[-1].get("/hostile")
                    crowd[-1].response()
                crowd.append(Client(port, source="127.0.0.2"))
            with Client(port, source="127.0.0.3") as newcomer:
                newcomer.get("/new")
                assert newcomer.response()[2] == b"GET /new"
            prometheus.get("/2")
            assert prometheus.response()[2] == b"GET /2"
            assert all(client.is_closed() for client in crowd[:30])
        finally:
            for client in crowd:
                client.__exit__()
    assert refusals.counts["connections"] >= 34


def test_a_client_that_keeps_connections_leaves_room_for_its_own_new_ones() -> None:
    """A connection that has not sent its request yet does not give way to those that have."""
    with serving(Limits(connections=8)) as port:
        kept = [Client(port) for _ in range(20)]
        try:
            for client in kept:
                with suppress(OSError, IndexError):  # those that were dropped
                    client.get("/kept")
                    client.response()
            new = [Client(port) for _ in range(4)]
            kept += new
            new[0].get("/new")
            assert new[0].response()[2] == b"GET /new"
        finally:
            for client in kept:
                client.__exit__()


def test_clients_that_read_nothing_do_not_fill_the_memory() -> None:
    refusals = Refusals()
    with serving(Limits(), refusals) as port, ExitStack() as stack:
        for _ in range(5):
            deaf = stack.enter_context(Client(port, receive_buffer=4096, source="127.0.0.2"))
            deaf.get("/big")  # 20 MB
        assert fetch(port, "/big") == BIG
    assert refusals.counts["unread"] == 4 + 1


def test_clients_that_a_limit_refuses_hold_up_nobody_and_are_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Refusals()
    limits = Limits(read_seconds=0.5, write_seconds=0.5, body_bytes=10)
    with serving(limits, refusals) as port:
        for _ in range(2):
            with Client(port) as silent, Client(port) as slow, Client(port, receive_buffer=4096) as deaf:
                slow.send(b"GET / HTTP/1.1\r\nHo")
                deaf.get("/big")
                assert fetch(port) == b"GET /x"
                with Client(port) as long:
                    long.send(b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * 20_000)
                    assert long.response()[0] == 431
                with Client(port) as wordy:
                    wordy.send(b"POST /reads HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n")
                    assert wordy.response()[0] == 413
                assert silent.is_closed()
                assert slow.is_closed()
                reset = select.poll()
                reset.register(deaf.socket, 0)  # tells of a reset only, not of bytes to read
                assert reset.poll(SECONDS * 1000)
    counted = {reason: count for reason, count in refusals.counts.items() if count}
    assert counted == {"read_timeout": 4, "write_timeout": 2, "header_bytes": 2, "body_bytes": 2}
    assert len([line for line in caplog.messages if line.startswith("refused 127.0.0.1: ")]) == 4


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_ipv6_network_is_one_client(address: str, client: str) -> None:
    assert client_of(address) == client


def test_a_server_without_a_file_descriptor_waits_for_one_and_serves_on() -> None:
    refusals = Refusals()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(Limits(), refusals) as port, Client(port) as kept, Client(port) as waiting:
        kept.get("/1")
        kept.response()
        with socket.socket() as late:
            try:
                # Until it has refused one connection, there is no room for a new descriptor in this process.
                resource.setrlimit(resource.RLIMIT_NOFILE, (1, limit[1]))
                late.connect(("127.0.0.1", port))
                deadline = time.monotonic() + SECONDS
                while refusals.counts["open_files"] < 4 and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(0.2)  # thousands of attempts, if it does not wait between them
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            late.settimeout(SECONDS)
            late.sendall(b"GET /late HTTP/1.0\r\n\r\n")
            assert late.recv(100).startswith(b"HTTP/1.1 200")
        assert waiting.is_closed()  # made room
        assert kept.is_closed()
    assert 4 <= refusals.counts["open_files"] < 500


def test_an_error_of_ours_with_one_connection_does_not_end_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as port:
        monkeypatch.setattr("stepscope.web.server.client_of", lambda _: 1 / 0)
        with Client(port) as unlucky:
            assert unlucky.is_closed()
        monkeypatch.undo()
        assert fetch(port) == b"GET /x"
    assert "connections could not be accepted" in caplog.text


def test_connections_leave_open_files_for_the_collectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    refusals = Refusals()
    with serving(Limits(connections=128), refusals) as port:
        crowd = [Client(port) for _ in range(20)]
        assert fetch(port) == b"GET /x"
        for client in crowd:
            client.__exit__()
    assert refusals.counts["connections"] == 20 + 1 - 64 // 4


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9870", Address("", 9870)),
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("localhost:80", Address("localhost", 80)),
        ("[::1]:9870", Address("::1", 9870)),
        ("[::]:1", Address("::", 1)),
    ],
)
def test_addresses_are_read_as_other_exporters_read_them(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["9870", "", "host", "::1:9870", "[::1]", ":99999", "host:port", "http://a:1"]
)
def test_a_wrong_address_is_named(text: str) -> None:
    with pytest.raises(UserError, match=r"--web\.listen-address .*must be"):
        parse_address(text)


def test_a_taken_port_is_named() -> None:
    with bind(Address("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{port}: address already in use"):
            bind(Address("127.0.0.1", port))
        with pytest.raises(UserError, match=f":{port}: address already in use"):
            bind(Address("", port))


def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(UserError, match=r"cannot listen on 192\.0\.2\.1:9870"):
        bind(Address("192.0.2.1", 9870))
    with pytest.raises(UserError, match=r"cannot listen on no-such-host\.invalid:9870"):
        bind(Address("no-such-host.invalid", 9870))


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_an_empty_host_is_every_address_of_both_kinds() -> None:
    with bind(Address("", 0)) as listening:
        port = listening.getsockname()[1]
        hosts = ["127.0.0.1"] + (["::1"] if listening.family == socket.AF_INET6 else [])
        for host in hosts:
            socket.create_connection((host, port), timeout=SECONDS).close()
