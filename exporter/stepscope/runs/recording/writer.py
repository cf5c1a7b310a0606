"""Writes a recording during a run: a journal that grows every tick, a Parquet part every minute.

The sampler only queues its samples, and a thread of the writer writes them. So a slow, full or hung disk
never delays a sample. A second thread makes the parts (compression, fsync), so that the
journal keeps growing meanwhile.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import zip_longest
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from stepscope import __version__
from stepscope.common.errors import UserError, describe
from stepscope.common.shared_files import entries, remove, try_hold
from stepscope.exporter.sampling.sample import EVIDENCE, GpuSample, GpuUse, RunSample, Sample
from stepscope.runs.malformed import DamageError
from stepscope.runs.model import COMPONENTS, PHASES, NodeFacts
from stepscope.runs.recording.files import (
    MOST_PIECES,
    RUN_FILE,
    RunFile,
    journal_path,
    journal_to_part,
    open_lock,
    pieces,
    read_piece,
)
from stepscope.runs.recording.journal import JournalWriter
from stepscope.runs.recording.lines import write_lines
from stepscope.runs.recording.schema import (
    CPU_COLUMNS,
    EVIDENCE_COLUMN,
    GAUGES_SCHEMA,
    GPU_COLUMNS,
    HEADER_COLUMNS,
    KEEP_LAST_BY,
    LOADER_COLUMNS,
    MOMENT_COLUMNS,
    NEIGHBOURS_COLUMN,
    NODE_COLUMNS,
    PAUSE_COLUMNS,
    PHASES_AND_MORE,
    PRESSURE_COLUMNS,
    RANKS_SCHEMA,
    RUN_COLUMNS,
    STEPS_SCHEMA,
    TABLES,
    WORKER_COLUMNS,
    Layout,
    facts_after,
    facts_of,
    metadata_of,
    samples_schema,
    with_metadata,
)
from stepscope.training.layout import SETTINGS

if TYPE_CHECKING:
    from stepscope.exporter.ledgers.line_files import LineCounts, Thread
    from stepscope.exporter.ledgers.presence import Presence
    from stepscope.exporter.ledgers.reader import LedgerHeader, LedgerTotals, StepRecord

log = logging.getLogger(__name__)

Paused = Mapping[tuple[str, int], Mapping[str, float]]
NO_PAUSES: Paused = {}

PART_SECONDS = 60.0
PART_STEPS = 100_000  # a part is cut before its minute is over at this many steps
RANKS_SECONDS = 1.0  # the totals of the ledgers, and their gauges, are journalled at most this often
RETRY_SECONDS = 30.0  # after a full disk
MOST_REFUSED = 64  # ledgers whose reasons are noted
QUEUE_LENGTH = 1000  # some minutes of a disk that hangs; samples beyond are dropped


def folder_of(directory: Path, node: str) -> Path:
    """Returns the folder of a node in a recording."""
    return directory / node.replace("/", "_")


class RecordingWriter:
    """Records one node's samples and its ranks' steps in `directory`/`node`.

    Takes over from a writer that was killed: its journals become parts, and steps that it had recorded
    are not recorded again. Raises UserError if the directory is not writable, or has another writer.
    """

    def __init__(self, directory: Path, node: str, interval: float, run: str) -> None:
        self._folder = folder_of(directory, node)
        try:
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._lock = _lock(self._folder)
            for entry in entries(self._folder, MOST_PIECES):
                if entry.name[0] == "." and entry.name.endswith(".unfinished"):  # of a writer that was killed
                    remove(self._folder / entry.name)
            _begin_run(directory, run, interval)
        except OSError as error:
            raise UserError(
                f"cannot record in {self._folder}: {error.strerror}; choose another directory"
            ) from error
        self._part_failed = False
        self._numbers: dict[str, int] = {}
        self._made: dict[str, int] = {}  # by table: every journal up to this number has become a part
        for table in TABLES:
            self._take_over(table)
        self._facts, self._recorded, self._refused = _already_recorded(self._folder, node)
        self._layout = Layout(self._facts.cpus, tuple(gpu.gpu for gpu in self._facts.gpus))
        self._run = run
        self._gpus: dict[str, GpuUse] | None = None  # of the run, once it had ledgers
        self._common = {"node": node, "run": run, "interval": interval}

        self._journals: dict[str, JournalWriter] = {}
        self._minute: int | None = None
        self._ledgers: set[str] = set()  # keys of the processes that have one; empty: not known yet
        self._ranks: pa.RecordBatch | None = None  # totals that are not journalled yet
        self._gauges: _Gauges | None = None  # those that are not journalled yet
        self._gauges_known: _Gauges | None = None  # as they were journalled last
        self._ranks_written = 0.0
        self._retry_at: float | None = None  # set while the disk is full
        self._failure = ""  # of the disk, the last one
        self._dropping = False
        self._lost: dict[str, _Loss] = {}  # by table; the next part notes it
        self._losing = threading.Lock()

        self._queue: queue.Queue[tuple[Callable[[], None], _Rows | None] | None] = queue.Queue(QUEUE_LENGTH)
        self._parts = ThreadPoolExecutor(1, thread_name_prefix="recording-parts")
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._thread.start()

    def sample(self, sample: Sample) -> None:
        """Records one sample of the node. Returns at once."""
        rows = _Rows("samples", 1, sample.time, sample.time)
        self._hand_over(partial(self._record_sample, sample), rows)

    def steps(self, header: LedgerHeader, records: Sequence[StepRecord]) -> None:
        """Records finished steps of one rank, in the order in which they ended. Returns at once."""
        if records:
            rows = _Rows("steps", len(records), records[0].start, records[-1].start + records[-1].duration)
            self._hand_over(partial(self._record_steps, header, records), rows)

    def ranks(
        self,
        ranks: Iterable[tuple[LedgerHeader, LedgerTotals, bool]],
        now: float | None = None,
        presences: Sequence[Presence] = (),
        paused: Paused = NO_PAUSES,
    ) -> None:
        """Records each rank's totals now, whether its process is alive, and what it does, if that is known.

        `paused` are the seconds of ranks by run and rank, and by reason. Returns at once.
        """
        time_now = time.time() if now is None else now
        self._hand_over(partial(self._record_ranks, time_now, list(ranks), presences, paused))

    def refused(self, ledgers: Mapping[tuple[str, int], str]) -> None:
        """Records from the next sample on why ledgers of a run and rank were refused. Returns at once."""
        self._hand_over(partial(self._note_refused, dict(ledgers)))

    def rename(self, run: str) -> None:
        """Records under this label from now on, also in run.json. Returns at once."""
        self._hand_over(partial(self._rename, run))

    def lines(
        self,
        counts: Mapping[Thread, LineCounts],
        retired: Mapping[Thread, LineCounts],
        removed: Set[str],
        written: Callable[[Set[str]], object],
        sources: Mapping[str, str] | None = None,
    ) -> None:
        """Records line samples and the text of places, see lines.py.

        Calls `written`, in the writer's thread, once they are.
        """

        def record() -> None:
            write_lines(self._folder, counts, retired, removed, sources)
            written(removed)

        self._hand_over(record)

    def catch_up(self) -> None:
        """Waits until everything in the queue is recorded: for callers that are faster than real time."""
        self._queue.join()

    def close(self) -> None:
        """Writes the rest of the queue and makes the last parts. Nothing may be recorded afterwards."""
        self._queue.put(None)
        self._thread.join()
        self._parts.shutdown()
        os.close(self._lock)

    def _hand_over(self, record: Callable[[], None], rows: _Rows | None = None) -> None:
        if self._queue.empty():
            self._dropping = False
        try:
            self._queue.put_nowait((record, rows))
        except queue.Full:
            self._lose(rows, "the disk did not keep up")
            if not self._dropping:
                self._dropping = True
                log.warning("the disk under %s hangs: samples are dropped from the recording", self._folder)

    def _lose(self, rows: _Rows | None, why: str) -> None:
        """Counts rows that are not recorded."""
        if rows is not None:
            with self._losing:
                before = self._lost.get(rows.table)
                self._lost[rows.table] = _Loss(
                    why=why,
                    count=rows.count + (before.count if before else 0),
                    start=min(before.start, rows.start) if before else rows.start,
                    end=max(before.end, rows.end) if before else rows.end,
                )

    # The methods below run in the writer's thread.

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            self._guarded(*item)
            self._queue.task_done()
        self._guarded(self._write_ranks)
        self._cut(*TABLES)

    def _guarded(self, record: Callable[[], None], rows: _Rows | None = None) -> None:
        """Records; after an error of the disk, drops everything for RETRY_SECONDS."""
        if self._retry_at is not None and time.monotonic() < self._retry_at:
            self._lose(rows, self._failure)
            return
        try:
            record()
        except OSError as error:
            self._failure = error.strerror or type(error).__name__
            self._lose(rows, self._failure)
            if self._retry_at is None:
                log.warning(
                    "recording in %s stopped: %s; it continues when there is room",
                    self._folder,
                    self._failure,
                )
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._cut(*TABLES)
        except Exception as error:  # noqa: BLE001 - a value of one process must not end the recording
            failure = describe(error)
            self._lose(rows, failure)
            if failure != self._failure:
                log.error("a part of a tick cannot be recorded in %s: %s", self._folder, failure)
            self._failure = failure
        else:
            if self._retry_at is not None:
                log.warning("recording in %s continues", self._folder)
            self._retry_at = None

    def _record_sample(self, sample: Sample) -> None:
        minute = int(sample.time // PART_SECONDS)
        if minute != self._minute:
            self._minute = minute
            self._write_ranks()
            self._cut(*TABLES)
        layout = self._layout.with_devices_of(sample)
        if layout != self._layout:
            self._cut("samples")
            self._layout = layout
        use = self._use_of_run(sample)
        facts = facts_after(self._facts, self._layout, sample, use.host)
        if facts.run_cpus != self._facts.run_cpus:
            self._cut("samples")
        self._facts = facts
        journal = self._journal("samples", sample.time, samples_schema(layout), self._facts_now)
        self._append("samples", journal, _sample_batch(sample, use, layout, journal.schema))

    def _facts_now(self) -> dict[str, Any]:
        return asdict(self._facts) | ({"refused": self._refused} if self._refused else {})

    def _note_refused(self, ledgers: Mapping[tuple[str, int], str]) -> None:
        known = {(each["run"], each["rank"]) for each in self._refused}
        new = [
            {"run": run, "rank": rank, "why": what, "time": time.time()}
            for (run, rank), what in ledgers.items()
            if (run, rank) not in known
        ]
        if new:
            self._refused = [*self._refused, *new][:MOST_REFUSED]
            self._cut("samples")

    def _rename(self, run: str) -> None:
        self._run = self._common["run"] = run
        known = RunFile.read(self._folder.parent)
        if known is not None:
            replace(known, run=run).write(self._folder.parent)

    def _use_of_run(self, sample: Sample) -> RunSample:
        """Returns what the recorded run uses: that of its name, otherwise the only one here.

        A run without ledgers has the whole node. One that has ended keeps its GPUs.
        """
        only = next(iter(sample.runs.values())) if len(sample.runs) == 1 else None
        use = sample.runs.get(self._run, only)
        if use is not None:
            self._gpus = use.gpus
            return use
        whole = {} if sample.runs else dict.fromkeys(sample.gpus, GpuUse("node"))
        return RunSample(gpus=whole if self._gpus is None else self._gpus)

    def _record_steps(self, header: LedgerHeader, records: Sequence[StepRecord]) -> None:
        key = _rank_key(header.rank, header.pid, header.start)
        last = self._recorded.setdefault(key, {})
        fresh = [record for record in records if record.number > last.get(record.phase, -1)]
        if not fresh:
            return
        journal = self._journal("steps", fresh[0].start, STEPS_SCHEMA, self._recorded_now)
        self._append("steps", journal, _steps_batch(header, fresh, journal.schema))
        last.update({record.phase: record.number for record in fresh})
        if journal.rows >= PART_STEPS:
            self._cut("steps")

    def _recorded_now(self) -> dict[str, Any]:
        """Returns the last steps of processes with ledgers: a next writer is given those of no others."""
        known, ledgers = self._recorded.items(), self._ledgers
        return {"recorded": {key: last for key, last in known if not ledgers or key in ledgers}}

    def _record_ranks(
        self,
        now: float,
        ranks: list[tuple[LedgerHeader, LedgerTotals, bool]],
        presences: Sequence[Presence],
        paused: Paused,
    ) -> None:
        if ranks:
            self._ledgers = {_rank_key(each.rank, each.pid, each.start) for each, _, _ in ranks}
            rows = [
                _rank_row(now, *rank) | _stay(presence) | _pauses(paused.get((rank[0].run, rank[0].rank), {}))
                for rank, presence in zip_longest(ranks, presences[: len(ranks)])
            ]
            batch = self._ranks_batch(rows)
            if self._ranks is not None and self._ranks.column("alive") != batch.column("alive"):
                self._write_ranks()  # so that the last moment of a process is known to the tick
            self._ranks = batch
            self._gauges = _gauges(now, ranks)
        if abs(now - self._ranks_written) >= RANKS_SECONDS:
            self._write_ranks()
            self._ranks_written = now

    def _ranks_batch(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        """Returns the rows as a batch. One that its columns cannot hold costs itself only."""
        try:
            return pa.RecordBatch.from_pylist(rows, schema=RANKS_SCHEMA)
        except _NO_COLUMN_HOLDS_IT:
            problems = [_problem(row) for row in rows]
            self._note_refused(
                {
                    (self._run, row["rank"]): problem
                    for row, problem in zip(rows, problems, strict=True)
                    if problem
                }
            )
            fitting = [row for row, problem in zip(rows, problems, strict=True) if not problem]
            return pa.RecordBatch.from_pylist(fitting, schema=RANKS_SCHEMA)

    def _write_ranks(self) -> None:
        if self._ranks is not None:
            self._append("ranks", self._journal("ranks", 0.0, RANKS_SCHEMA, dict), self._ranks)
            self._ranks = None
        if self._gauges is not None and (batch := self._gauges.since(self._gauges_known)):
            journal = self._journal("gauges", self._gauges.time, GAUGES_SCHEMA, dict)
            self._append("gauges", journal, batch)
            self._gauges_known = self._gauges

    def _journal(
        self, table: str, time: float, schema: pa.Schema, metadata: Callable[[], dict[str, Any]]
    ) -> JournalWriter:
        """Returns the journal for a row of that time; a new one after a loss, which its metadata notes."""
        loss, lost = self._lost.get(table), {}
        if loss is not None and loss.start < time:  # not for rows that were queued before
            self._cut(table)
            with self._losing:  # more may be lost while a slow disk makes the journal
                lost = {"lost": asdict(self._lost.pop(table))}
        if table not in self._journals:
            path = journal_path(self._folder, table, self._numbers[table] + 1)
            whole = {**self._common, **metadata(), **lost}
            self._journals[table] = JournalWriter(path, with_metadata(schema, whole))
        return self._journals[table]

    def _append(self, table: str, journal: JournalWriter, batch: pa.RecordBatch) -> None:
        is_first = not journal.rows
        try:
            journal.append(batch)
        except OSError:
            if is_first and (loss := metadata_of(journal.schema).get("lost")):  # nothing says it yet
                self._lose(_Rows(table, loss["count"], loss["start"], loss["end"]), loss["why"])
            raise
        if is_first:
            self._numbers[table] += 1

    def _cut(self, *tables: str) -> None:
        """Closes the open journals of the tables and lets the other thread turn them into parts."""
        for table in tables:
            if journal := self._journals.pop(table, None):
                try:
                    journal.close()
                except OSError as error:  # of NFS, which may write only now; readers find what is missing
                    failure = error.strerror or type(error).__name__
                    if failure != self._failure:
                        log.warning("a journal in %s may lack its end: %s", self._folder, failure)
                    self._failure = failure
                self._parts.submit(self._make_parts, table, self._numbers[table])

    def _take_over(self, table: str) -> None:
        """Turns the journals of earlier writers into parts."""
        found = pieces(self._folder, table)
        for piece in found:
            if piece.is_part:  # a writer killed between the rename and the next line leaves its journal
                remove(journal_path(self._folder, table, piece.number))
        last = found[-1].number if found else 0
        self._made[table] = min((piece.number - 1 for piece in found if not piece.is_part), default=last)
        self._make_parts(table, last)
        self._numbers[table] = max((piece.number for piece in pieces(self._folder, table)), default=0)
        self._made[table] = min(self._made[table], self._numbers[table])  # one without a row left no part

    # The method below runs in the thread that makes parts.

    def _make_parts(self, table: str, last: int) -> None:
        """Turns the journals up to number `last` into parts. A failure of the disk is retried later."""
        for number in range(self._made[table] + 1, last + 1):
            try:
                with suppress(FileNotFoundError):  # it is a part already, or somebody removed it
                    journal_to_part(self._folder, table, number, KEEP_LAST_BY.get(table, ()))
                self._part_failed = False
            except Exception as error:  # noqa: BLE001 - nobody asks for what a task of the thread raises
                if not self._part_failed:
                    reason = getattr(error, "strerror", None) or describe(error)
                    log.warning("cannot make a part in %s: %s; its journal stays", self._folder, reason)
                self._part_failed = True
                if isinstance(error, (OSError, MemoryError)):
                    return
            self._made[table] = number


@dataclass(frozen=True)
class _Rows:
    """Rows of one table that wait for the disk. Times are since the epoch."""

    table: str
    count: int
    start: float
    end: float


@dataclass(frozen=True)
class _Loss:
    """Rows of one table that were not recorded. Times are since the epoch."""

    why: str
    count: int
    start: float
    end: float


@dataclass(frozen=True)
class _Gauges:
    """The gauges of one process at a moment."""

    time: float
    header: LedgerHeader
    values: Mapping[str, float]

    def since(self, known: _Gauges | None) -> pa.RecordBatch | None:
        """Returns the rows of those that have changed since; None if none has."""
        same = known is not None and known.header == self.header
        before = known.values if known is not None and same else {}
        changed = {name: value for name, value in self.values.items() if not _equal(value, before.get(name))}
        if not changed:
            return None
        of_all = (self.time, self.header.rank, self.header.pid, self.header.start)
        rows = [(*of_all, name, value) for name, value in changed.items()]
        columns = dict(zip(GAUGES_SCHEMA.names, zip(*rows, strict=True), strict=True))
        return pa.RecordBatch.from_pydict(columns, schema=GAUGES_SCHEMA)


def _gauges(time: float, ranks: Iterable[tuple[LedgerHeader, LedgerTotals, bool]]) -> _Gauges | None:
    """Returns the gauges of training of the lowest rank that has some, of its newest process."""
    found = [
        _Gauges(time, header, values)
        for header, totals, _ in ranks
        if (values := {name: value for name, value in totals.gauges.items() if name not in SETTINGS})
    ]
    return min(found, key=lambda each: (each.header.rank, -each.header.start), default=None)


def _equal(value: float, before: float | None) -> bool:
    return value == before or (before is not None and isnan(value) and isnan(before))


def _begin_run(directory: Path, run: str, interval: float) -> None:
    """Writes run.json unless there is one. A damaged one stays: it is reported with the run."""
    try:
        known = RunFile.read(directory)
    except DamageError as error:
        log.warning("%s is damaged: %s", directory / RUN_FILE, error)
        return
    if known is None:
        versions = {"stepscope": __version__}
        RunFile(run, time.time(), interval=interval, versions=versions, run=run).write(directory)


def _lock(folder: Path) -> int:
    """Locks the folder against other writers. The kernel releases the lock when the process dies."""
    lock = open_lock(folder)
    if not try_hold(lock):
        os.close(lock)
        raise UserError(f"{folder} is being recorded by another exporter; choose another directory")
    return lock


def _already_recorded(
    folder: Path, node: str
) -> tuple[NodeFacts, dict[str, dict[str, int]], list[dict[str, Any]]]:
    """Returns the node's facts, each rank's last recorded step by phase, and the refused ledgers."""
    facts, refused = NodeFacts(node), []
    if (samples := _last_rows(folder, "samples")) is not None:
        facts = facts_of(metadata_of(samples.schema))
        refused = metadata_of(samples.schema).get("refused", [])
    recorded: dict[str, dict[str, int]] = {}
    if (steps := _last_rows(folder, "steps")) is not None:
        recorded = metadata_of(steps.schema)["recorded"]
        names = ("rank", "pid", "rank_start", "phase", "number")
        columns = (steps.column(name).to_pylist() for name in names)
        for rank, pid, start, phase, number in zip(*columns, strict=True):
            recorded.setdefault(_rank_key(rank, pid, start), {})[phase] = number
    return facts, recorded, refused


def _last_rows(folder: Path, table: str) -> pa.Table | None:
    """Returns the rows of the table's last piece that can be read and has any."""
    for piece in reversed(pieces(folder, table)):
        with suppress(DamageError):
            if rows := read_piece(piece):
                return rows
    return None


