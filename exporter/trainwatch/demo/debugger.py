"""Writes a simulated run as SageMaker Debugger's profiler would have: a `profiler-output/` directory.

Readings are in percent, in one file per minute. Events are those of Debugger's PyTorch hook, in one file per
process and minute. Debugger never wrote power, clocks, communication other than Horovod's, or a process's
start and end: rules that need them cannot judge such a directory.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import isnan
from pathlib import Path
from typing import Any

from trainwatch.demo.ranks import RankLedger
from trainwatch.demo.scenario import Scenario, Step
from trainwatch.sampling.sample import Sample

NODE = "algo-1"
MINUTE = 60
FORWARD, BACKWARD = "Forward-SubModuleInternal", "Backward-SubModuleInternal"
WAIT, INITIALIZE = "DataLoaderIter", "DataLoaderIterInitialize"


class DebuggerWriter:
    """Receives samples and steps, and writes those of a minute when it is over."""

    def __init__(self, directory: Path, scenario: Scenario, start: float) -> None:
        self._directory = directory
        self._scenario = scenario
        self._start = start
        self._minute: int | None = None
        self._readings: list[str] = []
        self._events: dict[int, list[dict[str, Any]]] = {}  # by process
        self._before: Sample | None = None

    def sample(self, sample: Sample) -> None:
        """Adds the readings of a sample. Raises OSError."""
        minute = int(sample.time // MINUTE)
        if minute != self._minute:
            self._write_minute()
            self._minute = minute
        self._readings += [
            f'{{"Type":"{kind}","Name":"{name}","Dimension":"{dimension}","Value":{value!r},'
            f'"NodeId":"{NODE}","Timestamp":{sample.time!r}}}\n'
            for kind, dimension, name, value in self._values(sample)
            if not isnan(value)
        ]
        self._before = sample

    def step(self, ledger: RankLedger, step: Step) -> None:
        """Adds the events of a step."""
        if ledger.pid not in self._events:
            workers = {"num_workers": self._scenario.workers, "pin_memory": True}
            self._events[ledger.pid] = []
            if step.number == 0:
                self._add(
                    ledger.pid, INITIALIZE, "_MultiProcessingDataLoaderIter.__init__", 0.0, 1.0, workers
                )
        work, pid = step.work, ledger.pid
        began = step.start + work.data_wait
        name = f"Step:ModeKeys.{work.phase.upper()}"
        self._add(pid, WAIT, "_MultiProcessingDataLoaderIter::GetNext", step.start, work.data_wait)
        self._add(pid, name, name, began, step.end - began, {"pid": pid, "step_num": str(step.number)})
        forward = began + work.host_to_device
        self._add(pid, FORWARD, "model", forward, work.forward)
        self._add(pid, BACKWARD, "model", forward + work.forward, work.backward)

    def close(self) -> None:
        """Writes the rest, and the file that marks the end of the job. Raises OSError."""
        self._write_minute()
        (self._directory / "framework").mkdir(parents=True, exist_ok=True)
        (self._directory / "framework" / "training_job_end.ts").touch()

    def _values(self, sample: Sample) -> list[tuple[str, str, str, float]]:
        """Returns (type, dimension, name, value) of each reading."""
        rows: list[tuple[str, str, str, float]] = []
        cores = zip(sample.cpus, sample.cpu_utilization, sample.cpu_io_wait, strict=True)
        for core, busy, waiting in cores:
            rows.append(("cpu", "CPUUtilization", f"cpu{core}", 100 * busy))
            rows.append(("cpu", "I/OWaitPercentage", f"cpu{core}", 100 * waiting))
        for gpu, reading in sample.gpus.items():
            memory = reading.memory_used_bytes / reading.memory_total_bytes
            rows.append(("gpu", "GPUUtilization", f"gpu{gpu}", 100 * reading.utilization))
            rows.append(("gpu", "GPUMemoryUtilization", f"gpu{gpu}", 100 * memory))
        memory = sample.memory_used_bytes / sample.memory_total_bytes
        rows.append(("memory", "", "MemoryUsedPercent", 100 * memory))
        if self._before is not None:
            seconds = sample.time - self._before.time
            read = (sample.disk_read_bytes - self._before.disk_read_bytes) / seconds
            received = (sample.network_received_bytes - self._before.network_received_bytes) / seconds
            rows.append(("i/o", "", "ReadThroughputInBytesPerSecond", read))
            rows.append(("network", "Algorithm", "ReceiveBytesPerSecond", received))
        return rows

    def _add(
        self,
        pid: int,
        kind: str,
        name: str,
        start: float,
        seconds: float,
        args: dict[str, Any] | None = None,
    ) -> None:
        """Adds one complete event; `start` is in seconds since the run's start."""
        event = {"name": name, "pid": kind, "ph": "X", "ts": round(1e6 * start), "dur": round(1e6 * seconds)}
        self._events[pid].append({**event, "args": args or {}})

    def _write_minute(self) -> None:
        if self._minute is None:
            return
        begin, end = self._minute * MINUTE, (self._minute + 1) * MINUTE
        if self._readings:
            path = self._path("system/incremental", begin, f"{begin}.{NODE}.json")
            path.write_text("".join(self._readings))
            self._readings = []
        for pid, events in self._events.items():
            if events:
                name = f"{end * 1_000_000}_{pid}-{NODE}_pythontimeline.json"
                self._path("framework/pevents", begin, name).write_text(self._timeline(events))
                events.clear()

    def _timeline(self, events: list[dict[str, Any]]) -> str:
        """Returns a trace with one event per line. Debugger writes an event's kind as its `process_name`."""
        kinds = {kind: number for number, kind in enumerate(dict.fromkeys(e["pid"] for e in events), 1)}
        base = {"start_time_since_epoch_in_micros": round(1e6 * self._start)}
        rows = [{"name": "process_name", "ph": "M", "pid": 0, "args": base}]
        rows += [
            {"name": "process_name", "ph": "M", "pid": number, "args": {"name": kind}}
            for kind, number in kinds.items()
        ]
        rows += [{**event, "pid": kinds[event["pid"]]} for event in events]
        return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]"

    def _path(self, folder: str, time: float, name: str) -> Path:
        hour = datetime.fromtimestamp(time, UTC).strftime("%Y%m%d%H")
        path = self._directory / folder / hour / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
