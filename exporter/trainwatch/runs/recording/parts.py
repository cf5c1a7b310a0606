"""The files of one table of one node: parts (Parquet) and the journals that become parts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trainwatch.errors import UserError
from trainwatch.runs.recording.journal import JournalReader
from trainwatch.runs.recording.run_file import NAME as RUN_FILE
from trainwatch.runs.recording.schema import metadata_of, with_metadata

_NAME = re.compile(r"(?P<table>[a-z]+)-(?P<number>\d{6,})\.(?P<kind>parquet|journal)")


@dataclass(frozen=True)
class Piece:
    """One numbered piece of a table: a part, or the journal that is not a part yet."""

    number: int
    path: Path
    is_part: bool


def holds_recording(directory: Path) -> bool:
    """Whether something was recorded in the directory, in whatever state it is."""
    return (directory / RUN_FILE).exists() or any(directory.glob("*/samples-*"))


def part_path(folder: Path, table: str, number: int) -> Path:
    return folder / f"{table}-{number:06d}.parquet"


def journal_path(folder: Path, table: str, number: int) -> Path:
    return folder / f"{table}-{number:06d}.journal"


def pieces(folder: Path, table: str, after: int = 0) -> list[Piece]:
    """The pieces numbered above `after`, in order; a journal beside its part is left over and not listed."""
    found: dict[int, Piece] = {}
    for entry in os.scandir(folder):
        match = _NAME.fullmatch(entry.name)
        if match is None or match["table"] != table or int(match["number"]) <= after:
            continue
        number, is_part = int(match["number"]), match["kind"] == "parquet"
        if is_part or number not in found:
            found[number] = Piece(number, folder / entry.name, is_part)
    # A journal that became a part while the folder was listed may have been missed in both shapes.
    for number in range(after + 1, max(found, default=0)):
        if number not in found and (piece := piece_now(folder, table, number)) is not None:
            found[number] = piece
    return [found[number] for number in sorted(found)]


def piece_now(folder: Path, table: str, number: int) -> Piece | None:
    """The piece of this number in the shape that it has now, None where there is none."""
    journal, part = journal_path(folder, table, number), part_path(folder, table, number)
    # The part last: a journal goes away only once its part is there.
    exists = journal.exists()
    if part.exists():
        return Piece(number, part, is_part=True)
    return Piece(number, journal, is_part=False) if exists else None


def read_part(path: Path) -> pa.Table:
    """Reads a part whole. Raises UserError where it is not one, FileNotFoundError where there is none."""
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(use_threads=False)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise _not_a_part(path, error) from error
    if not metadata_of(table.schema):
        raise UserError(f"{path} was not written by Trainwatch; move it away to read the rest")
    return table


def read_piece(piece: Piece) -> pa.Table | None:
    """All whole rows of a piece; None for a journal without one. Raises as `read_part`."""
    if piece.is_part:
        return read_part(piece.path)
    batches = JournalReader(piece.path).read()
    return pa.Table.from_batches(batches) if batches else None


def journal_to_part(journal: Path, part: Path, keep_last_by: tuple[str, ...] = ()) -> None:
    """Turns a closed journal into a part, whole or not at all, and removes the journal.

    Of the rows that agree in the columns `keep_last_by` only the last is kept. A torn tail is left out
    and its size noted in the part. A journal without a row leaves no part. Raises OSError as the disk does.
    """
    reader = JournalReader(journal)
    batches = reader.read()
    if reader.schema is not None and batches:
        table = pa.Table.from_batches(batches).combine_chunks()
        if keep_last_by:
            table = _last_rows(table, keep_last_by)
        if reader.torn_bytes:
            table = table.cast(with_metadata(table.schema, {"torn_bytes": reader.torn_bytes}))
        _write_whole(table, part)
    journal.unlink(missing_ok=True)


def torn_bytes(schema: pa.Schema) -> int:
    """How much of the part's journal was torn, and so is not in the part."""
    torn: int = metadata_of(schema).get("torn_bytes", 0)
    return torn


def clear_unfinished(folder: Path) -> None:
    """Removes what a writer that was killed left under temporary names."""
    for path in folder.glob(".*.unfinished"):
        path.unlink(missing_ok=True)


def _write_whole(table: pa.Table, part: Path) -> None:
    unfinished = part.with_name(f".{part.name}.unfinished")
    try:
        pq.write_table(table, unfinished, compression="zstd", write_statistics=True)
        # A rename may reach the disk before the rows do, so a power loss could leave an empty part.
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, part)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _last_rows(table: pa.Table, columns: tuple[str, ...]) -> pa.Table:
    keys = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    last = {key: row for row, key in enumerate(keys)}
    return table.take(sorted(last.values()))


def _not_a_part(path: Path, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UserError(
        f"{path} is not a whole Parquet file ({reason}); move it away to read the rest of the recording"
    )
