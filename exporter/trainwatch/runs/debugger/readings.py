"""Parses Debugger's system metrics: files of JSON lines, one reading a line, about 110 bytes each.

    {"Type":"cpu","Name":"cpu5","Dimension":"CPUUtilization","Value":1.36,"NodeId":"algo-1","Timestamp":1.5e9}

All lines of a block usually have the same fields in the same order. Then a block becomes a table of
comma-separated values when each colon is made a comma, and a CSV reader parses it at several times the
speed of a JSON parser; the columns of field names must then hold one name each, which proves the order. A
block in which anything is different is read line by line, and what is wrong there is said with its line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

from trainwatch.errors import UserError

BLOCK_BYTES = 8 << 20
Metric = tuple[str, str]  # dimension and name, as ("CPUUtilization", "cpu5")

_NEEDED = ("Name", "Dimension", "Value", "NodeId", "Timestamp")
_NUMBERS = ("Value", "Timestamp")
_COLONS_TO_COMMAS = bytes.maketrans(b":", b",")
_WORDS = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class Readings:
    """n readings of one node in the order in which they were written."""

    metrics: list[Metric]
    metric: NDArray[np.int64]  # (n,) index into metrics
    values: NDArray[np.float64]  # (n,) as Debugger has them: percent, or bytes per second
    times: NDArray[np.int64]  # (n,) microseconds since the epoch


class TruncatedError(Exception):
    """The last line of a file was not written to its end."""


def read_readings(
    path: Path,
    node: str,
    truncated: Callable[[Path], None],
    progress: Callable[[int], None] = lambda _: None,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[Readings]:
    """The readings of one file, a block at a time. `progress` is told the bytes of each block.

    A last line that cannot be parsed is a half-written file: `truncated` is told. Raises UserError
    where another line is corrupt, or where the readings are of another node than the file's name says.
    """
    for block, first_line, is_last_line in _blocks(path, block_bytes):
        progress(len(block))
        try:
            yield _parse(block, _Place(path, node, first_line), is_last_line)
        except TruncatedError:
            truncated(path)


@dataclass(frozen=True)
class _Place:
    path: Path
    node: str
    first_line: int


def _blocks(path: Path, block_bytes: int) -> Iterator[tuple[bytes, int, bool]]:
    """Whole lines, the number of the first of them, and whether they are the file's last line alone."""
    rest, line = b"", 1
    with open(path, "rb") as file:
        while data := file.read(block_bytes):
            rest += data
            cut = rest.rstrip().rfind(b"\n") + 1
            if cut:
                block, rest = rest[:cut], rest[cut:]
                yield block, line, False
                line += _lines(block)
    if rest.strip():
        yield rest, line, True


def _parse(block: bytes, place: _Place, is_last_line: bool) -> Readings:
    if not is_last_line:
        table = _table(block)
        if table is not None:
            return _from_table(table, place)
    return _from_lines(block, place, is_last_line)


def _table(block: bytes) -> pa.Table | None:
    """The block's columns; None where its lines are not all of the same form."""
    try:
        fields = list(json.loads(block[: block.index(b"\n")]))
    except ValueError:
        return None
    if not set(_NEEDED) <= set(fields) or b"\\" in block:
        return None
    keys = {f"key of {field}": field for field in fields}
    columns = [column for key, field in keys.items() for column in (key, field)]
    types = {column: pa.float64() if column in _NUMBERS else _WORDS for column in columns}
    text = block.translate(_COLONS_TO_COMMAS, b"{} ")
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(use_threads=False, block_size=len(text), column_names=columns),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=[*keys, *_NEEDED], null_values=[]
            ),
        )
    except pa.ArrowInvalid:
        return None
    in_order = all(_words(table, key)[1] == [field] for key, field in keys.items())
    return table if in_order and len(table) == _lines(block) else None


def _lines(block: bytes) -> int:
    """Ends of lines; numpy counts bytes several times faster than bytes.count."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))


def _words(table: pa.Table, column: str) -> tuple[NDArray[np.int64], list[str]]:
    """A column of words: index and word."""
    array = table.column(column).combine_chunks()
    return array.indices.to_numpy().astype(np.int64), array.dictionary.to_pylist()


def _from_table(table: pa.Table, place: _Place) -> Readings:
    dimension, dimensions = _words(table, "Dimension")
    name, names = _words(table, "Name")
    node, nodes = _words(table, "NodeId")
    for other in nodes:
        if other != place.node:
            raise _wrong_node(place, place.first_line + int(np.argmax(node == nodes.index(other))), other)
    values, times = (table.column(column).to_numpy() for column in _NUMBERS)
    if not (np.isfinite(values).all() and np.isfinite(times).all()):
        line = int(np.argmin(np.isfinite(values) & np.isfinite(times)))
        raise _corrupt(place, place.first_line + line, "a number is not finite")
    pairs = dimension * len(names) + name
    used = np.flatnonzero(np.bincount(pairs, minlength=len(dimensions) * len(names)))
    place_of = np.zeros(len(dimensions) * len(names), np.int64)
    place_of[used] = np.arange(len(used))
    metrics = [(dimensions[pair // len(names)], names[pair % len(names)]) for pair in used.tolist()]
    return Readings(metrics, place_of[pairs], values, _microseconds(times))


def _from_lines(block: bytes, place: _Place, is_last_line: bool) -> Readings:
    """The slow way: line by line, so that what is wrong can be named."""
    index: dict[Metric, int] = {}
    metric, values, times = [], [], []
    for number, line in enumerate(block.split(b"\n"), place.first_line):
        if not line.strip():
            continue
        try:
            reading = json.loads(line)
            key, value, time = _checked(reading)
        except (ValueError, TypeError, KeyError) as error:
            if is_last_line:
                raise TruncatedError from error
            raise _corrupt(place, number, _why(error)) from error
        if reading["NodeId"] != place.node:
            raise _wrong_node(place, number, reading["NodeId"])
        metric.append(index.setdefault(key, len(index)))
        values.append(value)
        times.append(time)
    return Readings(
        list(index),
        np.array(metric, np.int64),
        np.array(values, float),
        _microseconds(np.array(times, float)),
    )


def _checked(reading: Any) -> tuple[Metric, float, float]:
    """Metric, value and time of a line. Raises ValueError, TypeError or KeyError where one is wrong."""
    if not isinstance(reading, dict):
        raise ValueError("not a JSON object")
    value, time = float(reading["Value"]), float(reading["Timestamp"])
    if not (isfinite(value) and isfinite(time)):
        raise ValueError("a number is not finite")
    if not isinstance(reading["NodeId"], str):
        raise ValueError("NodeId is not a name")
    return (str(reading["Dimension"] or ""), str(reading.get("Name") or "")), value, time


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "not JSON"
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return str(error)


def _corrupt(place: _Place, line: int, why: str) -> UserError:
    return UserError(
        f"{place.path}, line {line}: {why}; copy the file again, or remove the line to go without it"
    )


def _wrong_node(place: _Place, line: int, other: str) -> UserError:
    return UserError(
        f"{place.path}, line {line}: a reading of node {other} in a file named for {place.node}; "
        "give each node its own files"
    )


def _microseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * 1e6).astype(np.int64)
