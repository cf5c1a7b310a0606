"""Samples and steps of a run as Debugger's events: Arrow tables. Times are microseconds since the epoch."""

from collections.abc import Callable, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from stepscope.analysis import Run, UserError
from stepscope.analysis.plots import ROWS
from stepscope.analysis.samples import Device
from stepscope.compat.smdebug.given import limit, matches, not_served, several
from stepscope.runs.debugger.files import natural
from stepscope.runs.debugger.framework import STEP
from stepscope.runs.debugger.system import CPU, GPU, GPU_MEMORY, IO_WAIT, MEMORY
from stepscope.runs.model import COMPONENTS, PHASES

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
# Name and kind of the parts of steps; the others keep their name.
PARTS = {name: (name, name) for name in COMPONENTS} | {
    "data_wait": (WAIT, WAIT_KIND),
    "forward": ("Forward-node", "Forward-node"),
    "backward": ("Backward(post-forward)-node", "Backward(post-forward)-node"),
}
STEP_NAMES = {phase: f"{STEP}{phase.upper()}" for phase in PHASES}
SYSTEM = pa.schema(
    [("time_us", pa.int64()), ("value", pa.float64())]
    + [(name, pa.string()) for name in ("name", "dimension", "node", "type")]
)
FRAMEWORK = pa.schema(
    [
        *((name, pa.int64()) for name in ("start_us", "end_us")),
        ("name", pa.string()),
        ("kind", pa.string()),
        ("step", pa.int64()),
        ("node", pa.string()),
        ("rank", pa.int32()),
    ]
)


def chosen_rows(run: Run, select_dimensions: Sequence[str], select_events: Sequence[str]) -> list[str]:
    """Returns the rows of a heatmap whose dimension and name contain one of the regular expressions.

    The name of a dimension's mean is "total". What has no dimension is chosen by its name.
    """
    found, events = [], several(select_events)
    for row, (dimension, name, _) in READINGS.items():
        if any(matches(each, dimension or name) for each in several(select_dimensions)):
            found += _chosen_devices(run, row, events)
    return found


def _chosen_devices(run: Run, row: str, events: Sequence[str]) -> list[str]:
    """Returns the row, or some of its devices, and its mean."""
    name = READINGS[row][1]
    total = any(matches(each, "total") for each in events)
    device: Device = "cpu" if ROWS[row][0] == "cpu" else "gpu"
    if ROWS[row][0] == "node":
        return [row] if total or any(matches(each, name) for each in events) else []
    means = [f"{row}_mean"] if total else []
    if ".*" in events:
        return [row, *means]
    numbers = pc.unique(run.samples(device, columns=[device])[device].cast(pa.string())).to_pylist()
    chosen = [n for n in numbers if any(matches(each, name.format(n)) for each in events)]
    return [*(f"{row}/{number}" for number in sorted(chosen, key=natural)), *means]


def microseconds(moment: datetime | None) -> int:
    """Returns a time as Debugger has it; 0 if it is unknown."""
    return 0 if moment is None else round(moment.timestamp() * 1e6)


def elapsed(run: Run, time_us: float | None) -> float | None:
    """Returns seconds since the run's start; None for 0 and None, which mean no limit."""
    known = limit(time_us)
    return None if known is None else (known - microseconds(run.start)) / 1e6


class Events:
    """The events of a run. With `cache`, the run is read once for each kind of them, until `refresh`."""

    def __init__(self, run: Run, cache: bool = False) -> None:
        self.run = run
        self._kept: dict[Callable[..., pa.Table], pa.Table] | None = {} if cache else None

    def of(
        self, make: Callable[..., pa.Table], start_us: float | None = None, end_us: float | None = None
    ) -> pa.Table:
        """Returns the rows of `system_events`, `framework_events`, ... between two times."""
        if self._kept is None:
            return make(self.run, start_us, end_us)
        if make not in self._kept:
            self._kept[make] = make(self.run)
        return during(self._kept[make], start_us, end_us)

    def refresh(self) -> None:
        """Reads the run again: later events include what was recorded meanwhile."""
        self.run.refresh()
        if self._kept is not None:
            self._kept.clear()


def system_events(run: Run, start_us: float | None = None, end_us: float | None = None) -> pa.Table:
    """Returns a row per reading (percent, or bytes per second) from `start_us` to `end_us`, both included."""
    start = elapsed(run, start_us)
    last = limit(end_us)
    end = elapsed(run, None if last is None else last + 1)
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
    starts, ends = _microseconds(steps)
    columns = [starts, ends, names, names, *(steps[name] for name in ("number", "node", "rank"))]
    return during(pa.table(columns, schema=FRAMEWORK), start_us, end_us)


def part_events(run: Run, start_us: float | None = None, end_us: float | None = None) -> pa.Table:
    """Returns a row per part of a step between two times: its wait for data, its forward pass, ...

    How long each part took was measured. When it began was not: parts follow each other in this order.
    """
    steps = run.steps()
    begin, _ = _microseconds(steps)
    found = []
    for component, (name, kind) in PARTS.items():
        took = pc.cast(pc.round(pc.multiply(steps[f"{component}_seconds"], 1e6)), pa.int64())
        end = pc.add(begin, took)
        words = [pa.repeat(each, len(steps)) for each in (name, kind)]
        columns = [begin, end, *words, *(steps[column] for column in ("number", "node", "rank"))]
        found.append(pa.table(columns, schema=FRAMEWORK).filter(pc.greater(took, 0)))
        begin = end
    return during(pa.concat_tables(found).sort_by("start_us"), start_us, end_us)


