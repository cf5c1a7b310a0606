"""A recording with profile windows, and their traces."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.runs.recording.files import RunFile
from stepscope.runs.recording.writer import RecordingWriter
from stepscope.training.window_files import LINE, MODULE

from tests.support.recording import START, header, step, totals

US = 1_000_000


def event(name: str, begin: float, seconds: float, category: str = "cpu_op") -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 100,
        "tid": 100,
        "ts": (START + begin) * US,
        "dur": seconds * US,
    }


def moment(place: str, at: float) -> dict[str, Any]:
    """Returns a sample of the main thread's line."""
    about = {"ph": "i", "cat": LINE, "s": "t", "pid": 100, "tid": 100}
    return {**about, "name": place, "ts": (START + at) * US}


def trace(rank: int, slow: float, first: int = 2) -> bytes:
    """Returns the trace of two steps."""
    events = []
    for number in (first, first + 1):
        begin = float(number)
        events += [
            event(f"ProfilerStep#{number}", begin, 1.0, "user_annotation"),
            event("aten::linear", begin + 0.1, 0.5),
            event("aten::addmm", begin + 0.2, 0.3),
            event("aten::index_put_", begin + 0.65, slow),
            *(moment("train.py:9", begin + 0.65 + slow * part) for part in (0.1, 0.5, 0.9)),
        ]
    values = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
    return gzip.compress(json.dumps(values).encode())


def numbered(name: str, begin: float, seconds: float, number: int) -> dict[str, Any]:
    """Returns an operator of a forward pass, or the node of the graph with its number."""
    return event(name, begin, seconds) | {"args": {"Sequence number": number}}


def modules_of_a_step() -> list[dict[str, Any]]:
    """Returns the passes of a model with one layer, 0.7 s of step 2."""
    return [
        event("Net", 2.0, 0.4, MODULE),
        event("Net.head (Linear)", 2.05, 0.3, MODULE),
        numbered("aten::t", 2.06, 0.01, 7),
        numbered("aten::addmm", 2.1, 0.2, 7),
        numbered("autograd::engine::evaluate_function: AddmmBackward0", 2.5, 0.2, 7),
        numbered("AddmmBackward0", 2.55, 0.1, 7),
        event("Optimizer.step#SGD.step", 2.8, 0.1, "user_annotation"),
    ]


def allocation(at: float, size: int, total: int, gpu: int | None = None, address: int = 7) -> dict[str, Any]:
    """Returns an allocation of `size` bytes; below 0, they are freed."""
    device = {"Device Type": 0, "Device Id": -1} if gpu is None else {"Device Type": 1, "Device Id": gpu}
    about = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": 100}
    return {
        **about,
        "ts": (START + at) * US,
        "args": {"Bytes": size, "Total Allocated": total, "Addr": address, **device},
    }


def with_allocations(recording: Path, rank: int, allocations: list[dict[str, Any]]) -> None:
    """Adds allocations to the trace of steps 2 and 3."""
    (path,) = (recording / "profiles").glob(f"rank-{rank}.steps-2-3.*.gz")
    values = json.loads(gzip.decompress(path.read_bytes()))
    values["traceEvents"] += allocations
    path.write_bytes(gzip.compress(json.dumps(values).encode()))


def with_another_window(recording: Path, rank: int, slow: float) -> None:
    """Adds a window of steps 10 and 11, in which `aten::index_put_` takes so many seconds per step."""
    name = f"rank-{rank}.steps-10-11.100-1.pt.trace.json.gz"  # before the other one, by its name
    (recording / "profiles" / name).write_bytes(trace(rank, slow, 10))
    path = recording / "profiles" / f"rank-{rank}.100.windows.json"
    values = json.loads(path.read_text())
    values["windows"].append(window(10, 11, "written", name))
    path.write_text(json.dumps(values))


def recording_with_windows(
    tmp_path: Path, slow_seconds: tuple[float, float] = (0.05, 0.3), gauges: Mapping[str, float] = {}
) -> Path:
    """Writes a recording of 2 ranks with a window of steps 2 and 3 each, and one that was skipped.

    `slow_seconds`: of `aten::index_put_` in each step, by rank.
    """
    RunFile("bert", run="bert-1", start=START, end=START + 100).write(tmp_path)
    with_steps = RecordingWriter(tmp_path, "node-a", 0.5, "bert-1")
    for rank in (0, 1):
        with_steps.steps(header(rank), [step(number) for number in range(6)])
    of_rank = totals(6, START + 100)
    of_rank = replace(of_rank, gauges={**of_rank.gauges, **gauges})
    with_steps.ranks([(header(rank), of_rank, False) for rank in (0, 1)])
    with_steps.close()
    folder = tmp_path / "profiles"
    folder.mkdir()
    for rank, slow in enumerate(slow_seconds):
        name = f"rank-{rank}.steps-2-3.100-0.pt.trace.json.gz"
        (folder / name).write_bytes(trace(rank, slow))
        windows = [window(2, 3, "written", name), window(5, None, "skipped", "", "another window was open")]
        values = {"format": 1, "run": "bert-1", "node": "node-a", "rank": rank, "pid": 100}
        (folder / f"rank-{rank}.100.windows.json").write_text(json.dumps(values | {"windows": windows}))
    return tmp_path


def window(first: int, last: int | None, state: str, name: str, reason: str = "") -> dict[str, Any]:
    known = {"first": first, "last": last, "start": START + first, "end": START + 4, "pause_seconds": 0.25}
    return known | {"trace": name, "state": state, "reason": reason}


def with_python_window(recording: Path, rank: int, functions: Any, stacks: Any = ()) -> None:
    """Adds a window of steps 7 and 8 with Python functions: name, calls, total and own seconds of each.

    `stacks`: seconds and functions of each.
    """
    name = f"rank-{rank}.steps-7-8.100-1.python.json.gz"
    text = json.dumps({"functions": functions, "stacks": stacks})
    (recording / "profiles" / name).write_bytes(gzip.compress(text.encode()))
    path = recording / "profiles" / f"rank-{rank}.100.windows.json"
    values = json.loads(path.read_text())
    values["windows"].append(window(7, 8, "written", name) | {"step_seconds": 2.0})
    path.write_text(json.dumps(values))
