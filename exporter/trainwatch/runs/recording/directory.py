"""Reads a recording directory: once when the run is over, again and again while it goes on.

Each row comes exactly once, whether it is read from the journal of the open minute or from the part
that the journal becomes: a part holds its journal's rows in the same order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
)
from trainwatch.runs.recording.journal import JournalReader
from trainwatch.runs.recording.parts import Piece, holds_recording, piece_now, pieces, read_part, torn_bytes
from trainwatch.runs.recording.run_file import NAME as RUN_FILE
from trainwatch.runs.recording.run_file import RunFile
from trainwatch.runs.recording.schema import PHASES_AND_MORE, facts_from_json, grown, metadata_of

CHUNK_VALUES = 2_000_000  # values in a chunk of samples: 16 MB at the most
CHUNK_STEPS = 100_000
CHUNK_SECONDS = 600.0  # samples and steps of the same time come near each other


class RecordingDirectory(Source):
    """The recording in `directory`. Raises UserError where there is none, or where a file is corrupt."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        _check(directory)
        self._nodes: dict[str, _Node] = {}
        self._run = RunFile.read(directory)
        self._open_nodes()

    @property
    def facts(self) -> RunFacts:
        run = self._run or self._run_without_file()
        nodes = list(self._nodes.values())
        return RunFacts(
            name=run.name,
            start=run.start,
            end=run.end,
            command=run.command,
            exit_status=run.exit_status,
            interval=run.interval,
            samples_missed=sum(node.samples.missed for node in nodes),
            versions=run.versions,
            nodes=tuple(node.samples.facts for node in nodes),
            ranks=tuple(facts for node in nodes for facts in node.rank_facts()),
            unknowns=tuple(sentence for node in nodes for sentence in node.unknowns()),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """What came since the last call. Samples and steps of all nodes are about in the order of time."""
        self._run = RunFile.read(self._directory)
        self._open_nodes()
        for node in self._nodes.values():
            node.read_ranks()
        interval = (self._run or self._run_without_file()).interval
        streams: list[Iterator[NodeSamples | Steps]] = []
        for node in self._nodes.values():
            streams += [node.samples.read(interval), node.steps.read()]
        yield from heapq.merge(*streams, key=_first_time)

    def _open_nodes(self) -> None:
        for folder in sorted(path for path in self._directory.iterdir() if path.is_dir()):
            if folder.name not in self._nodes and any(folder.glob("samples-*")):
                self._nodes[folder.name] = _Node(folder)

    def _run_without_file(self) -> RunFile:
        """What the parts say of the run where run.json is gone."""
        for node in self._nodes.values():
            if node.samples.metadata:
                values = node.samples.metadata
                return RunFile(values["run"] or self._directory.name, interval=values["interval"])
        return RunFile(self._directory.name)


def _check(directory: Path) -> None:
    if not directory.is_dir():
        raise UserError(f"{directory} is not a directory: give the directory of a recording")
    if not holds_recording(directory):
        raise UserError(
            f"{directory} is not a recording (no {RUN_FILE}, no samples): "
            "give the directory that `trainwatch run` wrote"
        )


def _first_time(chunk: NodeSamples | Steps) -> float:
    return float(chunk.times[0] if isinstance(chunk, NodeSamples) else chunk.starts[0])


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
            facts = _rank_facts(self.samples.facts.node, row, self.steps.lost(key))
            yield replace(facts, last_alive=self._last_alive.get(key))

    def unknowns(self) -> Iterator[str]:
        for stream in (self.samples.stream, self.steps.stream, self._ranks):
            yield from stream.unknowns()


class _Stream:
    """The rows of one table of one node, each once."""

    def __init__(self, folder: Path, table: str) -> None:
        self._folder = folder
        self._table = table
        self._finished = 0  # every piece up to this number has been read to its end
        self._rows_read = 0  # of the piece behind it
        self._journal: JournalReader | None = None
        self._torn: dict[int, int] = {}  # bytes by piece

    def tables(self) -> Iterator[pa.Table]:
        """The rows that came since the last call, a table a piece."""
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
        """The rows of the piece that were not read yet, and whether it is a part."""
        try:
            return self._read_as_listed(piece)
        except FileNotFoundError:  # it has become a part since, or was a journal without a row
            now = piece_now(self._folder, self._table, piece.number)
            return (None, True) if now is None else self._read_as_listed(now)

    def _read_as_listed(self, piece: Piece) -> tuple[pa.Table | None, bool]:
        if not piece.is_part:
            return self._read_journal(piece), False
        table = read_part(piece.path)
        self._torn[piece.number] = torn_bytes(table.schema)
        return table.slice(self._rows_read), True

    def _read_journal(self, piece: Piece) -> pa.Table | None:
        if self._journal is None:
            self._journal = JournalReader(piece.path)
        batches = self._journal.read()
        self._torn[piece.number] = self._journal.torn_bytes
        if not batches:
            return None
        table = pa.Table.from_batches(batches)
        self._rows_read += len(table)
        return table


class _Samples:
    """The samples of one node: rates from counters, positions of devices, missed ticks."""

    def __init__(self, folder: Path) -> None:
        self.stream = _Stream(folder, "samples")
        self.facts = NodeFacts(folder.name)
        self.metadata: dict[str, Any] = {}
        self.missed = 0
        self._last = np.full(3, nan)  # time, network bytes and disk bytes of the last row

    def read(self, interval: float) -> Iterator[NodeSamples]:
        for group in _groups(self.stream.tables(), "time", self._belongs):
            yield self._samples(group, interval)

    def _belongs(self, table: pa.Table, group: list[pa.Table]) -> bool:
        """Whether the table has the devices and columns of those before it, and fits into their chunk."""
        devices = _devices(group[0])
        values_in_row = 2 * (len(devices[0]) + len(devices[1])) + len(table.schema.names)
        rows = len(table) + sum(len(other) for other in group)
        same = devices == _devices(table) and table.schema.names == group[0].schema.names
        return same and rows * values_in_row <= CHUNK_VALUES

    def _samples(self, table: pa.Table, interval: float) -> NodeSamples:
        self.metadata = metadata_of(table.schema)
        cpus, gpus = _devices(table)
        self._learn(facts_from_json(self.metadata))
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
        """Adds what a part says of the node; devices keep the positions in which they were first seen."""
        known = {gpu.gpu: gpu for gpu in (*self.facts.gpus, *facts.gpus)}
        labels = grown(tuple(gpu.gpu for gpu in self.facts.gpus), [gpu.gpu for gpu in facts.gpus])
        cpus = grown(self.facts.cpus, facts.cpus)
        self.facts = replace(facts, cpus=cpus, gpus=tuple(known[label] for label in labels))

    def _rates(self, table: pa.Table, times: Times, interval: float) -> tuple[Times, Times]:
        """Bytes per second since the row before, NaN where there is none or a counter began anew."""
        received, sent = "network_receive_bytes_total", "network_transmit_bytes_total"
        network = _numbers(table, received) + _numbers(table, sent)
        disk = _numbers(table, "disk_read_bytes_total") + _numbers(table, "disk_written_bytes_total")
        rows = np.vstack([self._last, np.column_stack([times, network, disk])])
        self._last = rows[-1]
        change = np.diff(rows, axis=0)
        gaps = change[:, 0]
        ticks = np.rint(gaps[np.isfinite(gaps)] / interval)
        self.missed += int(np.maximum(ticks - 1, 0).sum())
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = change[:, 1:] / gaps[:, None]
        rates[(change[:, 1:] < 0) | ~(gaps[:, None] > 0)] = nan
        return rates[:, 0], rates[:, 1]


@dataclass
class _Counted:
    rows: int = 0
    highest: int = -1


class _Steps:
    """The finished steps of one node's ranks."""

    def __init__(self, folder: Path, samples: _Samples) -> None:
        self.stream = _Stream(folder, "steps")
        self._samples = samples
        self._counted: dict[tuple[_Process, str], _Counted] = {}  # by process and phase

    def lost(self, process: _Process) -> int:
        """How many steps of this process were counted without a record: gaps in the steps' numbers."""
        counted = (value for key, value in self._counted.items() if key[0] == process)
        return sum(value.highest + 1 - value.rows for value in counted)

    def read(self) -> Iterator[Steps]:
        for group in _groups(self.stream.tables(), "start", self._belongs):
            yield from self._steps(group)

    def _belongs(self, table: pa.Table, group: list[pa.Table]) -> bool:
        return len(table) + sum(len(other) for other in group) <= CHUNK_STEPS

    def _steps(self, table: pa.Table) -> Iterator[Steps]:
        phases = pc.index_in(table.column("phase"), pa.array(PHASES)).to_numpy().astype(np.uint8)
        numbers = table.column("number").to_numpy()
        ranks = table.column("rank").to_numpy()
        starts, durations = _numbers(table, "start"), _numbers(table, "duration")
        components = np.column_stack([_numbers(table, component) for component in COMPONENTS])
        self._count(table)
        for rank in np.unique(ranks):
            of_rank = ranks == rank
            yield Steps(
                node=self._samples.facts.node,
                rank=int(rank),
                numbers=numbers[of_rank],
                phases=phases[of_rank],
                starts=starts[of_rank],
                durations=durations[of_rank],
                components=components[of_rank],
            )

    def _count(self, table: pa.Table) -> None:
        """Notes how many steps of each process and phase there are, and the highest number of them."""
        keys = ["rank", "pid", "rank_start", "phase"]
        counts = table.group_by(keys).aggregate([("number", "count"), ("number", "max")])
        for row in counts.to_pylist():
            process = (row["rank"], row["pid"], row["rank_start"])
            counted = self._counted.setdefault((process, row["phase"]), _Counted())
            counted.rows += row["number_count"]
            counted.highest = max(counted.highest, row["number_max"])


def _groups(
    tables: Iterator[pa.Table], time: str, belongs: Callable[[pa.Table, list[pa.Table]], bool]
) -> Iterator[pa.Table]:
    """Joins small tables that follow each other, so that a chunk is large enough to be worth its overhead."""
    group: list[pa.Table] = []
    for table in tables:
        if group:
            near = table.column(time)[0].as_py() < group[0].column(time)[0].as_py() + CHUNK_SECONDS
            if not near or not belongs(table, group):
                yield _joined(group)
                group = []
        group.append(table)
    if group:
        yield _joined(group)


def _joined(group: list[pa.Table]) -> pa.Table:
    """One table with the metadata of the last, which knows most."""
    return pa.concat_tables(group).replace_schema_metadata(group[-1].schema.metadata)


def _numbers(table: pa.Table, name: str) -> Times:
    """(n,) a column of numbers."""
    values: Times = table.column(name).to_numpy()
    return values


def _devices(table: pa.Table) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The cores and the GPUs of a table's list columns."""
    values = metadata_of(table.schema)
    return tuple(values["cpus"]), tuple(gpu["gpu"] for gpu in values["gpus"])


def _matrix(table: pa.Table, name: str, devices: tuple[str, ...], wanted: tuple[str, ...]) -> NDArray[Any]:
    """(n, len(wanted)) a list column, one column a device; NaN for what the table does not have.

    That is devices which came later, and columns which an older Trainwatch did not write.
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


def _rank_facts(node: str, row: dict[str, Any], records_lost: int) -> RankFacts:
    ended = not row["alive"]
    return RankFacts(
        node=node,
        rank=row["rank"],
        pid=row["pid"],
        start=row["start"],
        first_step_start=row["first_step_start"],
        last_step_end=row["last_step_end"],
        end=row["end"],
        killed=ended and row["end"] is None,
        framework=row["framework"],
        framework_version=row["framework_version"],
        world_size=row["world_size"],
        phase_seconds={phase: row[f"{phase}_seconds"] for phase in PHASES_AND_MORE},
        component_seconds={component: row[f"{component}_seconds"] for component in COMPONENTS},
        steps={phase: row[f"{phase}_steps"] for phase in PHASES},
        records_lost=records_lost,
        loaders=tuple(_loaders(row)),
    )


_FETCHED = ("fetches", "fetch_seconds", "fetch_cpu_seconds", "fetch_core_wait_seconds")


def _loaders(row: dict[str, Any]) -> Iterator[Loader]:
    """The rank's loaders. Fetches are timed for a rank, not for a loader: they are given to its first one.

    Workers that time their fetches for a loader that nobody watches make one of which no more is known.
    """
    fetched = {name: row[name] for name in _FETCHED}
    unknown = {"phase": PHASES[0], "workers": None, "pin_memory": None, "prefetch_factor": None}
    for loader in row["loaders"] or ([unknown] if fetched["fetches"] else []):
        yield Loader(
            rank=row["rank"],
            phase=loader["phase"],
            workers=loader["workers"],
            pin_memory=loader["pin_memory"],
            prefetch_factor=loader["prefetch_factor"],
            batch_size=loader.get("batch_size"),  # an older Trainwatch did not write it
            **fetched,
        )
        fetched = {}
