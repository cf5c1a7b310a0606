"""Writes Debugger profiler-output directories with every quirk of real ones."""

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

START = 1_600_000_020.0  # in the minute that begins at 1600000020
Reading = dict[str, Any]


def reading(
    dimension: str, name: str, value: float, time: float, node: str = "algo-1", kind: str = "cpu"
) -> Reading:
    return {
        "Type": kind,
        "Name": name,
        "Dimension": dimension,
        "Value": value,
        "NodeId": node,
        "Timestamp": time,
    }


def line(one: Reading) -> str:
    """As Debugger writes it, without spaces."""
    return json.dumps(one, separators=(",", ":")) + "\n"


def snapshot(
    time: float,
    cpu: Sequence[float] = (),
    gpu: Sequence[float] = (),
    *,
    node: str = "algo-1",
    io_wait: Sequence[float] | None = None,
    gpu_memory: Sequence[float] | None = None,
    memory: float | None = 25.0,
    spread: float = 0.001,
) -> list[Reading]:
    """The readings of one snapshot in percent; their times are spread over `spread` seconds."""
    rows: list[tuple[str, str, float, str]] = []
    for core, value in enumerate(cpu):
        rows.append(("CPUUtilization", f"cpu{core}", value, "cpu"))
        rows.append(("I/OWaitPercentage", f"cpu{core}", io_wait[core] if io_wait else 0.0, "cpu"))
    for index, value in enumerate(gpu):
        rows.append(("GPUUtilization", f"gpu{index}", value, "gpu"))
        rows.append(("GPUMemoryUtilization", f"gpu{index}", gpu_memory[index] if gpu_memory else 50.0, "gpu"))
    if memory is not None:
        rows.append(("", "MemoryUsedPercent", memory, "memory"))
        rows.append(("", "IOPS", 12.0, "i/o"))
        rows.append(("", "ReadThroughputInBytesPerSecond", 1000.0, "i/o"))
        rows.append(("", "WriteThroughputInBytesPerSecond", 500.0, "i/o"))
        for whose, value in (("Algorithm", 200.0), ("Platform", 9000.0)):
            rows.append((whose, "ReceiveBytesPerSecond", value, "network"))
            rows.append((whose, "TransmitBytesPerSecond", value / 2, "network"))
    last = max(len(rows) - 1, 1)
    return [
        reading(dimension, name, value, round(time + spread * index / last, 7), node, kind)
        for index, (dimension, name, value, kind) in enumerate(rows)
    ]


