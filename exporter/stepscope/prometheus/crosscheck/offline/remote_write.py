"""Writes samples in Prometheus's remote write 1.0: protobuf in snappy's framing.

Source: https://prometheus.io/docs/specs/prw/remote_write_spec/ (WriteRequest, TimeSeries, Label, Sample).
Only literals of snappy's block format are used: samples for a process on the same machine stay uncompressed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from stepscope.prometheus.crosscheck.server import Samples, Series

HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
STALE = struct.pack("<Q", 0x7FF0000000000002)  # the NaN that marks the end of a series
SAMPLES = 10_000  # in one request
LITERAL = 1 << 16  # bytes, the longest whose length takes two bytes


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
