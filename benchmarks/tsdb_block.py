"""Writes a block of Prometheus's storage: chunks, index and meta.json, as `promtool` would from OpenMetrics.

promtool parses each sample's line and keeps all series in memory; here a series costs some microseconds and
its chunks are given ready, so that millions of series take a minute or two instead of hours. The formats are
those of Prometheus's tsdb/docs/format/{chunks,index}.md and of Facebook's Gorilla paper (section 4.1).
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from typing import NamedTuple

NAME = "01HF00000000000000000TRA1N"  # of the block's directory: a ULID, but nobody asks for its time
SEGMENT_BYTES = 512 * 2**20
# A block of samples that came late: the server's head may still take samples of the block's time.
HINT = "from-out-of-order"
XOR_ENCODING = 1

Labels = tuple[tuple[str, str], ...]  # in the order of their names, `__name__` among them


class Chunk(NamedTuple):
    """Samples as they lie in a block: with their length before them and their checksum behind."""

    first: int  # milliseconds since the epoch, so below
    last: int
    samples: int
    framed: bytes


class Series(NamedTuple):
    labels: Labels
    chunks: Sequence[Chunk]


@dataclass
class Statistics:
    """`samples` of each series that share a chunk's bytes count each time."""

    series: int = 0
    chunks: int = 0
    samples: int = 0
    bytes: int = 0


def write_block(storage: Path, strings: Collection[str], series: Iterable[Series]) -> Statistics:
    """A block in the directory that `--storage.tsdb.path` names.

    `strings` are all names and values of labels; `series` come in the order of their labels.
    """
    block = storage / NAME
    (block / "chunks").mkdir(parents=True)
    index = _Index(strings)
    chunks = _ChunkFiles(block / "chunks")
    statistics = Statistics()
    first, last = 2**62, 0
    for one in series:
        places = [(chunk.first, chunk.last, chunks.add(chunk)) for chunk in one.chunks]
        index.add(one.labels, places)
        first, last = min(first, one.chunks[0].first), max(last, one.chunks[-1].last)
        statistics.series += 1
        statistics.chunks += len(one.chunks)
        statistics.samples += sum(chunk.samples for chunk in one.chunks)
    chunks.close()
    with open(block / "index", "wb") as file:
        index.write(file)
    meta = {
        "version": 1,
        "ulid": NAME,
        "minTime": first,
        "maxTime": last + 1,
        "stats": {
            "numSamples": statistics.samples,
            "numSeries": statistics.series,
            "numChunks": statistics.chunks,
        },
        "compaction": {"level": 1, "sources": [NAME], "hints": [HINT]},
    }
    (block / "meta.json").write_text(json.dumps(meta))
    statistics.bytes = sum(path.stat().st_size for path in block.rglob("*") if path.is_file())
    return statistics


def xor_chunk(start: int, step: int, values: Sequence[float]) -> Chunk:
    """Values that are `step` milliseconds apart, from `start` on. Prometheus puts 120 into a chunk."""
    head = struct.pack(">H", len(values)) + _varint(start) + struct.pack(">d", values[0])
    bits = _Bits()
    for index, (value, before) in enumerate(zip(values[1:], values, strict=False)):
        if index == 0:
            head += _uvarint(step)
        else:
            bits.put(0, 1)  # as far behind the one before as that behind its own
        bits.put_difference(value, before)
    data = head + bits.to_bytes()
    checked = bytes((XOR_ENCODING,)) + data
    framed = _uvarint(len(data)) + checked + struct.pack(">I", crc32c(checked))
    return Chunk(start, start + step * (len(values) - 1), len(values), framed)


