"""Writes a recording during a run: a journal that grows every tick, a Parquet part every minute.

The sampler only queues its samples, and a thread of the writer writes them. So a slow, full or hung disk
never delays a sample. A second thread makes the parts (compression, fsync), so that the
journal keeps growing meanwhile.
"""

from __future__ import annotations

import fcntl
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from trainwatch import __version__
from trainwatch.errors import UserError
from trainwatch.runs.model import COMPONENTS, PHASES, NodeFacts
from trainwatch.runs.recording.files import (
    JournalWriter,
    RunFile,
    journal_path,
    journal_to_part,
    part_path,
    pieces,
    read_piece,
)
from trainwatch.runs.recording.schema import (
    CPU_COLUMNS,
    GPU_COLUMNS,
    HEADER_COLUMNS,
    LOADER_COLUMNS,
    MOMENT_COLUMNS,
    NODE_COLUMNS,
    PHASES_AND_MORE,
    RANKS_SCHEMA,
    STEPS_SCHEMA,
    TABLES,
    Layout,
    facts_after,
    facts_of,
    metadata_of,
    samples_schema,
    with_metadata,
)
from trainwatch.sampling.sample import GpuSample, Sample

if TYPE_CHECKING:
    from trainwatch.training.reader import LedgerHeader, LedgerTotals, StepRecord

log = logging.getLogger(__name__)

PART_SECONDS = 60.0
PART_STEPS = 100_000  # a part is cut before its minute is over at this many steps
RANKS_SECONDS = 1.0  # the totals of the ledgers are journalled at most this often
RETRY_SECONDS = 30.0  # after a full disk
QUEUE_LENGTH = 1000  # some minutes of a disk that hangs; samples beyond are dropped

# The columns that identify an updated row: a part keeps only the last row of each.
KEEP_LAST_BY: dict[str, tuple[str, ...]] = {"ranks": ("rank", "pid", "start", "alive")}


class RecordingWriter:
    """Records one node's samples and its ranks' steps in `directory`/`node`.

    Takes over from a writer that was killed: its journals become parts, and steps that it had recorded
    are not recorded again. Raises UserError if the directory is not writable, or has another writer.
    """

    def __init__(self, directory: Path, node: str, interval: float, run: str) -> None:
        self._folder = directory / node.replace("/", "_")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self._folder)
            for path in self._folder.glob(".*.unfinished"):  # of a writer that was killed
                path.unlink(missing_ok=True)
            if RunFile.read(directory) is None:
                versions = {"trainwatch": __version__}
                RunFile(run, start=time.time(), interval=interval, versions=versions).write(directory)
        except OSError as error:
            raise UserError(
                f"cannot record in {self._folder}: {error.strerror}; choose another directory"
            ) from error
        self._part_failed = False
        self._numbers: dict[str, int] = {}
        for table in TABLES:
            self._numbers[table] = max((piece.number for piece in pieces(self._folder, table)), default=0)
            self._make_parts(table, self._numbers[table])
        self._facts, self._recorded = _already_recorded(self._folder, node)
        self._layout = Layout(self._facts.cpus, tuple(gpu.gpu for gpu in self._facts.gpus))
        self._common = {"node": node, "run": run, "interval": interval}

        self._journals: dict[str, JournalWriter] = {}
        self._minute: int | None = None
        self._ranks: pa.RecordBatch | None = None  # totals that are not journalled yet
        self._ranks_written = 0.0
        self._retry_at: float | None = None  # set while the disk is full
        self._dropping = False

        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(QUEUE_LENGTH)
        self._parts = ThreadPoolExecutor(1, thread_name_prefix="recording-parts")
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._thread.start()

    def sample(self, sample: Sample) -> None:
        """Records one sample of the node. Returns at once."""
        self._hand_over(partial(self._record_sample, sample))

    def steps(self, header: LedgerHeader, records: Sequence[StepRecord]) -> None:
        """Records finished steps of one rank, in the order in which they ended. Returns at once."""
        if records:
            self._hand_over(partial(self._record_steps, header, records))

    def ranks(
        self, ranks: Iterable[tuple[LedgerHeader, LedgerTotals, bool]], now: float | None = None
    ) -> None:
        """Records each rank's totals now and whether its process is alive. Returns at once."""
        self._hand_over(partial(self._record_ranks, time.time() if now is None else now, list(ranks)))

    def catch_up(self) -> None:
        """Waits until everything in the queue is recorded: for callers that are faster than real time."""
        self._queue.join()

    def close(self) -> None:
        """Writes the rest of the queue and makes the last parts. Nothing may be recorded afterwards."""
        self._queue.put(None)
        self._thread.join()
        self._parts.shutdown()
        os.close(self._lock)

    def _hand_over(self, record: Callable[[], None]) -> None:
        if self._queue.empty():
            self._dropping = False
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            if not self._dropping:
                self._dropping = True
                log.warning("the disk under %s hangs: samples are dropped from the recording", self._folder)

    # The methods below run in the writer's thread.

    def _work(self) -> None:
        while (record := self._queue.get()) is not None:
            self._guarded(record)
            self._queue.task_done()
        self._guarded(self._write_ranks)
        self._cut(*TABLES)

    def _guarded(self, record: Callable[[], None]) -> None:
        """Records; after an error of the disk, drops everything for RETRY_SECONDS."""
        if self._retry_at is not None and time.monotonic() < self._retry_at:
            return
        try:
            record()
        except OSError as error:
            if self._retry_at is None:
                why = error.strerror
                log.warning("recording in %s stopped: %s; it continues when there is room", self._folder, why)
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._cut(*TABLES)
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
        self._facts = facts_after(self._facts, self._layout, sample)
        journal = self._journals.get("samples") or self._open_journal(
            "samples", samples_schema(layout), asdict(self._facts)
        )
        journal.append(_sample_batch(sample, layout, journal.schema))

    def _record_steps(self, header: LedgerHeader, records: Sequence[StepRecord]) -> None:
        key = _rank_key(header.rank, header.pid, header.start)
        last = self._recorded.setdefault(key, {})
        fresh = [record for record in records if record.number > last.get(record.phase, -1)]
        if not fresh:
            return
        journal = self._journals.get("steps") or self._open_journal(
            "steps", STEPS_SCHEMA, {"recorded": self._recorded}
        )
        journal.append(_steps_batch(header, fresh, journal.schema))
        last.update({record.phase: record.number for record in fresh})
        if journal.rows >= PART_STEPS:
            self._cut("steps")

    def _record_ranks(self, now: float, ranks: list[tuple[LedgerHeader, LedgerTotals, bool]]) -> None:
        if ranks:
            rows = [_rank_row(now, header, totals, alive) for header, totals, alive in ranks]
            batch = pa.RecordBatch.from_pylist(rows, schema=RANKS_SCHEMA)
            if self._ranks is not None and self._ranks.column("alive") != batch.column("alive"):
                self._write_ranks()  # so that the last moment of a process is known to the tick
            self._ranks = batch
        if abs(now - self._ranks_written) >= RANKS_SECONDS:
            self._write_ranks()
            self._ranks_written = now

    def _write_ranks(self) -> None:
        if self._ranks is not None:
            journal = self._journals.get("ranks") or self._open_journal("ranks", RANKS_SCHEMA, {})
            journal.append(self._ranks)
            self._ranks = None

    def _open_journal(self, table: str, schema: pa.Schema, metadata: dict[str, Any]) -> JournalWriter:
        path = journal_path(self._folder, table, self._numbers[table] + 1)
        journal = JournalWriter(path, with_metadata(schema, {**self._common, **metadata}))
        self._journals[table] = journal
        self._numbers[table] += 1
        return journal

    def _cut(self, *tables: str) -> None:
        """Closes the open journals of the tables and lets the other thread turn them into parts."""
        for table in tables:
            if journal := self._journals.pop(table, None):
                journal.close()
                self._parts.submit(self._make_parts, table, self._numbers[table])

    # The method below runs in the thread that makes parts.

    def _make_parts(self, table: str, last: int) -> None:
        """Turns the journals up to number `last` into parts. A failure is retried the next time."""
        try:
            for piece in pieces(self._folder, table):
                if piece.number > last:
                    break
                journal = journal_path(self._folder, table, piece.number)
                if piece.is_part:
                    journal.unlink(missing_ok=True)  # of a writer killed between the rename and this line
                else:
                    part = part_path(self._folder, table, piece.number)
                    journal_to_part(journal, part, KEEP_LAST_BY.get(table, ()))
            self._part_failed = False
        except OSError as error:
            if not self._part_failed:
                reason = error.strerror
                log.warning("cannot make a part in %s: %s; its journal stays", self._folder, reason)
            self._part_failed = True


