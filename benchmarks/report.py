"""Measures the report of a day of one large node: its time from a recording on disk, and its size."""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from stepscope.exporter.sampling.sample import EVIDENCE
from stepscope.runs.model import COMPONENTS, GpuFacts, NodeFacts
from stepscope.runs.recording.files import RunFile, write_part
from stepscope.runs.recording.schema import (
    CPU_COLUMNS,
    EVIDENCE_COLUMN,
    GPU_COLUMNS,
    NEIGHBOURS_COLUMN,
    NODE_COLUMNS,
    PHASES_AND_MORE,
    PRESSURE_COLUMNS,
    RANKS_SCHEMA,
    RUN_COLUMNS,
    STEPS_SCHEMA,
    Layout,
    samples_schema,
    with_metadata,
)

from benchmarks import Row

HOURS, CORES, GPUS = 24, 96, 8
START = 1_800_000_000.0
INTERVAL = 0.5
STEP = 0.4  # seconds
NODE = "node"
LAYOUT = Layout(tuple(map(str, range(CORES))), tuple(map(str, range(GPUS))))
FACTS = NodeFacts(
    NODE, LAYOUT.cpus, tuple(GpuFacts(gpu, "NVIDIA H100 80GB HBM3", memory_bytes=80e9) for gpu in LAYOUT.gpus)
)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        recording, out = Path(directory, "recording"), Path(directory, "out")
        record(recording, HOURS)
        seconds, cpu_seconds, mebibytes = reported(recording, out)
        page, document = ((out / name).stat().st_size / 1e6 for name in ("report.html", "report.json"))
    return [
        (f"report of {HOURS} h of {CORES} cores and {GPUS} GPUs, CPU time", cpu_seconds, "s", "<= 60"),
        ("  the same, wall time", seconds, "s", ""),
        ("  size of its page", page, "MB", "<= 6"),
        ("  size of its JSON document", document, "MB", ""),
        ("  peak memory", mebibytes, "MiB", ""),
    ]


