"""The files of a recording: run.json, stacks.json, and per node and table its open journal and Parquet parts.

A journal (journal.py) becomes a part after a minute. Every file has a CRC-32, which is verified before the
file is decoded. That of a part is in its name: the file is plain Parquet, and appears with its checksum.
"""

import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from math import inf
from pathlib import Path
from types import NoneType
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from stepscope.common.errors import describe
from stepscope.common.shared_files import entries, is_held, open_file, read_file, remove
from stepscope.common.whole_file import replacing, write_whole
from stepscope.runs.malformed import MALFORMED, DamageError, content, moment, whole
from stepscope.runs.model import RankStack, RunRecord
from stepscope.runs.recording.journal import JournalReader
from stepscope.runs.recording.schema import (
    FORMAT,
    TABLES,
    check_format,
    metadata_of,
    with_metadata,
)

RUNS = Path("stepscope-runs")  # one directory per run
IGNORED = ".gitignore"  # in it
RUN_FILE = "run.json"
LOCK = ".lock"
RECENT_SECONDS = 60.0  # a journal grows twice per second
OF_FILE_SYSTEM = "lost+found"  # at the root of a volume; only root can read it
MOST_PIECES = 10_000_000  # files in a node's folder: a run of a month has 170,000
RUN_FILE_BYTES = 16 << 20  # at most: it has the command line
STACKS_FILE, STACKS_BYTES = (
    "stacks.json",
    16 << 20,
)  # the Python stacks that were taken of ranks during a hang
_NAME = re.compile(r"(?P<table>[a-z]+)-(?P<number>\d{6,})\.(?:(?P<checksum>[0-9a-f]{8})\.parquet|journal)")


class RunFile(RunRecord):
    """The content of run.json, written at the run's start and completed at its end."""

    def write(self, directory: Path) -> None:
        """Writes run.json whole: a reader sees the old one or the new one. Raises OSError."""
        values = {"format": FORMAT, **asdict(self)}
        text = json.dumps({**values, "checksum": checksum_of(values)}, indent=2)
        write_whole(directory / RUN_FILE, text + "\n")

    @classmethod
    def read(cls, directory: Path) -> "RunFile | None":
        """Returns the directory's run.json; None if there is none.

        Raises DamageError, and UserError if it has another format.
        """
        path = directory / RUN_FILE
        try:
            values = json.loads(content(path, most=RUN_FILE_BYTES))
            checksum = values.pop("checksum", None)
            if checksum is not None and checksum != checksum_of(values):
                raise DamageError("its checksum does not match; if you edited it, remove `checksum` from it")
            check_format(values.pop("format", None), str(path))
            return cls(**values)._checked()
        except FileNotFoundError:
            return None
        except MALFORMED as error:
            raise DamageError(f"it cannot be read: {describe(error)}") from error

    def _checked(self) -> "RunFile":
        """Returns itself. Raises ValueError if a field has another type or is a number that cannot be."""
        for item in fields(self):
            if not isinstance(value := getattr(self, item.name), _KINDS[item.type]):
                raise ValueError(f"{item.name} is {value!r}")
        for known in filter(None, (self.start, self.end)):
            moment(known)
        if not 0 < self.interval < inf:
            raise ValueError(f"interval is {self.interval}")
        return self


_KINDS: dict[Any, type | tuple[type, ...]] = {  # of values, by the type of their field
    str: str,
    float: (float, int),
    float | None: (float, int, NoneType),
    int | None: (int, NoneType),
    dict[str, str]: dict,
}


def new_directory(name: str) -> Path:
    """Returns the absolute path for a run that begins now, without making it. No name leads out of RUNS."""
    words = re.sub(r"[^\w.+-]+", "_", name).lstrip(".-") or "run"
    stem = words.encode()[:150].decode(errors="ignore") + time.strftime("-%Y%m%dT%H%M%SZ", time.gmtime())
    # Two runs that start in the same second must not share a directory.
    candidates = [RUNS / stem, *(RUNS / f"{stem}-{number}" for number in range(2, 1000))]
    return next(path for path in candidates if not os.path.lexists(path)).absolute()


def open_lock(folder: Path) -> int:
    """Returns a descriptor of the file that a process locks while it records there. Makes it if missing.

    Only its user can open it: everybody who can open a file can lock it. Raises OSError.
    """
    return open_file(folder / LOCK, flags=os.O_RDWR | os.O_CREAT)


def is_recorded_now(folder: Path) -> bool:
    """Returns whether a process has locked the folder.

    Whether one does that belongs to another user shows in what it writes.
    """
    try:
        lock = open_file(folder / LOCK)
    except PermissionError:
        changes = [0.0]
        for entry in entries(folder, MOST_PIECES):
            with suppress(FileNotFoundError):  # a journal became a part meanwhile
                changes.append(entry.stat(follow_symlinks=False).st_mtime)
        return time.time() - max(changes) < RECENT_SECONDS
    except OSError:
        return False
    try:
        return is_held(lock)
    finally:
        os.close(lock)


def holds_recording(directory: Path) -> bool:
    """Returns whether something was recorded in the directory, finished or not."""
    return (directory / RUN_FILE).exists() or any(map(holds_pieces, folders(directory)))


