"""Reads the SQLite export of Nsight Systems (`nsys export --type sqlite`) as rows of the PyTorch profiler.

The tables are those of the SQLite Export Schema Reference (docs.nvidia.com/nsight-systems, nsys-exporter).
nsys creates a table only if it has rows, and its columns differ by version. Times are nanoseconds since the
start of the session. `globalTid` and `globalPid` hold the process in bits 24 to 47, the thread in bits 0 to
23. Correlation numbers are those of one process.
"""

import re
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.common.errors import UserError
from stepscope.runs.traces.json_stream import beginning
from stepscope.runs.traces.rows import HOST, Mark, step_rows

MAGIC = b"SQLite format 3\0"
REMEDY = "export it again: nsys export --type sqlite FILE.nsys-rep"
_PREFIX = "CUPTI_ACTIVITY_KIND_"
KERNELS, GRAPHS, COPIES, SETTING = (
    f"{_PREFIX}{kind}" for kind in ("KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMSET")
)
CALLS = f"{_PREFIX}RUNTIME"  # of the CUDA runtime and of the driver
_WORK = {KERNELS: "kernel", GRAPHS: "kernel", COPIES: "gpu_memcpy", SETTING: "gpu_memset"}
_THREADS = 1 << 24  # of a process, in a globalTid
_VERSION = re.compile(r"_v\d+$")  # of a CUDA call: cudaLaunchKernel_v7000
_STEP = re.compile(
    r"(?:train\w*[ _-])?(?:global[ _-])?(?P<kind>step|iteration|iter|batch)"
    r"(?:[ _#:=-]*(?P<number>\d{1,18}))?",
    re.IGNORECASE,
)
_KINDS = ("step", "iteration", "iter", "batch")  # the first that the ranges have is the step


class Process(NamedTuple):
    """The work of one process, as a trace of the PyTorch profiler would contain it."""

    about: dict[str, Any]
    notes: tuple[str, ...]  # clauses: what the export does not contain
    rows: Generator[Any, None, None]  # to be closed before the next process


def is_export(path: Path) -> bool:
    """Returns whether a file is a database of SQLite."""
    return beginning(path, len(MAGIC)) == MAGIC


def processes(path: Path) -> Iterator[Process]:
    """Yields the processes that used a GPU; each must be read before the next.

    Raises UserError if the file is damaged or is no such export.
    """
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        ) as database:
            database.text_factory = lambda text: text.decode(errors="replace")
            database.execute("PRAGMA trusted_schema = OFF")
            yield from _Export(path, database).processes()
    except sqlite3.Error as error:
        raise UserError(f"{path}: cannot be read ({error}); {REMEDY}") from error


