"""Reads the files of framework events: Chrome traces, usually one event a line.

    [
    {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 15...}},
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "Step:ModeKeys.TRAIN"}},
    {"name": "Step:ModeKeys.TRAIN", "pid": 1, "ph": "X", "ts": 2664345, "dur": 87, "args": {"step_num": "0"}},
    ]

Times are microseconds, counted from the base time of the first row; Horovod's files may have none. What
Chrome calls a process is to Debugger the kind of the event.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trainwatch.errors import UserError

BASE_TIME = "start_time_since_epoch_in_micros"


class Event(NamedTuple):
    kind: str  # what Debugger calls its phase: "Step:ModeKeys.TRAIN", "DataLoaderIter", "cpu_functions"
    name: str
    start: float | None  # seconds since the epoch; None: the file has no base time
    duration: float  # seconds
    args: dict[str, Any]
    thread: str = ""  # its name, where the file tells it


@dataclass
class OpenPairs:
    """Events that have begun: the end of one may stand in a later file of the same process."""

    begun: dict[str, list[tuple[str, float, dict[str, Any]]]] = field(default_factory=dict)  # by kind


def read_events(path: Path, open_pairs: OpenPairs, truncated: Callable[[Path], None]) -> Iterator[Event]:
    """The events of a file. A last line that cannot be parsed is a half-written file: `truncated` is told.

    Raises UserError with the line where another one is corrupt, or where the file is no trace at all.
    """
    kinds: dict[Any, str] = {}
    threads: dict[tuple[Any, Any], str] = {}
    base: float | None = None
    for line, row in _rows(path, truncated):
        try:
            phase = row.get("ph")
            args = row.get("args") or {}
            if phase == "M":
                if base is None and BASE_TIME in args:
                    base = float(args[BASE_TIME])
                if row["name"] == "process_name" and "name" in args:
                    kinds[row["pid"]] = str(args["name"])
                elif row["name"] == "thread_name":
                    threads[row["pid"], row.get("tid")] = str(args["name"])
                continue
            if phase not in ("X", "B", "E"):
                continue
            pid = row.get("pid")
            kind = kinds.get(pid, "Unknown")
            time = float(row["ts"]) + (base or 0.0)
            if phase == "B":
                open_pairs.begun.setdefault(kind, []).append((str(row["name"]), time, args))
                continue
            if phase == "E":
                begun = open_pairs.begun.get(kind)
                if not begun:
                    continue
                name, start, begin_args = begun.pop()
                args, duration, time = {**begin_args, **args}, time - start, start
                if duration < 0:
                    raise ValueError(f"{name} ends before it begins")
            else:
                name, duration = str(row["name"]), float(row.get("dur", 0))
            since_epoch = None if base is None else time / 1e6
            yield Event(kind, name, since_epoch, duration / 1e6, args, threads.get((pid, row.get("tid")), ""))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{path}, line {line}: not a trace event ({_why(error)}); copy the file again, or remove it"
            ) from error


def _rows(path: Path, truncated: Callable[[Path], None]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line and event. Files that are not written one event a line are parsed as a whole."""
    if path.name.endswith(".gz"):
        yield from ((1, row) for row in _compressed(path, truncated))
        return
    wrong: int | None = None  # the line that could not be parsed: it may be the last
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            text = line.strip().rstrip(",")
            if wrong is not None and text not in ("", "]"):
                whole = _whole(path)
                if whole is None or number > 3:
                    raise UserError(
                        f"{path}, line {wrong}: not JSON; copy the file again, or remove the line"
                    )
                yield from ((1, row) for row in whole)
                return
            if wrong is not None or text in ("", "[", "]"):
                continue
            rows = _parsed(text)
            if rows is None:
                wrong = number
                continue
            for row in rows:
                yield number, row
    if wrong is not None:
        truncated(path)


def _parsed(text: str) -> list[dict[str, Any]] | None:
    """The events of a line, which may open or close the array as well; None where it cannot be parsed."""
    try:
        row = json.loads(text)
    except ValueError:
        try:
            row = json.loads("[" + text.removeprefix("[").removesuffix("]").rstrip().rstrip(",") + "]")
        except ValueError:
            return None
    return _events_of(row) or [row]


def _whole(path: Path) -> list[dict[str, Any]] | None:
    try:
        return _events_of(json.loads(path.read_text(encoding="utf-8")))
    except ValueError:
        return None


def _compressed(path: Path, truncated: Callable[[Path], None]) -> list[dict[str, Any]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = _events_of(json.load(file))
    except EOFError:
        truncated(path)
        return []
    except (OSError, ValueError, zlib.error) as error:
        raise UserError(f"{path}: not a trace ({error}); copy the file again, or remove it") from error
    if rows is None:
        raise UserError(f"{path}: holds no traceEvents; remove it, or copy the file again")
    return rows


def _events_of(document: Any) -> list[dict[str, Any]] | None:
    rows = document.get("traceEvents") if isinstance(document, dict) else document
    return rows if isinstance(rows, list) else None


def _why(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
