"""Samples and steps of a run as Debugger's events: Arrow tables. Times are microseconds since the epoch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from stepscope.analysis import Run, UserError
from stepscope.analysis.plots import ROWS
from stepscope.analysis.samples import Device
from stepscope.runs.debugger.framework import STEP
from stepscope.runs.debugger.system import CPU, GPU, GPU_MEMORY, IO_WAIT, MEMORY
from stepscope.runs.model import PHASES

# Dimension, name and type by the row of a heatmap. Debugger has received and sent, read and written apart.
READINGS = {
    "cpu": (CPU, "cpu{}", "cpu"),
    "io_wait": (IO_WAIT, "cpu{}", "cpu"),
    "gpu": (GPU, "gpu{}", "gpu"),
    "gpu_memory": (GPU_MEMORY, "gpu{}", "gpu"),
    "memory": (*MEMORY, "memory"),
    "network": ("Algorithm", "NetworkBytesPerSecond", "network"),
    "disk": ("", "DiskBytesPerSecond", "i/o"),
}
DEVICES: tuple[Device, ...] = ("cpu", "gpu", "node")
WAIT, WAIT_KIND = "DataLoaderIter::GetNext", "DataLoaderIter"
STEP_NAMES = {phase: f"{STEP}{phase.upper()}" for phase in PHASES}
SYSTEM = pa.schema(
    [("time_us", pa.int64()), ("value", pa.float64())]
    + [(name, pa.string()) for name in ("name", "dimension", "node", "type")]
)
FRAMEWORK = pa.schema(
    [
        *((name, pa.int64()) for name in ("start_us", "end_us")),
        ("name", pa.string()),
        ("step", pa.int64()),
        ("node", pa.string()),
        ("rank", pa.int32()),
    ]
)


def chosen_rows(select_dimensions: Sequence[str]) -> list[str]:
    """Returns the rows whose dimension (or name, if it has none) contains one of the regular expressions."""
    return [
        row
        for row, (dimension, name, _) in READINGS.items()
        if any(re.search(each, dimension or name) for each in select_dimensions)
    ]


def microseconds(moment: datetime | None) -> int:
    """Returns a time as Debugger has it; 0 if it is unknown."""
    return 0 if moment is None else round(moment.timestamp() * 1e6)


def elapsed(run: Run, time_us: float | None) -> float | None:
    """Returns seconds since the run's start; None for 0 and None, which mean no limit."""
    return (time_us - microseconds(run.start)) / 1e6 if time_us else None


def system_events(run: Run, start_us: float | None = None, end_us: float | None = None) -> pa.Table:
    """Returns a row per reading (percent, or bytes per second) from `start_us` to `end_us`, both included."""
    start = elapsed(run, start_us)
    end = elapsed(run, end_us + 1 if end_us else None)
    found = []
    for device in DEVICES:
        rows = [row for row in READINGS if ROWS[row][0] == device]
        names = ["time", "node", *([] if device == "node" else [device]), *(ROWS[row][1] for row in rows)]
        table = run.samples(device, start=start, end=end, columns=names)
        found += [_readings(table, row) for row in rows]
    return pa.concat_tables([SYSTEM.empty_table(), *found]).sort_by("time_us")


def _readings(table: pa.Table, row: str) -> pa.Table:
    device, column, _ = ROWS[row]
    dimension, name, kind = READINGS[row]
    table = table.filter(pc.field(column).is_valid())
    count = len(table)
    values = pc.cast(table[column], pa.float64())
    columns = [
        table["time"].cast(pa.int64()),
        values if column.endswith("per_second") else pc.round(pc.multiply(values, 100.0), 4),
        [name] * count if device == "node" else [name.format(each) for each in table[device].to_pylist()],
        [dimension] * count,
        table["node"].cast(pa.string()),
        [kind] * count,
    ]
    return pa.table(columns, schema=SYSTEM)


def framework_events(run: Run, start_us: float | None = None, end_us: float | None = None) -> pa.Table:
    """Returns a row per step that ran between two times."""
    steps = run.steps()
    names = [STEP_NAMES[phase] for phase in steps["phase"].to_pylist()]
    return _between(steps, "duration_seconds", names, start_us, end_us)


def wait_events(run: Run, start_us: float | None = None, end_us: float | None = None) -> pa.Table:
    """Returns a row per step that waited for data: a step begins with its wait. Others have no start."""
    steps = run.steps().filter(pc.field("data_wait_seconds") > 0)
    return _between(steps, "data_wait_seconds", [WAIT] * len(steps), start_us, end_us)


def _between(
    steps: pa.Table, took: str, names: list[str], start_us: float | None, end_us: float | None
) -> pa.Table:
    """Returns events that begin with each step, if they overlap the time. `took` has their seconds."""
    starts = steps["start"].cast(pa.int64())
    lasts = pc.cast(pc.round(pc.multiply(steps[took], 1e6)), pa.int64())
    columns = [starts, pc.add(starts, lasts), names, steps["number"], steps["node"], steps["rank"]]
    table = pa.table(columns, schema=FRAMEWORK)
    if start_us:
        table = table.filter(pc.field("end_us") >= start_us)
    return table.filter(pc.field("start_us") <= end_us) if end_us else table


def times_of_steps(run: Run, first: int, last: int) -> tuple[int, int]:
    """Returns when these training steps (both included) began and ended. Raises UserError if none did."""
    if run.start is None:
        raise UserError(f"{run.source}: does not know when the run began")
    there, begin = run.between(steps=(first, last)), microseconds(run.start)
    return begin + round(there.start * 1e6), begin + round(there.end * 1e6)