class _Export:
    """One database. Tables and columns that it lacks read as NULL."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._database = database
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self._columns = {
            name: {row[1] for row in database.execute(f'PRAGMA table_info("{name}")')}
            for (name,) in found
            if re.fullmatch(r"\w+", name)
        }
        if not self._columns.keys() & {*_WORK, CALLS}:
            raise UserError(
                f"{path}: holds no CUDA activity of Nsight Systems; trace it: nsys profile -t cuda,nvtx"
            )

    def processes(self) -> Iterator[Process]:
        groups: set[int | None] = set()
        for table in _WORK:
            groups |= {group for (group,) in self._rows(table, ("globalPid",), distinct=True)}
        for group in sorted(groups, key=lambda group: group or 0) or [None]:
            number = 0 if group is None else group // _THREADS % _THREADS
            yield Process(self._about(number), self._notes(group), self._process(group, number))

    def _rows(
        self, table: str, columns: tuple[str, ...], group: int | None = None, distinct: bool = False
    ) -> Iterator[Any]:
        """Yields columns of a table, of one process if `group` is not None. `@name` is the text of an id."""
        known = self._columns.get(table)
        if known is None:
            return
        selected, joins = [], []
        for index, column in enumerate(columns):
            name = column.removeprefix("@")
            if name not in known:
                selected.append("NULL")
            elif column == name or "StringIds" not in self._columns:
                selected.append(f't."{name}"')
            else:
                selected.append(f"s{index}.value")
                joins.append(f'LEFT JOIN StringIds s{index} ON s{index}.id = t."{name}"')
        owner = next((name for name in ("globalPid", "globalTid") if name in known), None)
        where = ""
        values: list[int] = []
        if group is not None and owner is not None:
            where, values = f"WHERE t.{owner} / {_THREADS} = ?", [group // _THREADS]
        yield from self._database.execute(
            f"SELECT {'DISTINCT' if distinct else ''} {', '.join(selected)} "
            f"FROM {table} t {' '.join(joins)} {where}",
            values,
        )

    def _about(self, process: int) -> dict[str, Any]:
        names = dict(self._rows("TARGET_INFO_GPU", ("id", "name")))
        places = {
            cuda: gpu
            for gpu, cuda, owner in self._rows("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid"))
            if owner in (None, process)
        }
        places = places or {gpu: gpu for gpu in names}
        about: dict[str, Any] = {
            "deviceProperties": [{"id": cuda, "name": names.get(gpu) or ""} for cuda, gpu in places.items()]
        }
        for name, value in self._rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")):
            if name == "Hostname":
                about["host_name"] = value
        for (start,) in self._rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
            about["baseTimeNanoseconds"] = start
        return about

    def _notes(self, group: int | None) -> tuple[str, ...]:
        if not any(True for _ in self._rows(GRAPHS, ("start",), group)):
            return ()
        return (
            "shows CUDA graphs as a whole, so all their work counts as compute: "
            "record with --cuda-graph-trace=node to see their communication and copies",
        )

    def _process(self, group: int | None, number: int) -> Generator[Any, None, None]:
        yield from self._on_device(group)
        calls = ("start", "end", "globalTid", "correlationId", "@nameId")
        for start, end, thread, correlation, name in self._rows(CALLS, calls, group):
            row = _row("cuda_runtime", _VERSION.sub("", str(name)), start, end)
            yield {**row, "pid": number, "tid": _thread(thread), "args": {"correlation": correlation}}
        for start, end, thread, name in self._rows(
            "PROFILER_OVERHEAD", ("start", "end", "globalTid", "@nameId"), group
        ):
            yield {**_row("overhead", str(name), start, end), "pid": number, "tid": _thread(thread)}
        yield from self._ranges(group, number)

    def _on_device(self, group: int | None) -> Iterator[Any]:
        """Yields kernels, CUDA graphs, copies and settings of memory."""
        columns = ("start", "end", "deviceId", "streamId", "correlationId", "@demangledName", "@shortName",
                   "graphId", "copyKind", "srcKind", "dstKind")  # fmt: skip
        ways, kinds = (
            dict(self._rows(table, ("id", "label")))
            for table in ("ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND")
        )
        for table, category in _WORK.items():
            for start, end, device, stream, correlation, name, short, graph, way, source, to in self._rows(
                table, columns, group
            ):
                if table == GRAPHS:
                    name = f"CUDA graph {graph}"
                elif table == COPIES:
                    name = f"Memcpy {ways.get(way, '')} ({kinds.get(source, '')} -> {kinds.get(to, '')})"
                elif table == SETTING:
                    name = "Memset"
                arguments = {"device": device}
                if correlation is not None:
                    arguments["correlation"] = correlation
                row = _row(category, str(name or short), start, end)
                yield {**row, "pid": device, "tid": stream, "args": arguments}

    def _ranges(self, group: int | None, number: int) -> Iterator[Any]:
        """Yields the ranges of NVTX, and the steps that some of them mark."""
        marks: dict[tuple[str, bool, int], list[Mark]] = {}  # by kind, whether they are numbered, and thread
        columns = ("start", "end", "globalTid", "text", "@textId")
        for start, end, thread, text, registered in self._rows("NVTX_EVENTS", columns, group):
            if start is None or end is None or end <= start:
                continue  # no range
            name = str(text or registered or "")
            thread = _thread(thread)
            yield {**_row("user_annotation", name, start, end), "pid": number, "tid": thread}
            step = _STEP.fullmatch(name)
            if step is not None:
                mark = Mark(start / 1000, end / 1000, None if step["number"] is None else int(step["number"]))
                marks.setdefault((step["kind"].lower(), mark.number is None, thread), []).append(mark)
        if marks:
            chosen = min(marks, key=lambda key: (key[1], _KINDS.index(key[0]), -len(marks[key]), key[2]))
            yield from step_rows(marks[chosen], HOST)


def _thread(global_thread: int | None) -> int:
    return 0 if global_thread is None else global_thread % _THREADS


def _row(category: str, name: str, start: int | None, end: int | None) -> dict[str, Any]:
    """Returns a row; without a duration, so that it is left out and counted, if a time is NULL."""
    row = {"ph": "X", "cat": category, "name": name}
    return row if start is None or end is None else {**row, "ts": start / 1000, "dur": (end - start) / 1000}
