"""Reads Debugger's system metrics: files of JSON lines, one reading per line, about 110 bytes each.

    {"Type":"cpu","Name":"cpu5","Dimension":"CPUUtilization","Value":1.36,"NodeId":"algo-1","Timestamp":1.5e9}

All lines of a block usually have the same fields in the same order. Then replacing each colon by a comma
turns a block into comma-separated values, and a CSV reader is several times faster than a JSON parser. If
each column of field names contains only one name, that proves the order. A block in which anything is
different is read line by line, so that an error can name its line.

Debugger gives each reading of a sample its own time, and readings may be written in any order within
HOLD_BACK: a sample is returned only when no further reading of it can follow. Samples depend on the readings
and their order alone, not on the blocks in which they were read.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

from stepscope.common.errors import UserError
from stepscope.runs.debugger.files import natural
from stepscope.runs.malformed import LATEST, MALFORMED, finite, moment
from stepscope.runs.model import GpuFacts, NodeFacts, NodeSamples

BLOCK_BYTES = 8 << 20
SAMPLE = 20_000  # microseconds from the first reading of a sample to its last
HOLD_BACK = 120_000_000  # microseconds: a file contains a minute, in any order
GAP_UNIT = 0.01  # seconds: the resolution at which gaps between samples are counted

Metric = tuple[str, str]  # dimension and name, as ("CPUUtilization", "cpu5")
Integers = NDArray[np.int64]
Numbers = NDArray[np.float64]

# One reading per core or GPU.
CPU, IO_WAIT = "CPUUtilization", "I/OWaitPercentage"
GPU, GPU_MEMORY = "GPUUtilization", "GPUMemoryUtilization"
# One reading per node; the dimension is empty, or says whose network traffic it is.
MEMORY = ("", "MemoryUsedPercent")
TRAFFIC = (  # in the order of NodeSamples.traffic
    ("Algorithm", "ReceiveBytesPerSecond"),
    ("Algorithm", "TransmitBytesPerSecond"),
    ("", "ReadThroughputInBytesPerSecond"),
    ("", "WriteThroughputInBytesPerSecond"),
    ("", "IOPS"),
)
# No rule uses SageMaker's own traffic.
NOT_USED = {
    ("Platform", "ReceiveBytesPerSecond"),
    ("Platform", "TransmitBytesPerSecond"),
}
_OF_NODE = {MEMORY, *TRAFFIC}
_NEEDED = ("Name", "Dimension", "Value", "NodeId", "Timestamp")
_NUMBERS = ("Value", "Timestamp")
_COLONS_TO_COMMAS = bytes.maketrans(b":", b",")
_WORDS = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class Readings:
    """n readings of one node in the order in which they were written."""

    metrics: list[Metric]
    metric: Integers  # (n,) index into metrics
    values: Numbers  # (n,) as Debugger has them: percent, or bytes per second
    times: Integers  # (n,) microseconds since the epoch


def read_readings(
    path: Path, node: str, truncated: Callable[[Path], None], progress: Callable[[int], None]
) -> Iterator[Readings]:
    """Yields the readings of one file, one block at a time; `progress` gets the bytes of each block.

    A last line that cannot be parsed is a half-written file, which `truncated` gets. Raises UserError if
    another line is corrupt, or a reading is of another node than the one in the file's name.
    """
    for block, first_line, is_last_line in _blocks(path):
        progress(len(block))
        readings = None if is_last_line else _from_columns(block, node)
        readings = readings or _from_lines(block, path, node, first_line, is_last_line)
        if readings is None:
            truncated(path)
        else:
            yield readings


def _blocks(path: Path) -> Iterator[tuple[bytes, int, bool]]:
    """Yields whole lines, the number of the first of them, and whether they are only the file's last line."""
    rest, line = b"", 1
    with open(path, "rb") as file:
        while data := file.read(BLOCK_BYTES):
            rest += data
            cut = rest.rstrip().rfind(b"\n") + 1
            if cut:
                block, rest = rest[:cut], rest[cut:]
                yield block, line, False
                line += _lines(block)
    if rest.strip():
        yield rest, line, True


