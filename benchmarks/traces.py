"""Measures the reading of traces: speed and memory, next to HolisticTraceAnalysis on the same files.

HolisticTraceAnalysis is used if it is installed, here or for the Python that HTA_PYTHON names. Version 0.5.0
needs pandas before 3: pip install HolisticTraceAnalysis "pandas<3".
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.runs.traces.reading import ALLOCATION

from benchmarks import Row

MEGABYTES = 250  # of a trace, uncompressed
LARGE = 2000
SHORT = 50  # HolisticTraceAnalysis reads this one; it needs minutes for the others
LAYERS = 24
OPERATORS = ("aten::layer_norm", "aten::linear", "aten::addmm", "aten::gelu", "aten::add_")
HOST = 4242  # the process, and its first thread
SHAPES: dict[str, Any] = {
    "Input Dims": [[1024], [4096, 1024], [1024, 1024]],
    "Input type": ["float", "float", "float"],
    "Record function id": 0,
}
KERNEL: dict[str, Any] = {"device": 0, "context": 1, "stream": 7, "grid": [5120, 1, 1], "block": [128, 1, 1]}
ALL_REDUCE: dict[str, Any] = {
    "stream": 20,
    "Collective name": "allreduce",
    "In msg nelems": 1 << 20,
    "dtype": "Float",
    "Process Group Name": "0",
    "Group size": 8,
}

OURS = """
from stepscope.runs.traces.capture import captures_of
begin = time.process_time()
captures_of(Path(sys.argv[1]))
"""
THEIRS = """
import warnings, logging
warnings.filterwarnings("ignore"); logging.disable()
from hta.trace_analysis import TraceAnalysis
begin = time.process_time()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=str(Path(sys.argv[1]).parent))
analysis.get_temporal_breakdown(visualize=False)
analysis.get_idle_time_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
"""
MEASURED = """
import json, resource, sys, time
from pathlib import Path
{program}
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
sys.__stdout__.write("\\n" + json.dumps([time.process_time() - begin, peak]))
"""


class Cost(NamedTuple):
    seconds: float  # CPU time, without imports
    peak: float  # bytes of memory, with imports


def rows() -> list[Row]:
    found = []
    with tempfile.TemporaryDirectory(prefix="stepscope-benchmark-") as directory:
        for megabytes in (SHORT, MEGABYTES, LARGE):
            path = Path(directory) / f"{megabytes}.json"
            found += (_compared if megabytes == SHORT else _ours)(path, write(path, megabytes))
            path.unlink()
    return found


def _ours(path: Path, size: int, ours: Cost | None = None) -> list[Row]:
    ours = ours or _cost(sys.executable, OURS, path)
    budgets = (">= 30", "<= 0.5" if size > 200e6 else "")
    return [
        (f"reading a trace of {size / 1e6:,.0f} MB, one core", size / 1e6 / ours.seconds, "MB/s", budgets[0]),
        ("  peak memory of the process", ours.peak / 1e6, "MB", ""),
        ("  the same, relative to the file", ours.peak / size, "", budgets[1]),
    ]


def _compared(path: Path, size: int) -> list[Row]:
    ours = _cost(sys.executable, OURS, path)
    found = _ours(path, size, ours)
    try:
        theirs = _cost(os.environ.get("HTA_PYTHON", sys.executable), THEIRS, path)
    except (OSError, subprocess.CalledProcessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1]
        missing = "is not installed" if "No module named 'hta'" in said else f"does not run ({said})"
        return [*found, (f"  HolisticTraceAnalysis {missing}", nan, "", "")]
    return [
        *found,
        ("  HolisticTraceAnalysis, the same file", size / 1e6 / theirs.seconds, "MB/s", ""),
        ("  its peak memory", theirs.peak / 1e6, "MB", ""),
        ("  speed-up over HolisticTraceAnalysis", theirs.seconds / ours.seconds, "times", ""),
        ("  memory relative to HolisticTraceAnalysis", ours.peak / theirs.peak, "", ""),
    ]


def _cost(python: str, program: str, path: Path) -> Cost:
    command = [python, "-c", MEASURED.format(program=program), str(path)]
    environment = {**os.environ, **(ALLOCATION if program is OURS else {})}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return Cost(*json.loads(done.stdout.splitlines()[-1]))


def write(path: Path, megabytes: float) -> int:
    """Writes a trace of one rank with at least that many megabytes. Returns its size in bytes."""
    about = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
        "host_name": "node-a",
        "baseTimeNanoseconds": 1_700_000_000 * 10**9,
    }
    with path.open("w") as file:
        file.write(json.dumps(about)[:-1] + ', "traceEvents": [\n')
        for row in _rows():
            file.write(json.dumps(row))
            if row["cat"] == "user_annotation" and file.tell() > 1e6 * megabytes:
                break
            file.write(",\n")
        file.write("\n]}\n")
        return file.tell()


def _rows() -> Iterator[dict[str, Any]]:
    """Yields steps without end: operators with shapes, launches, kernels, and an all-reduce per layer."""
    chance = random.Random(1)
    now, number = 1e6, 0
    for step in count():
        begin = now
        for thread in LAYERS * (HOST,) + LAYERS * (HOST + 1,):  # forward, backward
            for depth in range(6):
                frame = f"torch/nn/modules/module.py({1700 + depth}): _call_impl"
                yield _event("python_function", frame, now + depth, 120 - 2 * depth, HOST)
            for operator in OPERATORS:
                number += 1
                link = {"External id": number, "correlation": number}
                yield _event("cpu_op", operator, now, 20 + chance.random(), thread, **SHAPES | link)
                yield _event("cuda_runtime", "cudaLaunchKernel", now + 8, 4 + chance.random(), thread, **link)
                name = f"void at::native::elementwise_kernel<4, {operator[6:]}_functor<float>, 3ul>(int)"
                yield _event("kernel", name, now + 20, 15 + 4 * chance.random(), 7, **KERNEL | link)
                now += 26
            number += 1
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            yield _event("kernel", name, now, 40.0, 20, **KERNEL | ALL_REDUCE, Seq=number)
        now += 300
        yield _event("user_annotation", f"ProfilerStep#{step}", begin, now - begin, HOST)


def _event(category: str, name: str, start: float, length: float, thread: int, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0 if category == "kernel" else HOST,
        "tid": thread,
        "ts": round(start, 3),
        "dur": round(length, 3),
        "args": args,
    }
