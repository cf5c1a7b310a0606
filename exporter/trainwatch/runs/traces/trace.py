"""Loads one trace of the PyTorch profiler and classifies its events.

The format is Chrome's; categories are those of libkineto's ActivityType (github.com/pytorch/kineto):
`cpu_op`, `user_annotation`, `cuda_runtime`, `cuda_driver`, `kernel`, `gpu_memcpy`, `gpu_memset`, and
`gpu_user_annotation` and `python_function`, which repeat other events and are left out. Times are
microseconds since `baseTimeNanoseconds`, or since the epoch if the trace does not contain it.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwatch.errors import UserError

RUNTIME = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime"}
MEMORY_COPY = {"gpu_memcpy", "gpu_memset"}
REPEATED = {None, "Trace", "python_function", "gpu_user_annotation"}
DEVICE = MEMORY_COPY | {"kernel"}
# The profiler's own marker of a step, and of a wait on a torch DataLoader.
STEP = re.compile(r"ProfilerStep#(\d+)")
LOADER = "enumerate(DataLoader)#"
OPTIMIZER = "Optimizer.step#"
BACKWARD = "autograd::engine::evaluate_function"
# Collectives on a GPU are kernels of these libraries; on the CPU they are operators of these backends.
# An operator `c10d::` or `nccl:` only starts a collective.
DEVICE_COLLECTIVE = re.compile(r"(?:nccl|rccl)(?:Dev)?Kernel_?(?P<operation>[A-Za-z]+)", re.IGNORECASE)
CPU_COLLECTIVE = re.compile(r"(?:gloo|mpi|ucc):(?P<operation>\w+)")
_NAME = re.compile(r"(?P<host>.+?)_(?P<pid>\d+)\..*")


@dataclass(frozen=True)
class Event:
    """A timed event; microseconds since the trace's origin."""

    category: str
    name: str
    start: float
    end: float
    thread: tuple[Any, Any]  # process and thread, or device and stream
    args: dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """One file: one rank's events, in time order."""

    path: Path
    host: str
    pid: int
    rank: int | None  # None: the job was not distributed, or the trace does not contain it
    world_size: int | None
    origin: float  # seconds since the epoch of time 0
    devices: dict[int, str]  # name by index
    events: list[Event]

    def select(self, wanted: Callable[[Event], bool]) -> list[Event]:
        return [event for event in self.events if wanted(event)]


def collective(event: Event) -> str | None:
    """Returns the operation of an event that communicates, as "allreduce"; None for any other event."""
    on_device = event.category == "kernel"
    match = DEVICE_COLLECTIVE.match(event.name) if on_device else CPU_COLLECTIVE.fullmatch(event.name)
    if match is None:
        return None
    name = event.args.get("Collective name") if on_device else None
    return str(name or match["operation"]).replace("_", "").lower()


def load(path: Path) -> Trace:
    """Reads a trace. Raises UserError if the file is corrupt or not a trace of the PyTorch profiler."""
    document = _document(path)
    rows = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise UserError(f"{path} is no trace (no traceEvents in it): give what torch.profiler exported")
    try:
        timed = [row for row in rows if row.get("ph") == "X" and row.get("cat") not in REPEATED]
        zero = min((float(row["ts"]) for row in timed), default=0.0)
        events = sorted((_event(row, zero) for row in timed), key=lambda event: (event.start, -event.end))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: an event is not the profiler's ({error!r}); export it again") from error
    if not events:
        raise UserError(f"{path} holds no event: export the trace again, with a step that is active")
    about: dict[str, Any] = document if isinstance(document, dict) else {}
    job = about.get("distributedInfo") or {}
    match = _NAME.fullmatch(path.name)
    return Trace(
        path=path,
        host=str(about.get("host_name") or (match["host"] if match else "unknown")),
        pid=int(match["pid"]) if match else 0,
        rank=job.get("rank"),
        world_size=job.get("world_size"),
        origin=zero / 1e6 + float(about.get("baseTimeNanoseconds", 0)) / 1e9,
        devices={int(gpu["id"]): str(gpu.get("name", "")) for gpu in about.get("deviceProperties") or []},
        events=events,
    )


def _document(path: Path) -> Any:
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            return json.load(file)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {error.lineno}: not JSON; the trace is cut off, export it again"
        ) from error
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}); export the trace again") from error


def _event(row: dict[str, Any], zero: float) -> Event:
    start = float(row["ts"]) - zero
    end = start + float(row.get("dur", 0))
    thread = (row.get("pid"), row.get("tid"))
    return Event(str(row["cat"]).lower(), str(row["name"]), start, end, thread, row.get("args") or {})
