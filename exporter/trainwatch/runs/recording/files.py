"""The files of a recording: run.json, and per node and table the open journal and the Parquet parts.

A journal is an Arrow IPC stream that grows by one record batch per tick; after a minute it becomes a part.
Each batch reaches the kernel in one write, so appended batches stay when the process is killed. A batch that
a power loss or a full disk cut off is left out.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trainwatch.errors import UserError
from trainwatch.runs.recording.schema import FORMAT, check_format, metadata_of, with_metadata
from trainwatch.whole_file import replacing, write_whole

RUNS = Path("trainwatch-runs")  # one directory per run
RUN_FILE = "run.json"
_NAME = re.compile(r"(?P<table>[a-z]+)-(?P<number>\d{6,})\.(?:parquet|journal)")


@dataclass(frozen=True)
class RunFile:
    """The content of run.json, written at the run's start and completed at its end.

    Times are seconds since the epoch, None where not known (yet).
    """

    name: str
    start: float | None = None
    end: float | None = None
    command: str = ""
    exit_status: int | None = None
    interval: float = 0.5
    versions: dict[str, str] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Writes run.json whole: a reader sees the old one or the new one. Raises OSError."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=2)
        write_whole(directory / RUN_FILE, text + "\n")

    @classmethod
    def read(cls, directory: Path) -> RunFile | None:
        """Returns the directory's run.json, None if there is none. Raises UserError if it cannot be used."""
        path = directory / RUN_FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            check_format(values.pop("format", None), str(path))
            return cls(**values)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be read ({error}); move it away to read the rest") from error


def new_directory(name: str) -> Path:
    """Returns the absolute path for a run that begins now, without making it."""
    stem = re.sub(r"[^\w.+-]+", "_", name) + time.strftime("-%Y%m%dT%H%M%SZ", time.gmtime())
    # Two runs that start in the same second must not share a directory.
    candidates = [RUNS / stem, *(RUNS / f"{stem}-{number}" for number in range(2, 1000))]
    return next(path for path in candidates if not path.exists()).absolute()


def holds_recording(directory: Path) -> bool:
    """Returns whether something was recorded in the directory, finished or not."""
    return (directory / RUN_FILE).exists() or any(directory.glob("*/samples-*"))


class JournalWriter:
    """Appends record batches to a new file. Raises OSError as the disk does, leaving a readable file."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
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
    """Reads a journal, once or repeatedly while it grows; each batch is returned once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.schema: pa.Schema | None = None
        self.torn_bytes = 0  # after the last whole batch, at the last read
        self._offset = 0

    def read(self) -> list[pa.RecordBatch]:
        """Returns the whole batches since the last call. Raises OSError if the file cannot be opened."""
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
    """Returns False for pages that a power loss left as zeros: no row of ours has the time 0."""
    times = batch.column("time" if "time" in batch.schema.names else "start")
    return bool((times.to_numpy(zero_copy_only=False) > 0).all())


@dataclass(frozen=True)
class Piece:
    """One numbered piece of a table: a part, or the journal that is not a part yet."""

    number: int
    path: Path
    is_part: bool


def part_path(folder: Path, table: str, number: int) -> Path:
    return folder / f"{table}-{number:06d}.parquet"


def journal_path(folder: Path, table: str, number: int) -> Path:
    return folder / f"{table}-{number:06d}.journal"


def pieces(folder: Path, table: str, after: int = 0) -> list[Piece]:
    """Returns the pieces numbered above `after`, in order; a part takes precedence over its journal."""
    matches = [match for entry in os.scandir(folder) if (match := _NAME.fullmatch(entry.name))]
    last = max((int(match["number"]) for match in matches if match["table"] == table), default=0)
    # A journal that becomes a part during the listing may be missed, so each number is looked up by name.
    found = (piece_now(folder, table, number) for number in range(after + 1, last + 1))
    return [piece for piece in found if piece is not None]


def piece_now(folder: Path, table: str, number: int) -> Piece | None:
    """Returns the piece of this number in its present form, None if there is none."""
    journal, part = journal_path(folder, table, number), part_path(folder, table, number)
    # The part is last, since a journal is removed only after its part exists.
    exists = journal.exists()
    if part.exists():
        return Piece(number, part, is_part=True)
    return Piece(number, journal, is_part=False) if exists else None


def read_piece(piece: Piece) -> pa.Table | None:
    """Returns all whole rows of a piece; None for a journal without one. Raises as `read_part` does."""
    if piece.is_part:
        return read_part(piece.path)
    batches = JournalReader(piece.path).read()
    return pa.Table.from_batches(batches) if batches else None


def read_part(path: Path) -> pa.Table:
    """Reads a whole part. Raises UserError if it is not one, FileNotFoundError if there is none."""
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(use_threads=False)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(
            f"{path} is not a whole Parquet file ({reason}); move it away to read the rest of the recording"
        ) from error
    if not metadata_of(table.schema):
        raise UserError(f"{path} was not written by Trainwatch; move it away to read the rest")
    return table


def journal_to_part(journal: Path, part: Path, keep_last_by: tuple[str, ...] = ()) -> None:
    """Turns a closed journal into a part, whole or not at all, and removes the journal.

    Keeps only the last of the rows that agree in the columns `keep_last_by`. A torn tail is left out
    and its size noted in the part. A journal without a row leaves no part. Raises OSError as the disk does.
    """
    reader = JournalReader(journal)
    batches = reader.read()
    if batches:
        table = pa.Table.from_batches(batches).combine_chunks()
        if keep_last_by:
            keys = zip(*(table.column(name).to_pylist() for name in keep_last_by), strict=True)
            table = table.take(sorted({key: row for row, key in enumerate(keys)}.values()))
        if reader.torn_bytes:
            table = table.cast(with_metadata(table.schema, {"torn_bytes": reader.torn_bytes}))
        with replacing(part) as unfinished:
            pq.write_table(table, unfinished, compression="zstd", write_statistics=True)
    journal.unlink(missing_ok=True)
