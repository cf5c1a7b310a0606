"""Reads a recording directory: once after the run, or repeatedly while it is being written.

Each row is returned exactly once, from the journal of the open minute or from the part that the journal
becomes: a part holds its journal's rows in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainwatch.errors import UserError
from trainwatch.runs.model import (
    COMPONENTS,
    PHASES,
    Floats,
    Loader,
    NodeFacts,
    NodeSamples,
    RankFacts,
    RunFacts,
    Source,
    Steps,
    Times,
    in_time_order,
)
from trainwatch.runs.recording.files import (
    RUN_FILE,
    JournalReader,
    Piece,
    RunFile,
    holds_recording,
    piece_now,
    pieces,
    read_part,
)
from trainwatch.runs.recording.schema import (
    FETCH_COLUMNS,
    HEADER_COLUMNS,
    LOADER_COLUMNS,
    MOMENT_COLUMNS,
    PHASES_AND_MORE,
    facts_of,
    grown,
    metadata_of,
)

CHUNK_VALUES = 2_000_000  # values in a chunk of samples: at most 16 MB
CHUNK_STEPS = 100_000
CHUNK_SECONDS = 600.0  # so that samples and steps of the same time are near each other


class RecordingDirectory(Source):
    """The recording in `directory`. Raises UserError if there is none, or a file is corrupt."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise UserError(f"{directory} is not a directory: give the directory of a recording")
        if not holds_recording(directory):
            raise UserError(
                f"{directory} is not a recording (no {RUN_FILE}, no samples): "
                "give the directory that `trainwatch run` wrote"
            )
        self._directory = directory
        self._nodes: dict[str, _Node] = {}
        self._run = RunFile.read(directory)
        self._open_nodes()

    @property
    def facts(self) -> RunFacts:
        nodes = list(self._nodes.values())
        return RunFacts(
            **vars(self._run or self._run_without_file()),
            samples_missed=sum(node.samples.missed for node in nodes),
            nodes=tuple(node.samples.facts for node in nodes),
            ranks=tuple(facts for node in nodes for facts in node.rank_facts()),
            unknowns=tuple(sentence for node in nodes for sentence in node.unknowns()),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """Yields the data since the last call; all nodes are roughly in time order."""
        self._run = RunFile.read(self._directory)
        self._open_nodes()
        for node in self._nodes.values():
            node.read_ranks()
        interval = (self._run or self._run_without_file()).interval
        streams: list[Iterator[NodeSamples | Steps]] = []
        for node in self._nodes.values():
            streams += [node.samples.read(interval), node.steps.read()]
        yield from in_time_order(streams)

    def _open_nodes(self) -> None:
        for folder in sorted(path for path in self._directory.iterdir() if path.is_dir()):
            if folder.name not in self._nodes and any(folder.glob("samples-*")):
                self._nodes[folder.name] = _Node(folder)

    def _run_without_file(self) -> RunFile:
        """Returns what the parts contain about the run, if run.json is gone."""
        parts = (node.samples.metadata for node in self._nodes.values() if node.samples.metadata)
        values: dict[str, Any] = next(parts, {})
        name, interval = values.get("run"), values.get("interval", RunFile.interval)
        return RunFile(name or self._directory.name, interval=interval)


_Process = tuple[int, int, float]  # rank, pid and start: a rank may have had several processes


class _Node:
    """The three tables of one node's folder."""

    def __init__(self, folder: Path) -> None:
        self.samples = _Samples(folder)
        self.steps = _Steps(folder, self.samples)
        self._ranks = _Stream(folder, "ranks")
        self._rows: dict[_Process, dict[str, Any]] = {}
        self._last_alive: dict[_Process, float] = {}

    def read_ranks(self) -> None:
        for table in self._ranks.tables():
            for row in table.to_pylist():
                key = row["rank"], row["pid"], row["start"]
                self._rows[key] = row
                if row["alive"]:
                    self._last_alive[key] = row["time"]

    def rank_facts(self) -> Iterator[RankFacts]:
        for key, row in sorted(self._rows.items()):
            lost, last_alive = self.steps.lost(key), self._last_alive.get(key)
            yield _rank_facts(self.samples.facts.node, row, lost, last_alive)

    def unknowns(self) -> Iterator[str]:
        for stream in (self.samples.stream, self.steps.stream, self._ranks):
            yield from stream.unknowns()


class _Stream:
    """Reads the rows of one table of one node, each once."""

    def __init__(self, folder: Path, table: str) -> None:
        self._folder = folder
        self._table = table
        self._finished = 0  # every piece up to this number has been read to its end
        self._rows_read = 0  # of the next piece
        self._journal: JournalReader | None = None
        self._torn: dict[int, int] = {}  # bytes by piece

    def tables(self) -> Iterator[pa.Table]:
        """Yields the rows since the last call, one table per piece."""
        listed = pieces(self._folder, self._table, self._finished)
        for piece in listed:
            table, is_part = self._read(piece)
            if is_part or piece is not listed[-1]:  # a journal is closed before the next one is opened
                self._finished = piece.number
                self._rows_read = 0
                self._journal = None
            if table is not None and len(table):
                yield table

    def unknowns(self) -> Iterator[str]:
        for number, size in self._torn.items():
            if size:
                name = f"{self._folder.name}/{self._table}-{number:06d}"
                yield f"{name} was cut off in the middle of a row: its last {size} bytes could not be read."

    def _read(self, piece: Piece) -> tuple[pa.Table | None, bool]:
        """Returns the unread rows of the piece, and whether it is a part."""
        try:
            if not piece.is_part:
                return self._read_journal(piece), False
            table = read_part(piece.path)
        except FileNotFoundError:  # it has become a part since, or was a journal without a row
            now = piece_now(self._folder, self._table, piece.number)
            return (None, True) if now is None else self._read(now)
        self._torn[piece.number] = metadata_of(table.schema).get("torn_bytes", 0)
        return table.slice(self._rows_read), True

    def _read_journal(self, piece: Piece) -> pa.Table | None:
        self._journal = self._journal or JournalReader(piece.path)
        batches = self._journal.read()
        self._torn[piece.number] = self._journal.torn_bytes
        self._rows_read += sum(len(batch) for batch in batches)
        return pa.Table.from_batches(batches) if batches else None


class _Samples:
    """Reads the samples of one node: rates from counters, positions of devices, missed ticks."""

    def __init__(self, folder: Path) -> None:
        self.stream = _Stream(folder, "samples")
        self.facts = NodeFacts(folder.name)
        self.metadata: dict[str, Any] = {}
        self.missed = 0
        self._last = np.full(3, nan)  # time, network bytes and disk bytes of the last row

    def read(self, interval: float) -> Iterator[NodeSamples]:
        def belongs(table: pa.Table, group: list[pa.Table], rows: int) -> bool:
            """Returns whether the table has the devices and columns of the group, and fits into its chunk."""
            devices = _devices(table)
            same = devices == _devices(group[0]) and table.schema.names == group[0].schema.names
            return same and rows * (2 * sum(map(len, devices)) + len(table.schema.names)) <= CHUNK_VALUES

        for group in _groups(self.stream.tables(), "time", belongs):
            yield self._samples(group, interval)

    def _samples(self, table: pa.Table, interval: float) -> NodeSamples:
        self.metadata = metadata_of(table.schema)
        cpus, gpus = _devices(table)
        self._learn(facts_of(self.metadata))
        all_gpus = tuple(gpu.gpu for gpu in self.facts.gpus)

        def per_cpu(name: str) -> Floats:
            return _matrix(table, name, cpus, self.facts.cpus)

        def per_gpu(name: str) -> NDArray[Any]:
            return _matrix(table, name, gpus, all_gpus)

        times = _numbers(table, "time")
        with np.errstate(divide="ignore", invalid="ignore"):
            gpu_memory = per_gpu("gpu_memory_used_bytes") / per_gpu("gpu_memory_total_bytes")
            memory = _numbers(table, "memory_used_bytes") / _numbers(table, "memory_total_bytes")
        network, disk = self._rates(table, times, interval)
        return NodeSamples(
            node=self.facts.node,
            times=times,
            cpu=per_cpu("cpu_utilization_ratio"),
            io_wait=per_cpu("cpu_io_wait_ratio"),
            gpu=per_gpu("gpu_utilization_ratio"),
            gpu_memory=gpu_memory.astype(np.float32),
            memory=memory.astype(np.float32),
            network=network,
            disk=disk,
            gpu_power_watts=per_gpu("gpu_power_watts"),
            gpu_temperature_celsius=per_gpu("gpu_temperature_celsius"),
            gpu_clock_hertz=per_gpu("gpu_clock_hertz"),
            gpu_thermal_throttle_seconds=per_gpu("gpu_thermal_throttle_seconds_total"),
            gpu_power_throttle_seconds=per_gpu("gpu_power_throttle_seconds_total"),
            gpu_ecc_uncorrected_errors=per_gpu("gpu_ecc_uncorrected_errors_total"),
            gpu_xid_errors=per_gpu("gpu_xid_errors_total"),
            gpu_last_xid=per_gpu("gpu_last_xid"),
        )

    def _learn(self, facts: NodeFacts) -> None:
        """Updates the facts of the node; devices keep the positions in which they were first seen."""
        known = {gpu.gpu: gpu for gpu in (*self.facts.gpus, *facts.gpus)}
        labels = grown(tuple(gpu.gpu for gpu in self.facts.gpus), [gpu.gpu for gpu in facts.gpus])
        cpus = grown(self.facts.cpus, facts.cpus)
        self.facts = replace(facts, cpus=cpus, gpus=tuple(known[label] for label in labels))

    def _rates(self, table: pa.Table, times: Times, interval: float) -> tuple[Times, Times]:
        """Returns bytes per second since the previous row, NaN if there is none or a counter restarted."""
        received, sent, read, written = (_numbers(table, f"{name}_bytes_total") for name in _TRAFFIC)
        rows = np.vstack([self._last, np.column_stack([times, received + sent, read + written])])
        self._last = rows[-1]
        change = np.diff(rows, axis=0)
        gaps = change[:, 0]
        ticks = np.rint(gaps[np.isfinite(gaps)] / interval)
        self.missed += int(np.maximum(ticks - 1, 0).sum())
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = change[:, 1:] / gaps[:, None]
        rates[(change[:, 1:] < 0) | ~(gaps[:, None] > 0)] = nan
        return rates[:, 0], rates[:, 1]


_TRAFFIC = ("network_receive", "network_transmit", "disk_read", "disk_written")


class _Steps:
    """Reads the finished steps of one node's ranks."""

    def __init__(self, folder: Path, samples: _Samples) -> None:
        self.stream = _Stream(folder, "steps")
        self._samples = samples
        self._counted: dict[tuple[_Process, str], tuple[int, int]] = {}  # rows, highest number + 1

    def lost(self, process: _Process) -> int:
        """Returns how many steps of this process have no record: gaps in the steps' numbers."""
        return sum(end - rows for (key, _), (rows, end) in self._counted.items() if key == process)

    def read(self) -> Iterator[Steps]:
        for group in _groups(self.stream.tables(), "start", lambda _, __, rows: rows <= CHUNK_STEPS):
            yield from self._steps(group)

    def _steps(self, table: pa.Table) -> Iterator[Steps]:
        self._count(table)
        ranks = table.column("rank").to_numpy()
        steps = Steps(
            node=self._samples.facts.node,
            rank=-1,
            numbers=table.column("number").to_numpy(),
            phases=pc.index_in(table.column("phase"), pa.array(PHASES)).to_numpy().astype(np.uint8),
            starts=_numbers(table, "start"),
            durations=_numbers(table, "duration"),
            components=np.column_stack([_numbers(table, component) for component in COMPONENTS]),
        )
        for rank in np.unique(ranks):
            yield replace(steps[ranks == rank], rank=int(rank))

    def _count(self, table: pa.Table) -> None:
        """Counts the steps per process and phase, and keeps their highest number."""
        keys = ["rank", "pid", "rank_start", "phase"]
        counts = table.group_by(keys).aggregate([("number", "count"), ("number", "max")])
        for row in counts.to_pylist():
            key = (row["rank"], row["pid"], row["rank_start"]), row["phase"]
            rows, end = self._counted.get(key, (0, 0))
            self._counted[key] = rows + row["number_count"], max(end, row["number_max"] + 1)


def _groups(
    tables: Iterator[pa.Table], time: str, belongs: Callable[[pa.Table, list[pa.Table], int], bool]
) -> Iterator[pa.Table]:
    """Joins consecutive small tables, since each chunk has an overhead.

    `belongs` receives a table, the group before it, and the rows of both.
    """
    group: list[pa.Table] = []
    for table in tables:
        if group:
            near = table.column(time)[0].as_py() < group[0].column(time)[0].as_py() + CHUNK_SECONDS
            if not near or not belongs(table, group, sum(map(len, (*group, table)))):
                yield _joined(group)
                group = []
        group.append(table)
    if group:
        yield _joined(group)


def _joined(group: list[pa.Table]) -> pa.Table:
    """Returns one table with the metadata of the last, which knows most."""
    return pa.concat_tables(group).replace_schema_metadata(group[-1].schema.metadata)


def _numbers(table: pa.Table, name: str) -> Times:
    """Returns (n,) a column of numbers."""
    values: Times = table.column(name).to_numpy()
    return values


def _devices(table: pa.Table) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the cores and the GPUs of a table's list columns."""
    values = metadata_of(table.schema)
    return tuple(values["cpus"]), tuple(gpu["gpu"] for gpu in values["gpus"])


def _matrix(table: pa.Table, name: str, devices: tuple[str, ...], wanted: tuple[str, ...]) -> NDArray[Any]:
    """Returns (n, len(wanted)) a list column, one column per device.

    NaN for devices that were added later, and for columns that an older Trainwatch did not write.
    """
    if not devices or name not in table.schema.names:
        return np.full((len(table), len(wanted)), nan, dtype=np.float32)
    column = table.column(name).combine_chunks()
    values: NDArray[Any] = column.flatten().to_numpy().reshape(len(table), len(devices))
    if devices == wanted:
        return values
    placed = np.full((len(table), len(wanted)), nan, dtype=values.dtype)
    placed[:, [wanted.index(device) for device in devices]] = values
    return placed


def _rank_facts(node: str, row: dict[str, Any], records_lost: int, last_alive: float | None) -> RankFacts:
    return RankFacts(
        node=node,
        **{name: row[name] for name in (*HEADER_COLUMNS, *MOMENT_COLUMNS)},
        killed=not row["alive"] and row["end"] is None,
        phase_seconds={phase: row[f"{phase}_seconds"] for phase in PHASES_AND_MORE},
        component_seconds={component: row[f"{component}_seconds"] for component in COMPONENTS},
        steps={phase: row[f"{phase}_steps"] for phase in PHASES},
        records_lost=records_lost,
        loaders=tuple(_loaders(row)),
        last_alive=last_alive,
    )


def _loaders(row: dict[str, Any]) -> Iterator[Loader]:
    """Yields the rank's loaders. Fetches are timed per rank, not per loader: its first loader gets them.

    If workers time their fetches for a loader that is not watched, a loader without settings gets them.
    """
    fetched = {name: row[name] for name in FETCH_COLUMNS}
    for loader in row["loaders"] or ([{"phase": PHASES[0]}] if fetched["fetches"] else []):
        settings = {name: loader.get(name) for name in LOADER_COLUMNS}  # older ones lack the batch size
        yield Loader(rank=row["rank"], **settings, **fetched)
        fetched = {}