def folders(directory: Path) -> list[Path]:
    """Returns the directories in a directory, by name; none if it does not exist. Raises OSError."""
    try:
        found = (entry.name for entry in entries(directory) if entry.is_dir())
        return sorted(directory / name for name in found if name != OF_FILE_SYSTEM)
    except FileNotFoundError:
        return []


def holds_pieces(folder: Path) -> bool:
    """Returns whether something of a node was recorded in the folder."""
    names = (_NAME.fullmatch(entry.name) for entry in entries(folder, MOST_PIECES))
    return any(match["table"] in TABLES for match in names if match)


@dataclass(frozen=True)
class Piece:
    """One numbered piece of a table: a part, or the journal that is not a part yet."""

    table: str
    number: int
    path: Path
    is_part: bool
    checksum: str | None = None  # of a part; None: it is a journal


def journal_path(folder: Path, table: str, number: int) -> Path:
    return folder / f"{table}-{number:06d}.journal"


def pieces(folder: Path, table: str, after: int = 0) -> list[Piece]:
    """Returns the pieces numbered above `after`, in order; a part takes precedence over its journal."""
    found = _listed(folder, table)
    if found and len(found) < max(found):  # a journal that becomes a part during a listing may be missed
        found |= _listed(folder, table)
    return [piece for number, piece in sorted(found.items()) if number > after]


def piece_now(folder: Path, table: str, number: int) -> Piece | None:
    """Returns the piece of this number in its present form, None if there is none."""
    listings = (_listed(folder, table) for _ in range(2))  # the rename may be missed by the first one
    return next((found[number] for found in listings if number in found), None)


def _listed(folder: Path, table: str) -> dict[int, Piece]:
    found: dict[int, Piece] = {}
    for entry in entries(folder, MOST_PIECES):
        match = _NAME.fullmatch(entry.name)
        if match and match["table"] == table:
            number, is_part = int(match["number"]), entry.name.endswith(".parquet")
            if is_part or number not in found:
                found[number] = Piece(table, number, folder / entry.name, is_part, match["checksum"])
    return found


def read_piece(piece: Piece) -> pa.Table | None:
    """Returns all whole rows of a piece; None for a journal without one. Raises as `read_part` does."""
    if piece.is_part:
        return read_part(piece)
    batches = JournalReader(piece.path).read()
    return pa.Table.from_batches(batches) if batches else None


def read_part(piece: Piece) -> pa.Table:
    """Reads a whole part.

    Raises DamageError, FileNotFoundError if there is none, and UserError if it has another format.
    """
    data = content(piece.path)
    if piece.checksum != f"{crc32(data):08x}":
        raise DamageError("its checksum does not match")
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            rows = file.read(use_threads=False)
        known = metadata_of(rows.schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DamageError(f"it is not a whole Parquet file ({reason})") from error
    if not known:
        raise DamageError("Stepscope did not write it")
    return rows


def write_part(folder: Path, table: str, number: int, rows: pa.Table) -> Path:
    """Writes a part, whole or not at all, and returns its path. Raises OSError as the disk does."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", write_statistics=True)
    data = sink.getvalue()
    part = folder / f"{table}-{number:06d}.{crc32(data):08x}.parquet"
    with replacing(part) as file:
        file.write(data)
    return part


def journal_to_part(folder: Path, table: str, number: int, keep_last_by: tuple[str, ...] = ()) -> None:
    """Turns a closed journal into a part, whole or not at all, and removes the journal.

    Keeps only the last of the rows that agree in the columns `keep_last_by`. Bytes that cannot be read are
    left out, and their number is noted in the part. A journal without a row leaves no part. Raises OSError as
    the disk does.
    """
    journal = journal_path(folder, table, number)
    reader = JournalReader(journal)
    batches = reader.read()
    if batches:
        rows = pa.Table.from_batches(batches).combine_chunks()
        if keep_last_by:
            keys = zip(*(rows.column(name).to_pylist() for name in keep_last_by), strict=True)
            rows = rows.take(sorted({key: row for row, key in enumerate(keys)}.values()))
        if reader.unread_bytes:
            rows = rows.cast(with_metadata(rows.schema, {"torn_bytes": reader.unread_bytes}))
        write_part(folder, table, number, rows)
    remove(journal)


def checksum_of(values: dict[str, Any]) -> str:
    """Returns the CRC-32 of the values without the checksum itself."""
    return f"{crc32(json.dumps(values, sort_keys=True).encode()):08x}"


def write_stacks(directory: Path, stacks: Sequence[RankStack]) -> None:
    """Replaces the stacks of the recording. Raises OSError."""
    write_whole(directory / STACKS_FILE, json.dumps([asdict(stack) for stack in stacks], indent=1))


def read_stacks(directory: Path) -> tuple[RankStack, ...]:
    """Returns the stacks of the recording; none if there are none, or if the file is damaged."""
    try:
        found = json.loads(read_file(directory / STACKS_FILE, STACKS_BYTES))
        return tuple(
            RankStack(str(each["node"]), whole(each["rank"]), moment(each["time"]), str(each["text"]))
            for each in found
        )
    except (OSError, *MALFORMED):
        return ()
