"""Clients that mean harm: many connections of every bad kind, and requests of random bytes."""

import asyncio
import multiprocessing
import re
import resource
import socket
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableSequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from random import Random

import bcrypt

from tests.support.actions_process import actions
from tests.support.exporter_process import ExporterProcess
from trials import Attempt, trial
from trials.exporters import flags

PASSWORD = "secret"
SCRAPE_TIMEOUT = 10.0  # seconds, as Prometheus's default
HOSTILE = "127.0.0.2"  # all of them are one client; the scrapers are 127.0.0.1
SILENCE = 5.0  # seconds; longer than the exporter waits
STEP = 0.01
PAUSE = 0.005  # seconds per connection, at most, until a client that was dropped is back
HEAD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"


@trial("Hostile clients cost a scraper at 1 Hz no scrape.", count=1000, short=80, of="connections")
def hostile_clients(attempt: Attempt) -> str:
    limits = (
        f"--web.max-connections={max(8, attempt.count // 8)}",
        f"--web.config.file={_passwords(attempt.folder, cost=10)}",
        "--web.read-timeout=2s",
        "--web.write-timeout=2s",
        "--sample-interval=500ms",
    )
    scrapes = max(4, attempt.count // 20)
    waits: list[float] = []
    with ExporterProcess(*flags(attempt.folder, *limits)) as exporter:
        port = int(exporter.url.rpartition(":")[2])
        kept = HTTPConnection("127.0.0.1", port, timeout=SCRAPE_TIMEOUT)
        before = _scrape(kept)
        with _crowd(port, attempt.count, attempt.random.random()) as made:
            for number in range(scrapes):
                begin = time.monotonic()
                after = _scrape(kept)
                between = time.monotonic()
                once = HTTPConnection("127.0.0.1", port, timeout=SCRAPE_TIMEOUT)
                _scrape(once)
                once.close()
                waits += [between - begin, time.monotonic() - between]
                attempt.progress(attempt.count * number / scrapes)
                time.sleep(max(0.0, begin + 1.0 - time.monotonic()))
        _wait_until_gone(exporter, kept, before["process_open_fds"])
        kept.close()
        failed = [line for line in exporter.log if "Traceback" in line or " ERROR " in line]
    assert not failed, failed[0]
    missed = after["stepscope_sampler_ticks_missed_total"] - before["stepscope_sampler_ticks_missed_total"]
    grown = (after["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]) / 2**20
    prefix = "stepscope_web_refused_total"
    refused = {name[len(prefix) + 9 : -2]: count for name, count in after.items() if name.startswith(prefix)}
    assert refused["connections"], "there was always room"
    reasons = ", ".join(f"{count:,.0f} {reason}" for reason, count in refused.items() if count)
    return (
        f"{2 * scrapes} scrapes, none missed, the slowest took {1000 * max(waits):.0f} ms; "
        f"{sum(made.values()):,} connections of {len(made)} kinds, refused: {reasons}; "
        f"{missed:.0f} samples late, {grown:.0f} MiB more memory"
    )


def _passwords(folder: Path, cost: int) -> Path:
    path = folder / "web.yml"
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(cost)).decode()
    path.write_text(f"basic_auth_users:\n  prometheus: {hashed}\n")
    return path


def _authorization(password: str) -> str:
    return "Basic " + b64encode(f"prometheus:{password}".encode()).decode()


def _scrape(connection: HTTPConnection) -> dict[str, float]:
    """Returns every sample by name and labels."""
    connection.request("GET", "/metrics", headers={"Authorization": _authorization(PASSWORD)})
    response = connection.getresponse()
    text = response.read().decode()
    assert response.status == 200, f"a scrape was answered with {response.status}: {text.strip()}"
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def _wait_until_gone(exporter: ExporterProcess, kept: HTTPConnection, descriptors: float) -> None:
    exporter.wait_for(lambda: _scrape(kept)["process_open_fds"] <= descriptors)


@contextmanager
def _crowd(port: int, count: int, seed: float) -> Iterator[dict[str, int]]:
    """Attacks with so many connections; the mapping has how many it made, once the attack has ended."""
    spawning = multiprocessing.get_context("spawn")  # otherwise it would slow down the scraper itself
    numbers = spawning.Array("i", len(KINDS))
    process = spawning.Process(target=_attack, args=(port, count, seed, numbers), daemon=True)
    process.start()
    made: dict[str, int] = {}
    try:
        while not any(numbers[:]):
            time.sleep(STEP)
        yield made
    finally:
        process.kill()
        process.join()
        made |= {kind.__name__: numbers[index] for index, kind in enumerate(KINDS)}


def _attack(port: int, count: int, seed: float, numbers: MutableSequence[int]) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def everyone() -> None:
        kinds = (number % len(KINDS) for number in range(count))
        await asyncio.gather(
            *(_again(kind, port, Random(seed + kind), count * PAUSE, numbers) for kind in kinds)
        )

    asyncio.run(everyone())


async def _again(kind: int, port: int, random: Random, pause: float, numbers: MutableSequence[int]) -> None:
    """Connects again whenever the exporter has closed the connection."""
    while True:
        await asyncio.sleep(random.uniform(0.0, pause))
        with suppress(OSError, EOFError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(HOSTILE, 0))
            numbers[kind] += 1
            try:
                await KINDS[kind](Link(reader, writer, random))
            finally:
                writer.transport.abort()


@dataclass(frozen=True)
class Link:
    """A hostile client's side of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    random: Random


Kind = Callable[[Link], Awaitable[object]]


async def silent(link: Link) -> None:
    await link.reader.read()


async def slow(link: Link) -> None:
    for byte in HEAD:
        link.writer.write(bytes([byte]))
        await link.writer.drain()
        await asyncio.sleep(0.1)


async def half_closed(link: Link) -> None:
    link.writer.write(HEAD + link.random.choice([b"", b"\r\n"]))
    link.writer.write_eof()
    await link.reader.read()


async def garbage(link: Link) -> None:
    link.writer.write(link.random.randbytes(2000) + b"\r\n\r\n")
    await link.reader.read()


async def endless(link: Link) -> None:
    link.writer.write(HEAD)
    while not link.reader.at_eof():
        link.writer.write(b"X: " + b"x" * 4000 + b"\r\n")
        await link.writer.drain()
        await asyncio.sleep(STEP)


async def wrong_passwords(link: Link) -> None:
    while True:
        link.writer.write(
            HEAD + f"Authorization: {_authorization(str(link.random.random()))}\r\n\r\n".encode()
        )
        await link.reader.readuntil(b"\r\n\r\n")


async def deaf(link: Link) -> None:
    """Requests much and reads nothing."""
    link.writer.write((HEAD + f"Authorization: {_authorization(PASSWORD)}\r\n\r\n".encode()) * 1000)
    await asyncio.sleep(SILENCE)


async def hoarding(link: Link) -> None:
    """Sends a good request, so that its connection is as good as any, and keeps it."""
    link.writer.write(HEAD + f"Authorization: {_authorization(PASSWORD)}\r\n\r\n".encode())
    await link.reader.read()


KINDS: tuple[Kind, ...] = (silent, slow, half_closed, garbage, endless, wrong_passwords, deaf, hoarding)


@trial("No request line, path, header or body leads to a 500.", count=20_000, short=300, of="requests")
def http_fuzz(attempt: Attempt) -> str:
    answers: Counter[str] = Counter()
    users = f"--web.config.file={_passwords(attempt.folder, cost=4)}"
    report = attempt.folder / "report.html"
    report.write_text("<script>1</script>")
    with (
        ExporterProcess(*flags(attempt.folder, users, f"--report-dir={attempt.folder}")) as exporter,
        actions("--ledger-dir", attempt.folder / "ledgers", users) as receiver,
    ):
        servers = [int(each.url.rpartition(":")[2]) for each in (exporter, receiver)]
        for number in attempt.rounds():
            request = made_request(attempt.random)
            answer = _answer(servers[number % 2], request)
            # Only a request without its end gets no answer.
            assert answer or b"\r\n\r\n" not in request.lstrip(b"\r\n"), f"no answer to {request!r}"
            status = answer[:12].decode("latin-1")
            assert re.fullmatch(r"(HTTP/1\.1 ([1-4]\d\d|503))?", status), f"{status!r} to {request!r}"
            answers[status[9:] or "none"] += 1
        logs = [*exporter.log, *receiver.log]
    failed = [line for line in logs if "Traceback" in line or " ERROR " in line]
    assert not failed, failed[0]
    return ", ".join(f"{count:,} times {status}" for status, count in sorted(answers.items()))


def made_request(random: Random) -> bytes:
    """Returns a request that is nearly right: some words of it, or some bytes, are not."""

    def word(*usual: bytes) -> bytes:
        return random.choice(usual) if random.random() < 0.97 else random.randbytes(random.randrange(40))

    lines = [
        word(b"GET", b"GET", b"HEAD", b"POST")
        + b" "
        + word(
            b"/", b"/metrics", b"/report", b"/report/content", b"/-/ready", b"/alerts", b"/metrics?a=b", b"*"
        )
        + b" "
        + word(b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0")
    ]
    if random.random() < 0.95:
        lines.append(b"Host: " + word(b"localhost", b"127.0.0.1:9870", b"[::1]", b"evil.example", b""))
    if random.random() < 0.9:
        right = _authorization(PASSWORD).encode()
        lines.append(b"Authorization: " + word(right, right, right, b"Basic !", b"Basic \xff", b"Bearer x"))
    for _ in range(random.randrange(5)):
        name = word(
            b"Accept", b"Accept-Encoding", b"Connection", b"Content-Length", b"Transfer-Encoding", b"X"
        )
        value = word(
            b"gzip;q=nan, *;q=1e9",
            b"text/plain;q=\xb2;version=0.0.4",
            b"application/openmetrics-text; version=1.0.0",
            b"gzip",
            b"5",
            b"99999999999999999999",
            b"chunked",
            b"keep-alive",
        )
        lines.append(name + b": " + value)
    end = word(b"\r\n")
    body = word(b"", b'{"version": "4", "alerts": []}', b'{"version": "4", "alerts": [{}]}', b"[" * 5000)
    request = bytearray(end.join(lines) + end + end + body)
    for _ in range(random.choice([0] * 8 + [1, 5])):
        place = random.randrange(len(request) + 1)
        request[place : place + random.randrange(2)] = random.randbytes(random.randrange(2))
    return bytes(request)


def _answer(port: int, request: bytes) -> bytes:
    """Returns all that a server says to a request whose client sends nothing else."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=SCRAPE_TIMEOUT) as client:
        with suppress(ConnectionResetError, BrokenPipeError):  # closed after an answer, maybe while we send
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while piece := client.recv(65536):
                answer += piece
    return answer