def wait_events(run: Run, start_us: float | None = None, end_us: float | None = None) -> pa.Table:
    """Returns a row per step that waited for data: a step begins with its wait."""
    return part_events(run, start_us, end_us).filter(pc.field("name") == WAIT)


def single_events(run: Run, start_us: float | None = None, end_us: float | None = None) -> pa.Table:
    """Returns a row per operator, kernel, collective or wait that is known by itself, between two times.

    Kinds are those of Debugger: cpu_functions, gpu_functions. No step is known.
    """
    events = run.events()
    kinds = [_KINDS.get(kind, kind) for kind in events["kind"].to_pylist()]
    starts, ends = _microseconds(events)
    steps = pa.nulls(len(events), pa.int64()).fill_null(-1)
    columns = [starts, ends, events["name"], kinds, steps, events["node"], events["rank"]]
    table = pa.table(columns, schema=FRAMEWORK).append_column("file", events["file"])
    return during(table, start_us, end_us)


def events_of_files(
    events: Events, suffixes: Sequence[str], start_us: float | None, end_us: float | None
) -> pa.Table:
    """Returns the events that Debugger writes into files with one of these suffixes.

    Steps and their parts are those of pythontimeline.json, unless such a file has its own.
    """
    kinds = files_of(suffixes)
    singles = events.of(single_events, start_us, end_us)
    found = [
        singles.filter(pc.field("file").isin(pa.array(sorted(kinds), pa.string()))).select(FRAMEWORK.names)
    ]
    if PYTHON in kinds and not len(singles.filter(pc.field("file") == PYTHON)):
        found += [events.of(make, start_us, end_us) for make in (framework_events, part_events)]
    return pa.concat_tables(found).sort_by("start_us")


def files_of(suffixes: Sequence[str]) -> set[str]:
    """Returns the kinds of files that these suffixes of names choose."""
    endings = tuple(suffix.lstrip("*_") for suffix in several(suffixes))
    return {kind for name, of_name in FILES.items() if name.endswith(endings) for kind in of_name}


PYTHON = "python"
FILES = {  # kinds of `Run.events` by how Debugger's names of their files end
    "pythontimeline.json": {PYTHON},
    "model_timeline.json": {"model"},
    "trace.json.gz": {"trace", "tensorflow"},
    "horovod_timeline.json": {"horovod"},
    "smdataparallel_timeline.json": {"smdataparallel"},
}
_KINDS = {"operator": "cpu_functions", "kernel": "gpu_functions", "copy": "gpu_functions"}


def _microseconds(timed: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Returns when each row began and ended."""
    starts = timed["start"].cast(pa.int64())
    took = pc.cast(pc.round(pc.multiply(timed["duration_seconds"], 1e6)), pa.int64())
    return starts, pc.add(starts, took)


def during(events: pa.Table, start_us: float | None, end_us: float | None) -> pa.Table:
    """Returns the events that overlap the time, or touch it."""
    begin, end = limit(start_us), limit(end_us)
    first, last = ("time_us", "time_us") if "time_us" in events.column_names else ("start_us", "end_us")
    if begin is not None:
        events = events.filter(pc.field(last) >= pa.scalar(begin))
    return events if end is None else events.filter(pc.field(first) <= pa.scalar(end))


def selected_events(
    events: Events, names: Sequence[str], start_us: float | None = None, end_us: float | None = None
) -> pa.Table:
    """Returns the events with one of these names or kinds, in order of time; without names, the steps.

    Raises NotImplementedError if the run has none of them at any time.
    """
    steps, names = events.of(framework_events, start_us, end_us), several(names)
    if not names:
        return steps
    known = {*STEP_NAMES.values(), *(word for part in PARTS.values() for word in part)}
    found = _named_or_of_kind(pa.concat_tables([steps, events.of(part_events, start_us, end_us)]), names)
    if others := set(names) - known:
        there = _named_or_of_kind(events.of(single_events).select(FRAMEWORK.names), sorted(others))
        if not len(there) and not known & set(names):
            raise not_served(f"a framework metric {names[0]!r}", f"choose from {', '.join(sorted(known))}")
        found = pa.concat_tables([found, during(there, start_us, end_us)])
    return found.sort_by("start_us")


def _named_or_of_kind(events: pa.Table, names: Sequence[str]) -> pa.Table:
    wanted = pa.array(list(names), pa.string())
    return events.filter(pc.field("name").isin(wanted) | pc.field("kind").isin(wanted))


def times_of_steps(run: Run, first: int, last: int) -> tuple[int, int]:
    """Returns when these training steps (both included) began and ended. Raises UserError if none did."""
    if run.start is None:
        raise UserError(f"{run.source}: does not know when the run began")
    there, begin = run.between(steps=(first, last)), microseconds(run.start)
    return begin + round(there.start * 1e6), begin + round(there.end * 1e6)