def reported(recording: Path, out: Path) -> tuple[float, float, float]:
    """Returns the wall seconds, CPU seconds and MiB of `stepscope report`, with its start and imports."""
    command = [sys.executable, "-m", "stepscope", "report", str(recording), "--out", str(out)]
    before, begin = _of_children(), time.perf_counter()
    subprocess.run([*command, "--price", "55.04"], check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - begin, _of_children()
    return seconds, after[0] - before[0], after[1]


def _of_children() -> tuple[float, float]:
    """Returns the CPU seconds of all child processes that have ended, and the MiB of the largest."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def record(directory: Path, hours: float) -> None:
    """Writes a recording of a run with one rank per GPU, one part per minute as `stepscope run` does."""
    folder = directory / NODE
    folder.mkdir(parents=True)
    end = START + hours * 3600
    RunFile("day", START, end, "python train.py", 0, INTERVAL, {"stepscope": "0"}).write(directory)
    common = {"node": NODE, "run": "day", "interval": INTERVAL}
    schemas = {
        "samples": with_metadata(samples_schema(LAYOUT), common | asdict(FACTS)),
        "steps": with_metadata(STEPS_SCHEMA, common | {"recorded": {}}),
        "ranks": with_metadata(RANKS_SCHEMA, common),
    }
    random = np.random.default_rng(0)
    makers: dict[str, Callable[[int, np.random.Generator], dict[str, Any]]] = {
        "samples": _samples,
        "steps": _steps,
        "ranks": _ranks,
    }
    for minute in range(round(60 * hours)):
        for table, schema in schemas.items():
            columns = makers[table](minute, random)
            write_part(folder, table, minute + 1, pa.table(columns, schema=schema))


def _samples(minute: int, random: np.random.Generator) -> dict[str, Any]:
    """Makes samples with a busy core and idle GPUs in two of ten seconds, and noise, which packs badly."""
    count = round(60 / INTERVAL)
    ticks = minute * count + np.arange(count)
    starved = (ticks // 4 % 5 == 0)[:, None]
    values: dict[str, Any] = {"time": START + INTERVAL * ticks}
    for name in CPU_COLUMNS:
        ratios = 0.5 * random.random((count, CORES))
        if name == "cpu_utilization_ratio":
            ratios[:, :1] = np.where(starved, 1.0, ratios[:, :1])
        values[name] = _lists(ratios.astype(np.float32))
    for place, name in enumerate(NODE_COLUMNS):
        is_counter = name.endswith("_total")
        values[name] = 1e8 * ticks if is_counter else np.full(count, 1e11 * (place + 1))
    for name, (_, kind) in GPU_COLUMNS.items():
        column = 600 * random.random((count, GPUS)) if "watts" in name else np.zeros((count, GPUS))
        if name == "gpu_utilization_ratio":
            column = np.where(starved, 0.03, np.rint(100 * random.uniform(0.8, 1, (count, GPUS))) / 100)
        elif name.startswith("gpu_memory_"):
            column += 80e9 if "total" in name else 60e9
        values[name] = _lists(column.astype(kind.to_pandas_dtype()))
    values |= dict.fromkeys((*RUN_COLUMNS, *PRESSURE_COLUMNS), np.full(count, np.nan))  # not known
    values[NEIGHBOURS_COLUMN] = pa.nulls(count, pa.map_(pa.string(), pa.float64()))
    values[EVIDENCE_COLUMN] = _lists(np.full((count, GPUS), EVIDENCE.index("processes"), np.float32))
    return values


def _lists(values: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _steps(minute: int, random: np.random.Generator) -> dict[str, Any]:
    count = round(60 / STEP)
    rank = np.repeat(np.arange(GPUS, dtype=np.int32), count)
    number = np.tile(minute * count + np.arange(count), GPUS)
    stall = np.where(number % 500 == 499, 1.0, 0.0)
    took = STEP * random.uniform(0.9, 0.99, len(rank))
    parts = {name: np.zeros(len(rank)) for name in COMPONENTS}
    parts |= {"data_wait": 0.3 * took, "forward": 0.2 * took, "backward": 0.4 * took, "checkpoint": stall}
    order = np.argsort(number, kind="stable")
    columns: dict[str, np.ndarray] = {
        "rank": rank,
        "pid": 1000 + rank.astype(np.int64),
        "rank_start": np.full(len(rank), START),
        "phase": np.full(len(rank), "train", dtype=object),
        "number": number,
        "start": START + STEP * number,
        "duration": took + stall,
        **parts,
    }
    return {name: values[order] for name, values in columns.items()}


def _ranks(minute: int, _: np.random.Generator) -> dict[str, Any]:
    ended = 60.0 * (minute + 1)
    steps = round(ended / STEP)
    names = RANKS_SCHEMA.names
    row: dict[str, Any] = dict.fromkeys(names) | dict.fromkeys(names[: names.index("loaders")], 0)
    row |= {f"{phase}_seconds": 0.0 for phase in PHASES_AND_MORE}
    row |= {f"{component}_seconds": 0.0 for component in COMPONENTS}
    row |= {
        "time": START + ended,
        "alive": True,
        "world_size": GPUS,
        "framework": "PyTorch",
        "framework_version": "2.9",
        "start": START,
        "first_step_start": START,
        "last_step_end": START + ended,
        "end": None,
        "train_steps": steps,
        "train_seconds": 0.95 * ended,
        "other_seconds": 0.05 * ended,
        "data_wait_seconds": 0.285 * ended,
        "forward_seconds": 0.19 * ended,
        "backward_seconds": 0.38 * ended,
        "fetches": steps,
        "fetch_seconds": 3 * ended,
        "fetch_cpu_seconds": 2.7 * ended,
        "loaders": [{"phase": "train", "workers": 4, "waits": steps, "wait_seconds": 0.285 * ended}],
    }
    table = [row | {"rank": rank, "pid": 1000 + rank} for rank in range(GPUS)]
    return {name: [rank[name] for rank in table] for name in RANKS_SCHEMA.names}