@dataclass
class DebuggerDirectory:
    """A job's profiler-output in `root`; each `write_...` adds files to it."""

    root: Path
    hour_folder: bool = True
    files: list[Path] = field(default_factory=list)

    def write_readings(self, readings: Iterable[Reading], node: str = "algo-1", tail: str = "") -> None:
        """A file a minute, as Debugger does; `tail` is written behind the last file's lines."""
        minutes: dict[int, list[Reading]] = {}
        for one in readings:
            minutes.setdefault(int(one["Timestamp"] // 60) * 60, []).append(one)
        for minute, rows in minutes.items():
            path = self._hour("system/incremental", minute) / f"{minute}.{node}.json"
            self.write(path, "".join(map(line, rows)))
        if tail:
            self.files[-1].write_text(self.files[-1].read_text() + tail)

    def write_events(
        self,
        events: Sequence[dict[str, Any]],
        process: str = "151-algo-1",
        kind: str = "pythontimeline",
        base: float | None = START,
        end: float | None = None,
        closed: bool = True,
    ) -> Path:
        """One file of events: `kind` is what Debugger calls a phase, times are seconds after `base`."""
        rows: list[dict[str, Any]] = []
        if base is not None:
            start = {"start_time_since_epoch_in_micros": round(base * 1e6)}
            rows.append({"name": "process_name", "ph": "M", "pid": 0, "args": start})
            rows.append({"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}})
        kinds: dict[str, int] = {}
        for event in events:
            if event["kind"] not in kinds:
                kinds[event["kind"]] = len(kinds) + 1
                name = {"name": event["kind"]}
                rows.append({"name": "process_name", "ph": "M", "pid": kinds[event["kind"]], "args": name})
            row = {key: value for key, value in event.items() if key != "kind"}
            rows.append({**row, "pid": kinds[event["kind"]]})
        end = end if end is not None else (base or 0.0) + 60 + len(self.files)
        path = self._hour("framework/pevents", end) / f"{round(end * 1e6)}_{process}_{kind}.json"
        text = "[\n" + ",\n".join(map(json.dumps, rows)) + ("\n]" if closed else ",\n")
        self.write(path, text)
        return path

    def write_tensorflow_trace(
        self, events: list[dict[str, Any]], host: str = "ip-10-0-0-1", process: str = ""
    ) -> Path:
        folder = self.root / "framework/tensorflow/detailed_profiling/2020091312/000000005"
        path = folder / "plugins/profile/2020_09_13_12_27_00" / f"{host}.trace.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        if process:
            (folder / f"{process}_1600000020000000_1600000021000000.metadata").touch()
        with gzip.open(path, "wt") as file:
            json.dump({"displayTimeUnit": "ns", "traceEvents": events}, file)
        return path

    def write_end(self) -> None:
        self.write(self.root / "framework/training_job_end.ts", "")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.files.append(path)

    def _hour(self, folder: str, time: float) -> Path:
        hour = datetime.fromtimestamp(time, UTC).strftime("%Y%m%d%H")
        return self.root / folder / hour if self.hour_folder else self.root / folder


def event(kind: str, name: str, start: float, duration: float, **args: Any) -> dict[str, Any]:
    """A complete event; seconds after the base time."""
    return {
        "kind": kind,
        "name": name,
        "ph": "X",
        "ts": round(start * 1e6),
        "dur": round(duration * 1e6),
        "args": args,
    }


def step(number: int, start: float, duration: float, mode: str = "TRAIN", pid: int = 151) -> dict[str, Any]:
    name = f"Step:ModeKeys.{mode}"
    return event(name, name, start, duration, pid=pid, step_num=str(number))


def pair(kind: str, name: str, start: float, duration: float) -> list[dict[str, Any]]:
    """The same as an event of beginning and one of ending, as Horovod writes them."""
    return [
        {"kind": kind, "name": name, "ph": "B", "ts": round(start * 1e6)},
        {"kind": kind, "name": "", "ph": "E", "ts": round((start + duration) * 1e6)},
    ]


def write_training_job(root: Path, *, nodes: int = 2, seconds: float = 700.0) -> DebuggerDirectory:
    """A whole job on nodes of 4 cores and 2 GPUs: GPU 0 idles, core 0 is pinned, one step in 20 is slow."""
    directory = DebuggerDirectory(root)
    for number in range(1, nodes + 1):
        node = f"algo-{number}"
        times = [START + 0.5 * index for index in range(int(seconds * 2))]
        rows = [
            row for time in times for row in snapshot(time, (98.0, 5.0, 5.0, 5.0), (4.0, 60.0), node=node)
        ]
        directory.write_readings(rows, node)
        steps = [step(index, 10 + index, 1.5 if index % 20 == 0 else 0.5) for index in range(300)]
        loads = [
            event("DataLoaderIter", "_MultiProcessingDataLoaderIter::GetNext", 10 + index - 0.25, 0.2)
            for index in range(300)
            if index % 20 != 1
        ]
        workers = event(
            "DataLoaderIterInitialize",
            "_MultiProcessingDataLoaderIter.__init__",
            8.0,
            0.5,
            num_workers=2,
            pin_memory=False,
        )
        operators = [event("cpu_functions", "aten::conv2d", 11.0, 0.1, device="cpu")]
        kernels = [event("gpu_functions-dev:0", "volta_sgemm", 11.0, 0.3, device=0)]
        directory.write_events([workers, *loads, *steps, *operators, *kernels], f"{150 + number}-{node}")
    directory.write_end()
    return directory