class _Bits:
    """A string of bits, which keeps where the differing bits of the last value lay."""

    def __init__(self) -> None:
        self._bits, self._length = 0, 0
        self._leading, self._trailing = 65, 0  # zeros around the differing bits; 65: there were none yet

    def put(self, bits: int, length: int) -> None:
        self._bits = self._bits << length | bits
        self._length += length

    def put_difference(self, value: float, before: float) -> None:
        (new,), (old,) = (struct.unpack(">Q", struct.pack(">d", one)) for one in (value, before))
        differing = new ^ old
        if differing == 0:
            self.put(0, 1)
            return
        leading = min(64 - differing.bit_length(), 31)
        trailing = (differing & -differing).bit_length() - 1
        if leading >= self._leading and trailing >= self._trailing:
            self.put(0b10, 2)
        else:
            self._leading, self._trailing = leading, trailing
            self.put(0b11, 2)
            self.put(leading, 5)
            self.put((64 - leading - trailing) % 64, 6)
        self.put(differing >> self._trailing, 64 - self._leading - self._trailing)

    def to_bytes(self) -> bytes:
        missing = -self._length % 8
        return (self._bits << missing).to_bytes((self._length + missing) // 8, "big")


class _ChunkFiles:
    """The segments that hold the chunks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: BufferedWriter | None = None
        self._number = 0
        self._offset = SEGMENT_BYTES

    def add(self, chunk: Chunk) -> int:
        """The reference to the chunk."""
        if self._offset + len(chunk.framed) > SEGMENT_BYTES:
            self._begin_segment()
        assert self._file is not None
        reference = self._number - 1 << 32 | self._offset
        self._file.write(chunk.framed)
        self._offset += len(chunk.framed)
        return reference

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _begin_segment(self) -> None:
        self.close()
        self._number += 1
        self._file = open(self._directory / f"{self._number:06}", "wb")  # noqa: SIM115 - closed by `close`
        self._file.write(struct.pack(">IBxxx", 0x85BD40DD, 1))
        self._offset = 8


class _Index:
    """Series by label: kept in memory (about 60 bytes a series) and written at the end."""

    def __init__(self, strings: Collection[str]) -> None:
        self._symbols = sorted({"", *strings})
        self._number = {text: number for number, text in enumerate(self._symbols)}
        self._start = -(-(5 + 8 + len(self._symbol_table())) // 16) * 16  # of the series
        self._series = bytearray()
        # label -> its encoding, and the series that have it
        self._postings: dict[tuple[str, str], tuple[bytes, array[int]]] = {("", ""): (b"", array("I"))}

    def add(self, labels: Labels, chunks: Sequence[tuple[int, int, int]]) -> None:
        """Chunks are first, last and reference."""
        identity = (self._start + len(self._series)) // 16
        self._postings["", ""][1].append(identity)
        parts = [_uvarint(len(labels))]
        for label in labels:
            known = self._postings.get(label)
            if known is None:
                encoded = _uvarint(self._number[label[0]]) + _uvarint(self._number[label[1]])
                known = self._postings[label] = encoded, array("I")
            parts.append(known[0])
            known[1].append(identity)
        parts.append(_uvarint(len(chunks)))
        end, reference = 0, 0
        for number, (first, last, its_reference) in enumerate(chunks):
            since, moved = first - end, its_reference - reference
            parts += [_uvarint(since) if number else _varint(since), _uvarint(last - first)]
            parts.append(_varint(moved) if number else _uvarint(moved))
            end, reference = last, its_reference
        content = b"".join(parts)
        entry = _uvarint(len(content)) + content + struct.pack(">I", crc32c(content))
        self._series += entry + bytes(-len(entry) % 16)

    def write(self, file: BufferedWriter) -> None:
        symbols_at = file.write(struct.pack(">IB", 0xBAAAD700, 2))
        file.write(_section(self._symbol_table()))
        series_at = _align(file, 16)
        assert series_at == self._start
        file.write(self._series)
        postings_at = _align(file, 4)
        table = [struct.pack(">I", len(self._postings))]
        for (name, value), (_, identities) in sorted(self._postings.items()):
            table.append(_uvarint(2) + _text(name) + _text(value) + _uvarint(_align(file, 4)))
            identities.byteswap()
            file.write(_section(struct.pack(">I", len(identities)) + identities.tobytes()))
        label_table_at = _align(file, 4)  # a table that nobody reads any more
        file.write(_section(struct.pack(">I", 0)))
        table_at = file.tell()
        file.write(_section(b"".join(table)))
        contents = struct.pack(
            ">6Q", symbols_at, series_at, postings_at, label_table_at, postings_at, table_at
        )
        file.write(contents + struct.pack(">I", crc32c(contents)))

    def _symbol_table(self) -> bytes:
        return struct.pack(">I", len(self._symbols)) + b"".join(map(_text, self._symbols))


def _section(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content + struct.pack(">I", crc32c(content))


def _align(file: BufferedWriter, size: int) -> int:
    """Where the file goes on."""
    file.write(bytes(-file.tell() % size))
    return file.tell()


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _uvarint(len(encoded)) + encoded


def _uvarint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    parts = bytearray()
    while number >= 128:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _varint(number: int) -> bytes:
    """Signs alternate: 0, -1, 1, -2 ..."""
    return _uvarint(2 * number if number >= 0 else -2 * number - 1)


def _checksums_of_bytes() -> tuple[int, ...]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return tuple(table)


_OF_BYTE = _checksums_of_bytes()


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum (RFC 3720, appendix B.4)."""
    of_byte, checksum = _OF_BYTE, 0xFFFFFFFF
    for byte in data:
        checksum = of_byte[(checksum ^ byte) & 255] ^ checksum >> 8
    return checksum ^ 0xFFFFFFFF
