"""Runs a temporary Prometheus without targets and rules, which stores what is written to it.

Samples come in Prometheus's remote write 1.0: protobuf in snappy's framing, of which only literals are used.
Source: https://prometheus.io/docs/specs/prw/remote_write_spec/ (WriteRequest, TimeSeries, Label, Sample).
"""

import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from stepscope.common.errors import UserError
from stepscope.prometheus.crosscheck.server import Samples, Series
from stepscope.runs.prometheus.connection import TIMEOUT

HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
STALE = struct.pack("<Q", 0x7FF0000000000002)  # the NaN that marks the end of a series
SAMPLES = 10_000  # in one request
LITERAL = 1 << 16  # bytes, the longest whose length takes two bytes
STARTING = 60.0  # seconds until it must be ready
STOPPING = 10.0
# Nodes are written one after the other, and the rules' records after all nodes: out of order.
CONFIG = "storage:\n  tsdb:\n    out_of_order_time_window: 36500d\n"


class LocalPrometheus:
    """A temporary Prometheus on this machine."""

    def __init__(self, url: str) -> None:
        self.url = url

    def write(self, series: Iterable[Series]) -> None:
        """Stores samples. Raises UserError if Prometheus refuses them."""
        for body in requests_of(series):
            answer = requests.post(f"{self.url}/api/v1/write", data=body, headers=HEADERS, timeout=TIMEOUT)
            if answer.status_code // 100 != 2:
                reason = " ".join(answer.text.split()) or f"HTTP status {answer.status_code}"
                raise UserError(
                    f"the local Prometheus refuses samples ({reason}); install Prometheus 2.42 or later"
                )


@contextmanager
def local_prometheus(program: str = "prometheus") -> Iterator[LocalPrometheus]:
    """Yields a server that runs inside the `with`. Raises UserError if it does not start."""
    binary = shutil.which(program)
    if binary is None:
        raise UserError(
            "--recording needs `prometheus`, which is not on the PATH: install Prometheus 2.42 or later, "
            "or give --prometheus URL alone"
        )
    with tempfile.TemporaryDirectory(prefix="stepscope-crosscheck-") as directory:
        folder = Path(directory)
        (folder / "prometheus.yml").write_text(CONFIG)
        address = free_address()
        command = [
            binary,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address={address}",
            "--web.enable-remote-write-receiver",
            "--log.level=warn",
        ]
        log = folder / "prometheus.log"
        with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
            try:
                with _no_proxy():
                    _wait_until_ready(f"http://{address}/-/ready", process, log)
                    yield LocalPrometheus(f"http://{address}")
            finally:
                _end(process)


@contextmanager
def _no_proxy() -> Iterator[None]:
    """Sends requests to this machine directly, whatever proxy the environment names."""
    name, before = "no_proxy", os.environ.get("no_proxy")
    os.environ[name] = ",".join(filter(None, (before or os.environ.get("NO_PROXY"), "127.0.0.1")))
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTING
    while not _is_ready(url):
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise UserError(f"the local Prometheus does not start: {lines[-1] if lines else 'no message'}")
        time.sleep(0.05)


def _is_ready(url: str) -> bool:
    try:
        return requests.get(url, timeout=TIMEOUT).status_code == 200
    except requests.ConnectionError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOPPING)
    except subprocess.TimeoutExpired:
        process.kill()


def requests_of(series: Iterable[Series]) -> Iterator[bytes]:
    """Yields the bodies of requests that write these series, each ordered by time."""
    parts: list[bytes] = []
    samples = 0
    for labels, points in series:
        encoded = b"".join(label(name, value) for name, value in sorted(labels.items()))
        for first in range(0, len(points), SAMPLES):
            piece = points[first : first + SAMPLES]
            parts.append(encoded + samples_of(piece))
            samples += len(piece)
            if samples >= SAMPLES:
                yield request(parts)
                parts, samples = [], 0
    if parts:
        yield request(parts)


def request(series: Iterable[bytes]) -> bytes:
    """Returns the body of a request; each series is its labels, sorted by name, then its samples."""
    return _in_snappy(b"".join(_message(1, content) for content in series))


def label(name: str, value: str) -> bytes:
    """Encodes a label of a series."""
    return _message(1, _message(1, name.encode()) + _message(2, value.encode()))


def samples_of(points: Samples) -> bytes:
    """Encodes samples of a series."""
    return b"".join(
        _message(
            2, b"\x09" + (STALE if value is None else struct.pack("<d", value)) + b"\x10" + _number(time)
        )
        for time, value in points
    )


def _message(field: int, content: bytes) -> bytes:
    """Encodes a field with its length."""
    return _number(field << 3 | 2) + _number(len(content)) + content


def _number(value: int) -> bytes:
    """Encodes a number with seven bits per byte, the lowest first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _in_snappy(content: bytes) -> bytes:
    parts = [_number(len(content))]
    for first in range(0, len(content), LITERAL):
        literal = content[first : first + LITERAL]
        parts += [bytes([61 << 2]), struct.pack("<H", len(literal) - 1), literal]
    return b"".join(parts)
