"""Writes a recording as SageMaker Debugger's profiler would have written the run: a `profiler-output/`.

Readings are in percent, in one file per minute. Events are those of Debugger's PyTorch hook, in one file per
process. Debugger never wrote power, clocks, communication other than Horovod's, or a process's start and end.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from math import isnan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.runs.recording.schema import metadata_of

NODE = "algo-1"
MINUTE = 60
FORWARD, BACKWARD = "Forward-SubModuleInternal", "Backward-SubModuleInternal"
WAIT, INITIALIZE = "DataLoaderIter", "DataLoaderIterInitialize"
Row = dict[str, Any]


def write_as_debugger(recording: Path, directory: Path) -> None:
    """Converts the recording of one node; `directory` is new."""
    source = RecordingDirectory(recording)
    list(source.read())
    start = source.facts.start
    assert start is not None
    readings = groupby(_readings(_parts(recording, "samples")), lambda reading: reading[0] // MINUTE)
    for minute, of_minute in readings:
        begin = int(minute) * MINUTE
        path = _path(directory, "system/incremental", begin, f"{begin}.{NODE}.json")
        path.write_text("".join(line for _, line in of_minute))
    steps = [step for part in _parts(recording, "steps") for step in part.to_pylist()]
    for rank in source.facts.ranks:
        own = [step for step in steps if step["pid"] == rank.pid]
        events = [event for number, step in enumerate(own) for event in _events(step, number, start)]
        workers = {"num_workers": rank.loaders[0].workers, "pin_memory": True}
        loading = _event(INITIALIZE, "_MultiProcessingDataLoaderIter.__init__", 0.0, 1.0, workers)
        end = int(start) // MINUTE * MINUTE + MINUTE
        name = f"{end * 1_000_000}_{rank.pid}-{NODE}_pythontimeline.json"
        _path(directory, "framework/pevents", end - MINUTE, name).write_text(
            _timeline([loading, *events], start)
        )
    (directory / "framework").mkdir(parents=True, exist_ok=True)
    (directory / "framework" / "training_job_end.ts").touch()


def _parts(recording: Path, table: str) -> Iterator[pa.Table]:
    return map(pq.read_table, sorted(recording.glob(f"*/{table}-*.parquet")))


def _readings(parts: Iterator[pa.Table]) -> Iterator[tuple[float, str]]:
    """Yields the time of each reading, and its line."""
    before: Row = {}
    for part in parts:
        known = metadata_of(part.schema)
        cores, gpus = known["cpus"], [gpu["gpu"] for gpu in known["gpus"]]
        for row in part.to_pylist():
            for kind, dimension, name, value in _values(row, before, cores, gpus):
                if not isnan(value):
                    yield (
                        row["time"],
                        f'{{"Type":"{kind}","Name":"{name}","Dimension":"{dimension}","Value":{value!r},'
                        f'"NodeId":"{NODE}","Timestamp":{row["time"]!r}}}\n',
                    )
            before = row


def _values(
    row: Row, before: Row, cores: list[str], gpus: list[str]
) -> Iterator[tuple[str, str, str, float]]:
    """Yields (type, dimension, name, value) of each reading."""
    for place, core in enumerate(cores):
        yield "cpu", "CPUUtilization", f"cpu{core}", 100 * row["cpu_utilization_ratio"][place]
        yield "cpu", "I/OWaitPercentage", f"cpu{core}", 100 * row["cpu_io_wait_ratio"][place]
    for place, gpu in enumerate(gpus):
        memory = row["gpu_memory_used_bytes"][place] / row["gpu_memory_total_bytes"][place]
        yield "gpu", "GPUUtilization", f"gpu{gpu}", 100 * row["gpu_utilization_ratio"][place]
        yield "gpu", "GPUMemoryUtilization", f"gpu{gpu}", 100 * memory
    yield "memory", "", "MemoryUsedPercent", 100 * row["memory_used_bytes"] / row["memory_total_bytes"]
    if before:
        seconds = row["time"] - before["time"]
        read, received = (
            (row[name] - before[name]) / seconds
            for name in ("disk_read_bytes_total", "network_receive_bytes_total")
        )
        yield "i/o", "", "ReadThroughputInBytesPerSecond", read
        yield "network", "Algorithm", "ReceiveBytesPerSecond", received


def _events(step: Row, number: int, start: float) -> Iterator[Row]:
    """Yields the events of a step; its `number` counts the steps of all phases."""
    since = step["start"] - start
    began = since + step["data_wait"]
    name = f"Step:ModeKeys.{step['phase'].upper()}"
    yield _event(WAIT, "_MultiProcessingDataLoaderIter::GetNext", since, step["data_wait"])
    settings = {"pid": step["pid"], "step_num": str(number)}
    yield _event(name, name, began, since + step["duration"] - began, settings)
    forward = began + step["host_to_device"]
    yield _event(FORWARD, "model", forward, step["forward"])
    yield _event(BACKWARD, "model", forward + step["forward"], step["backward"])


def _event(kind: str, name: str, start: float, seconds: float, args: Row | None = None) -> Row:
    """Returns a complete event; `start` is in seconds since the run's start."""
    times = {"ts": round(1e6 * start), "dur": round(1e6 * seconds)}
    return {"name": name, "pid": kind, "ph": "X", **times, "args": args or {}}


def _timeline(events: list[Row], start: float) -> str:
    """Returns a trace with one event per line. Debugger writes an event's kind as its `process_name`."""
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(event["pid"] for event in events), 1)}
    base = {"start_time_since_epoch_in_micros": round(1e6 * start)}
    rows = [{"name": "process_name", "ph": "M", "pid": 0, "args": base}]
    rows += [
        {"name": "process_name", "ph": "M", "pid": number, "args": {"name": kind}}
        for kind, number in kinds.items()
    ]
    rows += [{**event, "pid": kinds[event["pid"]]} for event in events]
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]"


def _path(directory: Path, folder: str, time: float, name: str) -> Path:
    hour = datetime.fromtimestamp(time, UTC).strftime("%Y%m%d%H")
    path = directory / folder / hour / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
