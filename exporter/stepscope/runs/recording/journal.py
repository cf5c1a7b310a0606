"""Journals: the file of the open minute, which grows by one record batch per tick.

A journal is a sequence of frames: a marker, the length and the CRC-32 of the content, and the content, an
Arrow IPC message. The first frame has the schema, each other one a record batch. Each write reaches the
kernel whole, so appended batches stay when the process is killed. A frame whose checksum does not match is
never decoded, and the frames after it are still found by their marker.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pyarrow as pa

from stepscope.common.shared_files import create_file, remove
from stepscope.runs.malformed import content

MARKER = b"\x89TWframe"
HEAD = struct.Struct("<8sII")  # marker, length and checksum of the content; 16 bytes keep Arrow aligned


class JournalWriter:
    """Appends record batches to a new file. Raises OSError as the disk does, leaving a readable file.

    The file appears with its first batch.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self.rows = 0
        self._size = 0
        self._file: int | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Writes the batch whole, or not at all."""
        if self._file is None:
            self._create(_frame(self.schema.serialize()) + _frame(batch.serialize()))
        else:
            self._write(self._file, _frame(batch.serialize()))
        self.rows += batch.num_rows

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def _create(self, data: bytes) -> None:
        file = create_file(self.path, 0o644, os.O_WRONLY | os.O_APPEND)
        try:
            self._write(file, data)
        except OSError:
            os.close(file)
            remove(self.path)
            raise
        self._file = file

    def _write(self, file: int, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(file, left) :]
        except OSError:
            os.ftruncate(file, self._size)
            raise
        self._size += len(data)


class JournalReader:
    """Reads a journal, once or repeatedly while it grows; each batch is returned once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.schema: pa.Schema | None = None
        self.damaged_bytes = 0  # between whole batches
        self.torn_bytes = 0  # after the last whole batch, at the last read
        self._offset = 0

    @property
    def unread_bytes(self) -> int:
        """Returns the bytes that hold no whole batch; more than 0 is normal while one is being written."""
        return self.damaged_bytes + self.torn_bytes

    def read(self) -> list[pa.RecordBatch]:
        """Returns the whole batches since the last call. Raises DamageError or FileNotFoundError."""
        data = content(self.path, self._offset)
        batches: list[pa.RecordBatch] = []
        whole = 0
        for start, end, message in _framed(data):
            if self.schema is None:
                if start > 0:  # nothing can be decoded without the first frame
                    break
                self.schema = pa.ipc.read_schema(message)
            else:
                batches.append(pa.ipc.read_record_batch(message, self.schema))
            self.damaged_bytes += start - whole
            whole = end
        self._offset += whole
        self.torn_bytes = len(data) - whole
        return batches


def _frame(content: pa.Buffer) -> bytes:
    return HEAD.pack(MARKER, len(content), crc32(content)) + memoryview(content)


def _framed(data: bytes) -> Iterator[tuple[int, int, pa.Message]]:
    """Yields the place and the message of each frame whose checksum matches."""
    place = data.find(MARKER)
    while 0 <= place <= len(data) - HEAD.size:
        _, length, checksum = HEAD.unpack_from(data, place)
        end = place + HEAD.size + length
        content = memoryview(data)[end - length : end]
        if len(content) == length and crc32(content) == checksum:
            yield place, end, pa.ipc.read_message(pa.py_buffer(content))
            place = data.find(MARKER, end)
        else:
            place = data.find(MARKER, place + 1)