def _rank_key(rank: int, pid: int, start: float) -> str:
    """Returns a key that distinguishes the processes of a rank, and the runs that one process started."""
    return f"{rank}/{pid}/{start!r}"


def _sample_batch(sample: Sample, use: RunSample, layout: Layout, schema: pa.Schema) -> pa.RecordBatch:
    host = use.host
    columns: dict[str, pa.Array] = {"time": pa.array([sample.time], pa.float64())}
    if layout.cpus:
        for name, attribute in CPU_COLUMNS.items():
            values = getattr(sample, attribute)
            if sample.cpus != layout.cpus:
                by_cpu = dict(zip(sample.cpus, values, strict=False))
                values = [by_cpu.get(cpu, nan) for cpu in layout.cpus]
            elif len(values) != len(layout.cpus):
                values = [nan] * len(layout.cpus)
            columns[name] = _one_list(values, pa.float32())
    for name, attribute in NODE_COLUMNS.items():
        columns[name] = pa.array([float(getattr(sample, attribute))], pa.float64())
    for name, attribute in RUN_COLUMNS.items():
        columns[name] = pa.array([float(getattr(host, attribute))], pa.float64())
    for name, resource in PRESSURE_COLUMNS.items():
        columns[name] = pa.array([host.waiting_seconds.get(resource, nan)], pa.float64())
    users = schema.field(NEIGHBOURS_COLUMN).type
    columns[NEIGHBOURS_COLUMN] = pa.array([list(host.neighbour_cpu_seconds.items())], users)
    if layout.gpus:
        missing = GpuSample()
        gpus = [sample.gpus.get(gpu, missing) for gpu in layout.gpus]
        for name, (attribute, kind) in GPU_COLUMNS.items():
            columns[name] = _one_list([getattr(gpu, attribute) for gpu in gpus], kind)
        evidence = [use.gpus[gpu].by if gpu in use.gpus else "" for gpu in layout.gpus]
        columns[EVIDENCE_COLUMN] = _one_list([EVIDENCE.index(by) for by in evidence], pa.float32())
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _one_list(values: Sequence[float], kind: pa.DataType) -> pa.Array:
    """Returns one row of a list column."""
    numbers = np.asarray(values, dtype=kind.to_pandas_dtype())
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers, kind), len(values))


