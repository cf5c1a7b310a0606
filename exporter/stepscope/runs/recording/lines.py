"""The line samples of a node in a recording: one JSON file, replaced as a whole.

`threads` has all counts. `retired` has those of processes that have ended, and `removed` their files, so that
a restarted exporter does not count them twice.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stepscope.common.errors import describe
from stepscope.common.whole_file import write_whole
from stepscope.exporter.ledgers.line_files import (
    MOST_LINES,
    MOST_STACKS,
    OTHER_THREAD,
    TOOL,
    TOTALS,
    Line,
    LineCounts,
    LineFolder,
    Stack,
    Thread,
)
from stepscope.runs.malformed import MALFORMED, DamageError, content, finite
from stepscope.runs.model import LineTime, StackTime, ThreadTime
from stepscope.runs.recording.files import checksum_of
from stepscope.training.layout import MAX_RANK
from stepscope.training.line_layout import ROLES, STATES, TICK_SECONDS

log = logging.getLogger(__name__)

NAME = "lines.json"
FORMAT = 1
MOST_BYTES = 32 << 20
MOST_THREADS = 20_000

Counts = Mapping[Thread, LineCounts]


def write_lines(
    folder: Path,
    counts: Counts,
    retired: Counts,
    removed: Iterable[str],
    sources: Mapping[str, str] | None = None,
) -> None:
    """Replaces the file. `sources`: the text of places. Raises OSError."""
    values = {
        "format": FORMAT,
        "tick_seconds": TICK_SECONDS,
        "threads": _as_json(counts),
        "retired": _as_json(retired),
        "removed": sorted(removed),
        "sources": dict(sources or {}),
    }
    text = json.dumps({**values, "checksum": checksum_of(values)}, separators=(",", ":"))
    write_whole(folder / NAME, text + "\n")


def continued(ledgers: Path, folder: Path) -> LineFolder:
    """Returns the reader of line samples that continues from what a node's folder has."""
    lines = LineFolder(ledgers)
    try:
        values = _read(folder)
        retired, removed = _from_json(values.get("retired", [])), set(map(str, values.get("removed", [])))
    except (DamageError, *MALFORMED) as error:
        log.warning("%s is damaged, so lines of ended processes are lost: %s", folder / NAME, error)
    else:
        lines.retired, lines.removed = retired, removed
    return lines


def read_lines(folder: Path, node: str) -> tuple[ThreadTime, ...]:
    """Returns the samples of a node, its ranks in order; () if there are none. Raises DamageError."""
    values = _read(folder)
    try:
        tick = finite(values.get("tick_seconds", TICK_SECONDS))
        threads = _from_json(values.get("threads", []))
        if not 0 < tick < 60:
            raise ValueError(f"a tick of {tick} s")
        sources = {str(place): _printable(text) for place, text in dict(values.get("sources", {})).items()}
    except MALFORMED as error:
        raise DamageError(f"it makes no sense ({describe(error)})") from error
    return tuple(
        _thread_time(node, thread, counts, tick, sources) for thread, counts in sorted(threads.items())
    )


def _thread_time(
    node: str, thread: Thread, counts: LineCounts, tick: float, sources: Mapping[str, str]
) -> ThreadTime:
    totals = {name: getattr(counts, name) for name in TOTALS if name != "ticks"}
    lines = [
        LineTime(
            **line._asdict(),
            seconds={s: tick * n for s, n in zip(STATES, seen, strict=True)},
            text=sources.get(line.place, ""),
        )
        for line, seen in sorted(counts.lines.items(), key=lambda item: (-sum(item[1]), item[0]))
    ]
    of_main = tuple(line for line in lines if line.phase != OTHER_THREAD)
    beside = [line for line in lines if line.phase == OTHER_THREAD]
    others = tuple(line for line in beside if line.component != TOOL)
    tools = tuple(line for line in beside if line.component == TOOL)
    stacks = tuple(
        StackTime(phase, component, tuple(functions), tick * ticks)
        for (phase, component, *functions), ticks in sorted(
            counts.stacks.items(), key=lambda item: (-item[1], item[0])
        )
    )
    rank = None if thread.rank < 0 else thread.rank
    of_thread = node, rank, thread.role
    return ThreadTime(*of_thread, **totals, lines=of_main, others=others, tools=tools, stacks=stacks)


def _as_json(counts: Counts) -> list[dict[str, Any]]:
    return [
        {
            **thread._asdict(),
            **{name: getattr(of_thread, name) for name in TOTALS},
            "lines": [[*line, *seen] for line, seen in of_thread.lines.items()],
            "stacks": [[ticks, *stack] for stack, ticks in of_thread.stacks.items()],
        }
        for thread, of_thread in counts.items()
    ]


def _from_json(threads: list[dict[str, Any]]) -> dict[Thread, LineCounts]:
    """Raises MALFORMED."""
    found = {}
    if len(threads) > MOST_THREADS:
        raise ValueError(f"{len(threads)} threads")
    for values in threads:
        thread = Thread(int(values["rank"]), str(values["role"]))
        if not (-1 <= thread.rank <= MAX_RANK and thread.role in ROLES):
            raise ValueError(f"rank {thread.rank}, {thread.role}")
        of_thread = found[thread] = LineCounts(int(_positive(values["processes"])))
        for name in TOTALS[1:]:
            setattr(of_thread, name, _positive(values[name]))
        if len(values["lines"]) > MOST_LINES + 1:
            raise ValueError(f"{len(values['lines'])} lines")
        names = len(Line._fields)
        for row in values["lines"]:
            if not all(isinstance(part, str) and part.isprintable() for part in row[:names]):
                raise ValueError("a name cannot be printed")
            of_thread.lines[Line(*row[:names])] = tuple(map(_positive, row[names:]))
            if len(row) != names + len(STATES):
                raise ValueError(f"a line of {len(row)} values")
        of_thread.stacks = dict(map(_stack, values["stacks"][:MOST_STACKS]))
    return found


def _stack(row: list[Any]) -> tuple[Stack, float]:
    ticks, *stack = row
    if not all(isinstance(part, str) and part.isprintable() for part in stack) or len(stack) < 2:
        raise ValueError("a stack has no names that can be printed")
    return tuple(stack), _positive(ticks)


def _printable(text: object) -> str:
    if not isinstance(text, str) or not text.isprintable():
        raise ValueError("the text of a line cannot be printed")
    return text


def _positive(value: Any) -> float:
    number = finite(value)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def _read(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        values = json.loads(content(path, most=MOST_BYTES))
        checksum = values.pop("checksum", None)
        if checksum != checksum_of(values):
            raise DamageError("its checksum does not match")
        if values.get("format") != FORMAT:
            raise DamageError(f"it has format {values.get('format')!r}, this Stepscope reads {FORMAT}")
    except FileNotFoundError:
        return {}
    except (OSError, *MALFORMED) as error:
        raise DamageError(f"it cannot be read: {describe(error)}") from error
    return dict(values)