def _lock(folder: Path) -> int:
    """Locks the folder against other writers. The kernel releases the lock when the process dies."""
    lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UserError(f"{folder} is being recorded by another exporter; choose another directory") from None
    return lock


def _already_recorded(folder: Path, node: str) -> tuple[NodeFacts, dict[str, dict[str, int]]]:
    """Returns the facts of the node, and the number of each rank's last recorded step by phase."""
    facts = NodeFacts(node)
    if (samples := _last_rows(folder, "samples")) is not None:
        facts = facts_of(metadata_of(samples.schema))
    recorded: dict[str, dict[str, int]] = {}
    if (steps := _last_rows(folder, "steps")) is not None:
        recorded = metadata_of(steps.schema)["recorded"]
        names = ("rank", "pid", "rank_start", "phase", "number")
        columns = (steps.column(name).to_pylist() for name in names)
        for rank, pid, start, phase, number in zip(*columns, strict=True):
            recorded.setdefault(_rank_key(rank, pid, start), {})[phase] = number
    return facts, recorded


def _last_rows(folder: Path, table: str) -> pa.Table | None:
    """Returns the rows of the table's last piece that has any."""
    read = (read_piece(piece) for piece in reversed(pieces(folder, table)))
    return next((rows for rows in read if rows is not None), None)


def _rank_key(rank: int, pid: int, start: float) -> str:
    """Returns a key that distinguishes the processes of a rank, and the runs that one process started."""
    return f"{rank}/{pid}/{start!r}"


def _sample_batch(sample: Sample, layout: Layout, schema: pa.Schema) -> pa.RecordBatch:
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
    if layout.gpus:
        missing = GpuSample()
        gpus = [sample.gpus.get(gpu, missing) for gpu in layout.gpus]
        for name, (attribute, kind) in GPU_COLUMNS.items():
            columns[name] = _one_list([getattr(gpu, attribute) for gpu in gpus], kind)
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
        **{name: getattr(header, name) for name in HEADER_COLUMNS},
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
    }