def _steps_batch(header: LedgerHeader, records: Sequence[StepRecord], schema: pa.Schema) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "rank": [header.rank] * len(records),
        "pid": [header.pid] * len(records),
        "rank_start": [header.start] * len(records),
        **{
            name: [getattr(record, name) for record in records]
            for name in ("phase", "number", "start", "duration")
        },
        **dict(zip(COMPONENTS, np.array([record.components for record in records], float).T, strict=True)),
    }
    return pa.RecordBatch.from_pydict(columns, schema=schema)


def _rank_row(now: float, header: LedgerHeader, totals: LedgerTotals, alive: bool) -> dict[str, Any]:
    return {
        "time": now,
        "alive": alive,
        **{name: getattr(header, name) for name in (*HEADER_COLUMNS, "attempt")},
        **{name: getattr(totals, name) for name in MOMENT_COLUMNS},
        **{f"{phase}_steps": totals.steps.get(phase, 0) for phase in PHASES},
        **{f"{phase}_seconds": totals.phase_seconds.get(phase, 0.0) for phase in PHASES_AND_MORE},
        **{f"{name}_seconds": totals.component_seconds.get(name, 0.0) for name in COMPONENTS},
        "fetches": sum(totals.fetch_counts),
        "fetch_seconds": totals.fetch_sum,
        "fetch_cpu_seconds": totals.fetch_cpu_seconds,
        "fetch_core_wait_seconds": totals.fetch_core_wait_seconds,
        "loaders": [
            {
                **{name: getattr(loader, name) for name in LOADER_COLUMNS},
                "waits": sum(loader.wait_counts),
                "wait_seconds": loader.wait_sum,
            }
            for loader in totals.loaders
        ],
        "gauges": list(totals.gauges.items()),
        "counts": list(totals.counts.items()),
        **{name: getattr(totals, name) for name in WORKER_COLUMNS},
    }


_NO_COLUMN_HOLDS_IT = (pa.ArrowException, ArithmeticError, TypeError, ValueError)


def _problem(row: dict[str, Any]) -> str:
    """Returns why the columns cannot hold a row; "" if they can."""
    try:
        pa.RecordBatch.from_pylist([row], schema=RANKS_SCHEMA)
    except _NO_COLUMN_HOLDS_IT as error:
        return describe(error)
    return ""


def _pauses(paused: Mapping[str, float]) -> dict[str, float | None]:
    return {column: paused.get(reason) for column, reason in PAUSE_COLUMNS.items()}


def _stay(presence: Presence | None) -> dict[str, Any]:
    if presence is None:
        return {}
    row: dict[str, Any] = {"state": presence.state or None}
    if presence.place is not None:
        component, operation, since = presence.place
        row |= {"component": component, "operation": operation or None, "component_since": since}
        row["stay_seconds"] = presence.seconds
    return row