def _from_columns(block: bytes, node: str) -> Readings | None:
    """Reads the block as a table; None if its lines differ in form, or if a reading is wrong."""
    table = _table(block)
    if table is None or _words(table, "NodeId")[1] != [node]:
        return None
    values, times = (table.column(column).to_numpy() for column in _NUMBERS)
    if not (np.isfinite(values).all() and ((times >= 0.0) & (times < LATEST)).all()):
        return None
    dimension, dimensions = _words(table, "Dimension")
    name, names = _words(table, "Name")
    pairs = dimension * len(names) + name
    used = np.flatnonzero(np.bincount(pairs, minlength=len(dimensions) * len(names)))
    place_of = np.zeros(len(dimensions) * len(names), np.int64)
    place_of[used] = np.arange(len(used))
    metrics = [(dimensions[pair // len(names)], names[pair % len(names)]) for pair in used.tolist()]
    return Readings(metrics, place_of[pairs], values, _microseconds(times))


def _table(block: bytes) -> pa.Table | None:
    """Returns the block's columns, None if its lines differ in form."""
    try:
        fields = list(json.loads(block[: block.index(b"\n")]))
    except MALFORMED:
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
    """Counts line ends; numpy does it several times faster than bytes.count."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))


def _words(table: pa.Table, column: str) -> tuple[Integers, list[str]]:
    """Returns the indices and the dictionary of a column of words."""
    array = table.column(column).combine_chunks()
    return array.indices.to_numpy().astype(np.int64), array.dictionary.to_pylist()


def _from_lines(block: bytes, path: Path, node: str, first_line: int, is_last_line: bool) -> Readings | None:
    """Reads line by line, which is slow but names a wrong line; None for a last line that is cut off."""
    index: dict[Metric, int] = {}
    rows = []
    for number, line in enumerate(block.split(b"\n"), first_line):
        if not line.strip():
            continue
        try:
            reading = json.loads(line)
            metric, value, time = _checked(reading)
        except MALFORMED as error:
            if is_last_line:
                return None
            raise UserError(
                f"{path}, line {number}: {_why(error)}; copy the file again, or remove the line"
            ) from error
        if reading["NodeId"] != node:
            raise UserError(
                f"{path}, line {number}: a reading of node {reading['NodeId']} in a file named for {node}; "
                "give each node its own files"
            )
        rows.append((index.setdefault(metric, len(index)), value, time))
    columns = np.array(rows, float).reshape(-1, 3)
    return Readings(list(index), columns[:, 0].astype(np.int64), columns[:, 1], _microseconds(columns[:, 2]))


def _checked(reading: Any) -> tuple[Metric, float, float]:
    """Returns metric, value and time of a line. Raises ValueError, TypeError or KeyError if one is wrong."""
    if not isinstance(reading, dict):
        raise ValueError("not a JSON object")
    value, time = finite(reading["Value"]), moment(reading["Timestamp"])
    if not isinstance(reading["NodeId"], str):
        raise ValueError("NodeId is not a name")
    return (str(reading["Dimension"] or ""), str(reading.get("Name") or "")), value, time


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "not JSON"
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)


def _microseconds(seconds: Numbers) -> Integers:
    return np.rint(seconds * 1e6).astype(np.int64)


class SampleBuilder:
    """Groups the readings of one node into samples, and returns these in time order."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.late = 0  # readings that came more than HOLD_BACK after later ones
        self.first: float | None = None  # when the first and the last sample was taken
        self.last: float | None = None
        self.gaps: Counter[int] = Counter()  # between samples, in GAP_UNIT
        self._metrics: dict[Metric, int] = {}
        self._cores: list[str] = []
        self._gpus: list[str] = []
        self._placed = 0  # metrics whose core or GPU has its column
        self._newest = np.iinfo(np.int64).min
        self._metric = np.empty(0, np.int64)  # the readings held back, in time order
        self._values = np.empty(0, np.float64)
        self._times = np.empty(0, np.int64)

    @property
    def facts(self) -> NodeFacts:
        gpus = tuple(GpuFacts(_label(name, "gpu")) for name in self._gpus)
        return NodeFacts(self.node, tuple(_label(name, "cpu") for name in self._cores), gpus)

    def unknowns(self) -> Iterator[str]:
        """Yields sentences about readings that were not used."""
        known = {CPU, IO_WAIT, GPU, GPU_MEMORY}
        used_not = (m for m in self._metrics if m[0] not in known and m not in _OF_NODE | NOT_USED)
        for name in sorted(" ".join(metric).strip() for metric in used_not):
            yield f"Readings of {name} on {self.node} were not used: no rule knows them."
        if self.late:
            yield (
                f"{self.late} readings of {self.node} were written more than {HOLD_BACK // 1_000_000} s "
                "after later ones and were not used."
            )

    def add(self, readings: Readings) -> NodeSamples | None:
        """Returns the samples that these readings complete, None if there is none."""
        self._hold(readings)
        return self._complete(int(self._newest) - HOLD_BACK)

    def rest(self) -> NodeSamples | None:
        """Returns the remaining samples, when there are no further readings."""
        return self._complete(np.iinfo(np.int64).max)

    def _hold(self, readings: Readings) -> None:
        ids = [self._metrics.setdefault(metric, len(self._metrics)) for metric in readings.metrics]
        times, values = readings.times, readings.values
        metric = np.array(ids, np.int64)[readings.metric]
        newest = np.maximum.accumulate(np.concatenate(([self._newest], times)))
        self._newest = newest[-1]
        late = times < newest[1:] - HOLD_BACK
        if late.any():
            self.late += int(np.count_nonzero(late))
            times, values, metric = times[~late], values[~late], metric[~late]
        times = np.concatenate((self._times, times))
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        self._values = np.concatenate((self._values, values))[order]
        self._metric = np.concatenate((self._metric, metric))[order]

    def _complete(self, limit: int) -> NodeSamples | None:
        """Returns the samples that ended before `limit` (microseconds since the epoch)."""
        starts = _sample_starts(self._times)
        count = int(np.count_nonzero(self._times[starts] < limit - SAMPLE))
        if not count:
            return None
        end = len(self._times) if count == len(starts) else int(starts[count])
        row = np.repeat(np.arange(count), np.diff(np.append(starts[:count], end)))
        self._place_devices(self._metric[:end], row)
        table = np.full((count, len(self._metrics) + 1), nan)  # the last column stays NaN: without a metric
        table[row, self._metric[:end]] = self._values[:end]
        times = self._times[starts[:count]] / 1e6
        self._times, self._values, self._metric = self._times[end:], self._values[end:], self._metric[end:]
        gaps = np.diff(times, prepend=times[0] if self.last is None else self.last)
        self.gaps.update(np.rint(gaps[gaps > 0] / GAP_UNIT).astype(np.int64).tolist())
        self.first = float(times[0]) if self.first is None else self.first
        self.last = float(times[-1])
        return self._samples(times, table)

    def _place_devices(self, metric: Integers, row: Integers) -> None:
        """Gives each new core and GPU a column: by their first samples, then by their numbers."""
        if self._placed == len(self._metrics):
            return
        names = list(self._metrics)
        used, first = np.unique(metric, return_index=True)
        first_rows = zip(row[first].tolist(), used.tolist(), strict=True)
        new = sorted((first_row, natural(names[index][1]), names[index]) for first_row, index in first_rows)
        devices = {CPU: self._cores, IO_WAIT: self._cores, GPU: self._gpus, GPU_MEMORY: self._gpus}
        for _, _, (dimension, name) in new:
            if dimension in devices and name not in devices[dimension]:
                devices[dimension].append(name)
        if len(used) == len(self._metrics):
            self._placed = len(self._metrics)

    def _samples(self, times: Numbers, table: Numbers) -> NodeSamples:
        def columns(*metrics: Metric) -> Numbers:
            found: Numbers = table[:, [self._metrics.get(metric, -1) for metric in metrics]]
            return found

        def ratios(dimension: str, devices: list[str]) -> NDArray[np.float32]:
            return (columns(*((dimension, name) for name in devices)) / 100).astype(np.float32)

        return NodeSamples(
            node=self.node,
            times=times,
            cpu=ratios(CPU, self._cores),
            io_wait=ratios(IO_WAIT, self._cores),
            gpu=ratios(GPU, self._gpus),
            gpu_memory=ratios(GPU_MEMORY, self._gpus),
            memory=(columns(MEMORY)[:, 0] / 100).astype(np.float32),
            traffic=columns(*TRAFFIC),
        )


def _sample_starts(times: Integers) -> Integers:
    """Returns where samples start in sorted times: each spans at most SAMPLE from its first reading."""
    if not len(times):
        return np.empty(0, np.int64)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(times) > SAMPLE) + 1))
    ends = np.append(starts[1:], len(times))
    too_long = times[ends - 1] - times[starts] > SAMPLE
    more = starts.tolist()
    for start, end in zip(starts[too_long].tolist(), ends[too_long].tolist(), strict=True):
        while (start := int(np.searchsorted(times, times[start] + SAMPLE, side="right"))) < end:
            more.append(start)
    return np.array(sorted(more), np.int64)


def _label(name: str, kind: str) -> str:
    """Returns "5" for "cpu5", as the labels of Stepscope's own recordings."""
    number = name.removeprefix(kind)
    return number if number.isdigit() else name
