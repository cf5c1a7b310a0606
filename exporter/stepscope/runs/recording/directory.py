"""Reads a recording directory: once after the run, or repeatedly while it is being written.

Each row is returned exactly once, from the journal of the open minute or from the part that the journal
becomes: a part holds its journal's rows in the same order.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stepscope.common.errors import UserError
from stepscope.exporter.sampling.sample import EVIDENCE, NODE_QUANTITIES
from stepscope.runs.gauge_history import GaugeHistory, GrowingHistory
from stepscope.runs.malformed import MALFORMED, DamageError, finite
from stepscope.runs.model import (
    COMPONENTS,
    GPU_READINGS,
    PHASES,
    TRAFFIC,
    Floats,
    Gap,
    Loader,
    NodeFacts,
    NodeSamples,
    ProfileWindow,
    PythonWindow,
    RankFacts,
    RunFacts,
    Source,
    Stay,
    Steps,
    ThreadTime,
    TimedEvent,
    Times,
    in_time_order,
)
from stepscope.runs.recording.files import (
    RUN_FILE,
    Piece,
    RunFile,
    folders,
    holds_pieces,
    holds_recording,
    piece_now,
    pieces,
    read_part,
    read_stacks,
)
from stepscope.runs.recording.gaps import Gaps
from stepscope.runs.recording.journal import JournalReader
from stepscope.runs.recording.lines import NAME as LINES
from stepscope.runs.recording.lines import read_lines
from stepscope.runs.recording.schema import (
    EVIDENCE_COLUMN,
    FETCH_COLUMNS,
    HEADER_COLUMNS,
    KEEP_LAST_BY,
    LOADER_COLUMNS,
    MOMENT_COLUMNS,
    NEIGHBOURS_COLUMN,
    PAUSE_COLUMNS,
    PHASES_AND_MORE,
    PRESSURE_COLUMNS,
    RUN_COLUMNS,
    WORKER_COLUMNS,
    facts_of,
    grown,
    metadata_of,
)
from stepscope.runs.recording.windows import holds_traces, read_python_windows, read_windows
from stepscope.runs.traces.source import KinetoTraces
from stepscope.training.window_files import IN_RECORDING

CHUNK_VALUES = 2_000_000  # values in a chunk of samples: at most 16 MB
CHUNK_STEPS = 100_000
END_SECONDS = 5.0  # a recording that ends earlier before the end of its run lacks samples
RANKS_PAUSE = 90.0  # seconds; a part has the totals of a minute
CHUNK_SECONDS = 600.0  # so that samples and steps of the same time are near each other


class RecordingDirectory(Source):
    """The recording in `directory`. Raises UserError if there is none, or it has another format.

    Damaged files are left out; the facts list them among the gaps.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise UserError(f"{directory} is not a directory: give the directory of a recording")
        if not holds_recording(directory):
            raise UserError(
                f"{directory} is not a recording (no {RUN_FILE}, no samples): "
                "give the directory that `stepscope run` wrote"
            )
        self._directory = directory
        self._nodes: dict[str, _Node] = {}
        self._read_run()
        self._open_nodes()
        if self._run_gaps and not self._nodes:
            raise UserError(f"{directory}: {self._run_gaps[0].reason}, and nothing else was recorded there")

    @property
    def facts(self) -> RunFacts:
        nodes = list(self._nodes.values())
        run = self._run or self._run_without_file()
        return RunFacts(
            **vars(run),
            nodes=tuple(node.samples.facts for node in nodes),
            ranks=tuple(facts for node in nodes for facts in node.rank_facts()),
            threads=tuple(thread for node in nodes for thread in node.threads),
            unknowns=tuple(node.lines_damage for node in nodes if node.lines_damage),
            gaps=(*self._run_gaps, *(gap for node in nodes for gap in node.gaps(run))),
            stacks=read_stacks(self._directory),
            windows=read_windows(self._directory),
            gauges=tuple(history for node in nodes for history in node.gauge_histories()),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """Yields the data since the last call; all nodes are roughly in time order."""
        self._read_run()
        self._open_nodes()
        profiled = _profiled(read_windows(self._directory))
        for node in self._nodes.values():
            node.read_ranks()
            node.read_gauges()
            node.read_lines()
            node.steps.profiled = profiled
        interval = (self._run or self._run_without_file()).interval
        streams: list[Iterator[NodeSamples | Steps]] = []
        for node in self._nodes.values():
            streams += [node.samples.read(interval), node.steps.read()]
        yield from in_time_order(streams)

    def traces(self) -> Source | None:
        return KinetoTraces(self._directory / IN_RECORDING) if holds_traces(self._directory) else None

    def python_windows(self) -> Iterator[PythonWindow | UserError]:
        yield from read_python_windows(self._directory)

    def events(self) -> Iterator[TimedEvent]:
        if holds_traces(self._directory):
            yield from KinetoTraces(self._directory / IN_RECORDING).events(self.facts)

    def _read_run(self) -> None:
        self._run_gaps: list[Gap] = []
        self._run: RunFile | None
        try:
            self._run = RunFile.read(self._directory)
        except DamageError as error:
            self._run = None
            self._run_gaps.append(Gap("run", f"`{RUN_FILE}` was left out: {error}"))
        else:
            if self._run is None:
                self._run_gaps.append(Gap("run", f"`{RUN_FILE}` is missing"))

    def _open_nodes(self) -> None:
        for folder in folders(self._directory):
            if folder.name not in self._nodes and holds_pieces(folder):
                self._nodes[folder.name] = _Node(folder)

    def _run_without_file(self) -> RunFile:
        """Returns what the parts contain about the run, if run.json is gone."""
        parts = (node.samples.metadata for node in self._nodes.values() if node.samples.metadata)
        values: dict[str, Any] = next(parts, {})
        name, interval = values.get("run"), values.get("interval", RunFile.interval)
        return RunFile(name or self._directory.name, interval=interval, run=name or "")


Spans = dict[tuple[int, int], list[tuple[float, float]]]  # by rank and process

_Process = tuple[int, int, float]  # rank, pid and start: a rank may have had several processes


class _Node:
    """The four tables of one node's folder, and its line samples."""

    def __init__(self, folder: Path) -> None:
        self.threads: tuple[ThreadTime, ...] = ()
        self.lines_damage = ""  # a sentence
        self._folder = folder
        self.samples = _Samples(folder)
        self.steps = _Steps(folder, self.samples)
        self._ranks = _Stream(folder, "ranks")
        self._gauges = _Stream(folder, "gauges")
        self._histories: dict[tuple[_Process, str], GrowingHistory] = {}  # by gauge
        self._rows: dict[_Process, dict[str, Any]] = {}
        self._last_alive: dict[_Process, float] = {}
        self._stays: dict[_Process, dict[float, Stay]] = {}  # by when they began for the process

    def read_ranks(self) -> None:
        for table in self._ranks.tables():
            times = _numbers(table, "time")
            last = self._ranks.gaps.last
            beyond_a_part = last is not None and times[0] - last > RANKS_PAUSE
            self._ranks.gaps.resume(times[0], None if beyond_a_part else 0)
            self._ranks.gaps.last = times[-1]
            for row in table.to_pylist():
                key = row["rank"], row["pid"], row["start"]
                # `stepscope run` writes the last row, and only the exporter knows the pauses.
                known = {name: self._rows.get(key, {}).get(name) for name in PAUSE_COLUMNS}
                self._rows[key] = row | {
                    name: known[name] for name in known if row[name] is None and known[name] is not None
                }
                if row["alive"]:
                    self._last_alive[key] = row["time"]
                if row["component_since"] is not None:
                    self._stays.setdefault(key, {})[row["component_since"]] = _stay(row)

    def read_gauges(self) -> None:
        columns = ["rank", "pid", "rank_start", "name"]
        for table in self._gauges.tables():
            times = _numbers(table, "time")
            self._gauges.gaps.resume(times[0], None)
            self._gauges.gaps.last = times[-1]
            groups = table.group_by(columns, use_threads=False)
            for row in groups.aggregate([("time", "list"), ("value", "list")]).to_pylist():
                key = (row["rank"], row["pid"], row["rank_start"]), row["name"]
                self._histories.setdefault(key, GrowingHistory()).add(row["time_list"], row["value_list"])

    def gauge_histories(self) -> Iterator[GaugeHistory]:
        for (process, name), history in sorted(self._histories.items(), key=lambda each: each[0]):
            yield GaugeHistory(self.samples.facts.node, *process, name, history.times, history.values)

    def read_lines(self) -> None:
        try:
            self.threads, self.lines_damage = read_lines(self._folder, self.samples.facts.node), ""
        except DamageError as error:
            self.lines_damage = f"`{self._folder.name}/{LINES}` was left out: {error}."

    def rank_facts(self) -> Iterator[RankFacts]:
        for key, row in sorted(self._rows.items()):
            lost = self.steps.lost(key) + self.steps.lost_at_end(key, row)
            last_alive = self._last_alive.get(key)
            stays = tuple(self._stays.get(key, {}).values())
            yield _rank_facts(self.samples.facts.node, row, lost, last_alive, stays)

    def gaps(self, run: RunFile) -> list[Gap]:
        """Returns what is missing from this node's tables."""
        lost = sum(self.steps.lost_at_end(key, row) for key, row in self._rows.items())
        return [
            replace(gap, node=self.samples.facts.node)
            for gap in (
                *self.samples.gaps(run),
                *self.steps.stream.gaps_so_far(lost),
                *self._ranks.gaps_so_far(),
                *self._gauges.gaps_so_far(),
                *_refused(self.samples.metadata),
            )
        ]


class _Stream:
    """Reads the rows of one table of one node, each once."""

    def __init__(self, folder: Path, table: str) -> None:
        self.gaps = Gaps(folder.name, table)
        self._folder = folder
        self._table = table
        self._finished = 0  # every piece up to this number has been read to its end
        self._rows_read = 0  # of the next piece
        self._journal: JournalReader | None = None
        self._torn = ""  # bytes after the last whole row of the open journal

    def tables(self) -> Iterator[pa.Table]:
        """Yields the rows since the last call, one table per piece.

        The caller ends the gap before a table, with `gaps.resume`, before it takes the next one.
        """
        listed = pieces(self._folder, self._table, self._finished)
        for piece in listed:
            if self._finished + 1 < piece.number:
                first, last = self._finished + 1, piece.number - 1  # removed, or they never had a row
                names = " to ".join(map(self._name, dict.fromkeys((first, last))))
                self.gaps.lose(f"{names} {'is' if first == last else 'are'} missing", certain=False)
            table, unread, is_part = self._read(piece)
            name = self._name(piece.number)
            torn = f"{unread} bytes of {name} are damaged or incomplete" if unread else ""
            if table is not None and len(table):
                if loss := metadata_of(table.schema).get("lost"):  # rows before this piece
                    self.gaps.lose(f"they were not recorded: {loss['why']}", certain=False)
                yield table
            if is_part or piece is not listed[-1]:  # a journal is closed before the next one is opened
                self._finished = piece.number
                self._rows_read = 0
                self._journal = None
                if torn:
                    self.gaps.lose(torn)
                self._torn = ""
            else:
                self._finished = piece.number - 1
                self._torn = torn

    def gaps_so_far(self, missing: int = 0) -> list[Gap]:
        """Returns all gaps; `missing` rows are known to follow the last one."""
        return self.gaps.so_far(missing or None, self._torn)

    def _name(self, number: int) -> str:
        return f"`{self._folder.name}/{self._table}-{number:06d}`"

    def _read(self, piece: Piece) -> tuple[pa.Table | None, int, bool]:
        """Returns the unread rows of the piece, its bytes that hold no row, and whether it is a part."""
        try:
            if not piece.is_part:
                self._journal = self._journal or JournalReader(piece.path)
                batches = self._journal.read()
                self._rows_read += sum(map(len, batches))
                rows = pa.Table.from_batches(batches) if batches else None
                return rows, self._journal.unread_bytes, False
            table = read_part(piece)
        except FileNotFoundError:  # it has become a part since, or was a journal without a row
            now = piece_now(self._folder, self._table, piece.number)
            return (None, 0, True) if now is None else self._read(now)
        except DamageError as error:
            self.gaps.lose(f"`{self._folder.name}/{piece.path.name}` was left out: {error}")
            return None, 0, True
        # Rows that updated others are fewer than in the journal. To read those again changes nothing.
        known = 0 if self._table in KEEP_LAST_BY else self._rows_read
        return table.slice(known), metadata_of(table.schema).get("torn_bytes", 0), True


class _Samples:
    """Reads the samples of one node: rates from counters, positions of devices, missed ticks."""

    def __init__(self, folder: Path) -> None:
        self.stream = _Stream(folder, "samples")
        self.facts = NodeFacts(folder.name)
        self.metadata: dict[str, Any] = {}
        self._last = np.full(1 + len(TRAFFIC), nan)  # time, and counters of the last row

    def read(self, interval: float) -> Iterator[NodeSamples]:
        def belongs(table: pa.Table, group: list[pa.Table], rows: int) -> bool:
            """Returns whether the table has the devices and columns of the group, follows it, and fits."""
            devices = _devices(table)
            same = devices == _devices(group[0]) and table.schema.names == group[0].schema.names
            # A restarted exporter begins earlier than the one before it ended, if its clock was set back.
            follows = _numbers(table, "time")[0] > _numbers(group[-1], "time")[-1]
            return (
                same
                and follows
                and rows * (2 * sum(map(len, devices)) + len(table.schema.names)) <= CHUNK_VALUES
            )

        for group in _groups(self._watched(interval), "time", belongs):
            yield self._samples(group)

    def gaps(self, run: RunFile) -> list[Gap]:
        """Returns what is missing, also between the last sample and the end of the run."""
        last, missing = self.stream.gaps.last, 0
        if run.end is not None and last is not None and run.end - last > END_SECONDS:
            missing = round((run.end - last) / run.interval)
        return self.stream.gaps_so_far(missing)

    def _watched(self, interval: float) -> Iterator[pa.Table]:
        """Yields the tables, and notes the samples that are missing between their rows."""
        gaps = self.stream.gaps
        for table in self.stream.tables():
            times = _numbers(table, "time")
            ticks = np.maximum(np.rint(np.diff(times) / interval) - 1, 0)
            first, before = float(times[0]), None
            if gaps.last is not None:
                before = max(round((first - gaps.last) / interval) - 1, 0)
            gaps.resume(first, before)
            for row in np.flatnonzero(ticks):
                gaps.pause(float(times[row]), float(times[row + 1]), int(ticks[row]))
            gaps.last = float(times[-1])
            yield table

    def _samples(self, table: pa.Table) -> NodeSamples:
        self.metadata = metadata_of(table.schema)
        cpus, gpus = _devices(table)
        neighbours = tuple(table.column(NEIGHBOURS_COLUMN)[-1].as_py() or ()) or self.facts.neighbours
        self._learn(replace(facts_of(self.metadata), neighbours=neighbours))
        all_gpus = tuple(gpu.gpu for gpu in self.facts.gpus)

        of_others = [cpu not in own for cpu in self.facts.cpus] if (own := self.facts.run_cpus) else []

        def per_cpu(name: str) -> Floats:
            values = _matrix(table, name, cpus, self.facts.cpus)
            if any(of_others):  # a run is judged by the cores that it may use
                values = np.where(of_others, np.float32(nan), values)
            return values

        evidence = self._evidence(table, gpus)

        def per_gpu(name: str) -> NDArray[Any]:
            values = _matrix(table, name, gpus, all_gpus)
            return np.where(evidence == 0, values.dtype.type(nan), values)  # a run is judged by its own GPUs

        times = _numbers(table, "time")
        with np.errstate(divide="ignore", invalid="ignore"):
            gpu_memory = per_gpu("gpu_memory_used_bytes") / per_gpu("gpu_memory_total_bytes")
            memory = _numbers(table, "memory_used_bytes") / _numbers(table, "memory_total_bytes")
        return NodeSamples(
            node=self.facts.node,
            times=times,
            cpu=per_cpu("cpu_utilization_ratio"),
            io_wait=per_cpu("cpu_io_wait_ratio"),
            gpu=per_gpu("gpu_utilization_ratio"),
            gpu_memory=gpu_memory.astype(np.float32),
            memory=memory.astype(np.float32),
            traffic=self._rates(table, times),
            **{name: per_gpu(reading.column) for name, reading in GPU_READINGS.items()},
            run_use=np.column_stack([_numbers(table, name) for name in (*RUN_COLUMNS, *PRESSURE_COLUMNS)]),
        )

    def _learn(self, facts: NodeFacts) -> None:
        """Updates the facts of the node; devices keep the positions in which they were first seen."""
        evidence = {gpu.gpu: gpu.by for gpu in self.facts.gpus}
        learned = (replace(gpu, by=evidence.get(gpu.gpu)) for gpu in facts.gpus)
        known = {gpu.gpu: gpu for gpu in (*self.facts.gpus, *learned)}
        labels = grown(tuple(gpu.gpu for gpu in self.facts.gpus), [gpu.gpu for gpu in facts.gpus])
        cpus = grown(self.facts.cpus, facts.cpus)
        self.facts = replace(facts, cpus=cpus, gpus=tuple(known[label] for label in labels))

    def _evidence(self, table: pa.Table, gpus: tuple[str, ...]) -> NDArray[Any]:
        """Returns (n, GPUs) places in EVIDENCE, 0 for GPUs that are not the run's, NaN if not recorded.

        A run is alone on its node until its processes are on a GPU: then all others were never its own.
        """
        evidence = _matrix(table, EVIDENCE_COLUMN, gpus, tuple(gpu.gpu for gpu in self.facts.gpus))
        known = [-1 if gpu.by is None else EVIDENCE.index(gpu.by) for gpu in self.facts.gpus]
        strongest = np.fmax(np.fmax.reduce(evidence, axis=0, initial=-1), known)
        node = EVIDENCE.index("node")
        if (strongest > node).any():
            strongest[strongest == node] = 0
            evidence = np.where(strongest == 0, np.float32(0), evidence)
        self.facts = replace(
            self.facts,
            gpus=tuple(
                replace(gpu, by=None if place < 0 else EVIDENCE[int(place)])
                for gpu, place in zip(self.facts.gpus, strongest, strict=True)
            ),
        )
        return evidence

    def _rates(self, table: pa.Table, times: Times) -> Times:
        """Returns (n, len(TRAFFIC)) rates since the previous row, NaN without one and after a restart."""
        counters = [_numbers(table, NODE_QUANTITIES[name].column) for name in TRAFFIC]
        rows = np.vstack([self._last, np.column_stack([times, *counters])])
        self._last = rows[-1]
        change = np.diff(rows, axis=0)
        gaps = change[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            rates: Times = change[:, 1:] / gaps[:, None]
        rates[(change[:, 1:] < 0) | ~(gaps[:, None] > 0)] = nan
        return rates


class _Steps:
    """Reads the finished steps of one node's ranks."""

    def __init__(self, folder: Path, samples: _Samples) -> None:
        self.stream = _Stream(folder, "steps")
        self._samples = samples
        self.profiled: Spans = {}
        self._counted: dict[tuple[_Process, str], tuple[int, int]] = {}  # rows, highest number + 1

    def lost(self, process: _Process) -> int:
        """Returns how many steps of this process have no record: gaps in the steps' numbers."""
        return sum(end - rows for (key, _), (rows, end) in self._counted.items() if key == process)

    def lost_at_end(self, process: _Process, totals: dict[str, Any]) -> int:
        """Returns how many steps of an ended process follow its last recorded one, by its totals."""
        if totals["alive"]:
            return 0
        ends = (
            (totals[f"{phase}_steps"], self._counted.get((process, phase), (0, 0))[1]) for phase in PHASES
        )
        return sum(max(total - end, 0) for total, end in ends)

    def read(self) -> Iterator[Steps]:
        for group in _groups(self._watched(), "start", lambda _, __, rows: rows <= CHUNK_STEPS):
            yield from self._steps(group)

    def _watched(self) -> Iterator[pa.Table]:
        """Yields the tables, and notes the steps that are missing before or between their rows."""
        gaps = self.stream.gaps
        for table in self.stream.tables():
            starts = _numbers(table, "start")
            gaps.resume(float(starts[0]), self._count(table))
            gaps.last = float(starts[-1]) + float(table.column("duration")[-1].as_py())
            yield table

    def _steps(self, table: pa.Table) -> Iterator[Steps]:
        ranks = table.column("rank").to_numpy()
        steps = Steps(
            node=self._samples.facts.node,
            rank=-1,
            numbers=table.column("number").to_numpy(),
            phases=pc.index_in(table.column("phase"), pa.array(PHASES)).to_numpy().astype(np.uint8),
            starts=_numbers(table, "start"),
            durations=_numbers(table, "duration"),
            components=np.column_stack([_numbers(table, component) for component in COMPONENTS]),
            profiled=self._in_windows(table),
        )
        for rank in np.unique(ranks):
            yield replace(steps[ranks == rank], rank=int(rank))

    def _in_windows(self, table: pa.Table) -> NDArray[np.bool_]:
        """Returns (n,) which training steps are in a profile window."""
        numbers, found = table.column("number").to_numpy(), np.zeros(len(table), np.bool_)
        for (rank, pid), spans in self.profiled.items():
            of_rank = (table.column("rank").to_numpy() == rank) & (table.column("pid").to_numpy() == pid)
            for first, last in spans:
                found |= of_rank & (numbers >= first) & (numbers <= last)
        found &= pc.equal(table.column("phase"), "train").to_numpy()
        return found

    def _count(self, table: pa.Table) -> int:
        """Counts the steps per process and phase. Returns how many are missing, by their numbers."""
        keys = ["rank", "pid", "rank_start", "phase"]
        counts = table.group_by(keys).aggregate([("number", "count"), ("number", "max")])
        missing = 0
        for row in counts.to_pylist():
            key = (row["rank"], row["pid"], row["rank_start"]), row["phase"]
            rows, end = self._counted.get(key, (0, 0))
            new_end = max(end, row["number_max"] + 1)
            missing += max(new_end - end - row["number_count"], 0)
            self._counted[key] = rows + row["number_count"], new_end
        return missing


def _profiled(windows: Iterable[ProfileWindow]) -> Spans:
    """Returns the first and last steps of windows, by rank and process."""
    spans: Spans = {}
    for window in windows:
        if window.state not in ("skipped", "failed"):
            last = inf if window.last is None else window.last
            spans.setdefault((window.rank, window.pid), []).append((window.first, last))
    return spans


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

    NaN for devices that were added later.
    """
    if not devices:
        return np.full((len(table), len(wanted)), nan, dtype=np.float32)
    column = table.column(name).combine_chunks()
    values: NDArray[Any] = column.flatten().to_numpy().reshape(len(table), len(devices))
    if devices == wanted:
        return values
    placed = np.full((len(table), len(wanted)), nan, dtype=values.dtype)
    placed[:, [wanted.index(device) for device in devices]] = values
    return placed


def _rank_facts(
    node: str, row: dict[str, Any], records_lost: int, last_alive: float | None, stays: tuple[Stay, ...]
) -> RankFacts:
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
        paused_seconds={
            reason: row[column] for column, reason in PAUSE_COLUMNS.items() if row[column] is not None
        },
        stays=stays,
        gauges=dict(row["gauges"] or ()),
        counts=dict(row["counts"] or ()),
        attempt=row["attempt"] or 0,
    )


def _refused(metadata: dict[str, Any]) -> Iterator[Gap]:
    """Yields what is missing because ledgers were refused, as the writer noted it."""
    with suppress(*MALFORMED):
        for each in metadata.get("refused", ()):
            reason = f"the ledger of rank {each['rank']} of {each['run']} was refused: {each['why']}"
            yield Gap("ranks", reason, start=finite(each["time"]))


def _stay(row: dict[str, Any]) -> Stay:
    component, operation, state = (row[name] or "" for name in ("component", "operation", "state"))
    return Stay(component, operation, row["time"] - row["stay_seconds"], row["time"], state)


def _loaders(row: dict[str, Any]) -> Iterator[Loader]:
    """Yields the rank's loaders. Fetches are timed per rank, not per loader: its first loader gets them.

    If workers time their fetches for a loader that is not watched, a loader without settings gets them.
    """
    fetched = {name: row[name] for name in (*FETCH_COLUMNS, *WORKER_COLUMNS)}
    fetched["fetch_counts"] = tuple(count or 0 for count in fetched["fetch_counts"] or ())
    for loader in row["loaders"] or ([{"phase": PHASES[0]}] if fetched["fetches"] else []):
        settings = {name: loader.get(name) for name in LOADER_COLUMNS}
        yield Loader(rank=row["rank"], **settings, **fetched)
        fetched = {}
