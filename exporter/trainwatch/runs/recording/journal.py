"""The open minute of a table: an Arrow IPC stream that grows by one record batch a tick.

Each batch reaches the kernel in one write, so the process may be killed at any moment and what it
appended before stays. What a power loss or a full disk cut off in the middle of a batch is left out.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa


class JournalWriter:
    """Appends record batches to a new file. Raises OSError as the disk does, leaving a readable file."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self.rows = 0
        self._size = 0
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._write(schema.serialize())
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, batch: pa.RecordBatch) -> None:
        """Writes the batch whole, or not at all."""
        self._write(batch.serialize())
        self.rows += batch.num_rows

    def close(self) -> None:
        os.close(self._file)

    def _write(self, data: pa.Buffer) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(memoryview(data))


class JournalReader:
    """Reads a journal, once or again and again while it grows; each batch comes once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.schema: pa.Schema | None = None
        self.torn_bytes = 0  # behind the last whole batch, at the last read
        self._offset = 0

    def read(self) -> list[pa.RecordBatch]:
        """The whole batches since the last call. Raises OSError where the file cannot be opened."""
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        stream = pa.BufferReader(data)
        batches: list[pa.RecordBatch] = []
        whole = 0
        try:
            if self.schema is None:
                self.schema = pa.ipc.read_schema(pa.ipc.read_message(stream))
                whole = stream.tell()
            while whole < len(data):
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(stream), self.schema)
                if not _was_written(batch):
                    break
                batches.append(batch)
                whole = stream.tell()
        except (pa.ArrowException, EOFError, OSError):
            pass  # the tail: still being written, or torn
        self._offset += whole
        self.torn_bytes = len(data) - whole
        return batches


def _was_written(batch: pa.RecordBatch) -> bool:
    """False for pages that a power loss left as zeros: no row of ours lies at the epoch."""
    times = batch.column("time" if "time" in batch.schema.names else "start")
    return bool((times.to_numpy(zero_copy_only=False) > 0).all())
