"""Arrow tables of steps, ranks, findings and comparisons, with the units in the columns' metadata."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from stepscope.common.errors import UserError
from stepscope.compare.figures import Figure
from stepscope.evaluation.analysis import RuleResult
from stepscope.measurements.usage import UsageRow
from stepscope.runs.gauge_history import GaugeHistory
from stepscope.runs.model import (
    COMPONENTS,
    PHASES,
    CollectiveTime,
    OperatorTime,
    ProfileWindow,
    RankFacts,
    Steps,
    ThreadTime,
    TimedEvent,
    Times,
)
from stepscope.training.window_files import PYTHON

ENCODED = pa.dictionary(pa.int16(), pa.string())  # few different names in many rows
BASE_UNITS = {  # by the unit that the report shows
    "%": "ratio",
    "B/s": "bytes/second",
    "operations/s": "operations/second",
    "s": "seconds",
    "J": "joules",
    "$": "dollars",
    "steps/s": "steps/second",
    "items/s": "items/second",
    "tokens/s": "tokens/second",
    "samples/s": "samples/second",
    "": "",  # a count
}


def column(name: str, kind: pa.DataType, unit: str = "") -> pa.Field:
    """Returns a field with its unit as metadata; names and sentences have no unit."""
    return pa.field(name, kind, metadata={"unit": unit} if unit else None)


def moment(time: float | None) -> datetime | None:
    """Returns a time since the epoch in UTC; None if it is unknown."""
    return None if time is None else datetime.fromtimestamp(time, UTC)


def columns(kind: pa.DataType, unit: str, *names: str) -> list[pa.Field]:
    """Returns fields of the same kind and unit."""
    return [column(name, kind, unit) for name in names]


def schema(*fields: pa.Field) -> pa.Schema:
    return pa.schema(fields)


_RANK = [column("node", pa.string()), column("rank", pa.int32())]
STEPS = schema(
    *_RANK,
    column("phase", pa.string()),
    column("number", pa.int64()),
    column("start", pa.timestamp("us", tz="UTC")),
    column("elapsed_seconds", pa.float64(), "seconds"),
    *columns(pa.float64(), "seconds", *(f"{part}_seconds" for part in ("duration", *COMPONENTS))),
)
ACCOUNT = schema(
    *(column(name, pa.string()) for name in ("part", "component")),
    column("seconds", pa.float64(), "seconds"),
    column("run_ratio", pa.float64(), "ratio"),
    column("rank", pa.int32()),
    column("rank_seconds", pa.float64(), "seconds"),
)
RANK_PHASES = schema(
    *_RANK,
    column("phase", pa.string()),
    column("steps", pa.int64(), "steps"),
    column("seconds", pa.float64(), "seconds"),
)
RANK_COMPONENTS = schema(
    *_RANK,
    column("component", pa.string()),
    column("seconds", pa.float64(), "seconds"),
    column("step_time_ratio", pa.float64(), "ratio"),
)
GAPS = schema(
    *columns(pa.string(), "", "what", "node"),
    *columns(pa.timestamp("us", tz="UTC"), "", "start", "end"),
    column("count", pa.int64()),
    column("reason", pa.string()),
)
FINDINGS = schema(
    *columns(pa.string(), "", "rule", "status"),
    column("seconds_lost", pa.float64(), "seconds"),
    *columns(pa.string(), "", "finding", "recommendation", "question"),
    column("triggered", pa.int64(), "scans"),
    *columns(pa.int64(), "", "violations", "datapoints"),
)
BANDS = schema(
    *columns(pa.string(), "", "rule", "node", "subject"),
    *columns(pa.timestamp("us", tz="UTC"), "", "start", "end"),
    column("lasts", pa.bool_()),
    column("worst", pa.float64(), "see words"),
    column("words", pa.string()),
)
USAGE = schema(
    *columns(pa.string(), "", "node", "resource", "unit"),
    *columns(pa.float64(), "see unit", "max", "p99", "p95", "p50", "min"),
)
LOADERS = schema(
    *_RANK,
    column("phase", pa.string()),
    column("workers", pa.int32(), "processes"),
    column("pin_memory", pa.bool_()),
    column("prefetch_factor", pa.int32(), "batches"),
    column("batch_size", pa.int64(), "items"),
    column("fetches", pa.int64(), "fetches"),
    *columns(pa.float64(), "seconds", "fetch_seconds", "fetch_cpu_seconds", "fetch_core_wait_seconds"),
)
GAUGES = schema(
    *_RANK,
    column("name", ENCODED),
    column("time", pa.timestamp("us", tz="UTC")),
    column("elapsed_seconds", pa.float64(), "seconds"),
    column("value", pa.float64(), "as published"),
)
FIGURES = schema(
    *columns(pa.string(), "", "figure", "name", "unit"),
    *columns(pa.float64(), "see unit", "a", "b"),
    *columns(pa.float64(), "ratio", "change_ratio", "change_low_ratio", "change_high_ratio"),
)
LINES = schema(
    *_RANK,
    *columns(pa.string(), "", "role", "phase", "component", "place", "function", "library", "caller"),
    *columns(pa.float64(), "seconds", "seconds", "running_seconds"),
)
OPERATORS = schema(
    *_RANK,
    *columns(pa.string(), "", "device", "operator"),
    column("calls", pa.int64(), "calls"),
    *columns(pa.float64(), "seconds", "seconds", "self_seconds"),
)
FUNCTIONS = OPERATORS.append(column("primitive_calls", pa.int64(), "calls"))
EVENTS = schema(
    *_RANK,
    *columns(pa.string(), "", "device", "kind", "name"),
    column("start", pa.timestamp("us", tz="UTC")),
    *columns(pa.float64(), "seconds", "elapsed_seconds", "duration_seconds"),
    column("file", pa.string()),
)
WINDOWS = schema(
    *_RANK,
    column("kind", pa.string()),
    *columns(pa.int64(), "", "first", "last"),
    column("start", pa.timestamp("us", tz="UTC")),
    *columns(pa.float64(), "seconds", "step_seconds", "pause_seconds"),
    *columns(pa.string(), "", "state", "reason", "trace"),
)
COLLECTIVES = schema(
    *_RANK,
    column("operation", pa.string()),
    column("calls", pa.int64(), "calls"),
    *columns(pa.float64(), "seconds", "seconds", "exposed_seconds"),
)


def chosen(every: pa.Schema, names: Sequence[str] | None) -> pa.Schema:
    """Returns the schema of these columns, in their order. Raises UserError for an unknown one."""
    if names is None:
        return every
    for name in names:
        if name not in every.names:
            raise UserError(f"columns: {name!r} does not exist; choose from {', '.join(every.names)}")
    return schema(*map(every.field, names))


def as_table(fields: pa.Schema, values: Mapping[str, Any]) -> pa.Table:
    """Returns arrays of numbers as a table. NaN becomes null, which Arrow's means skip."""
    return pa.table([_array(values[field.name], field.type) for field in fields], schema=fields)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    array = pa.array(values, from_pandas=True) if isinstance(values, np.ndarray) else values
    return array.cast(kind, safe=False)


def timestamps(times: Times) -> pa.Array:
    """Returns seconds since the epoch as timestamps, to the microsecond."""
    microseconds = np.rint(times * 1e6).astype(np.int64)
    return pa.array(microseconds).cast(pa.timestamp("us", tz="UTC"))


def elapsed(times: Times, start: float | None) -> Times:
    """Returns seconds since the run's start; NaN if the start is unknown."""
    return times - (np.nan if start is None else start)


def steps(chunk: Steps, start: float | None) -> pa.Table:
    """Returns one row per step; `start` is the run's, in seconds since the epoch."""
    rows = len(chunk)
    components = {f"{name}_seconds": chunk.components[:, index] for index, name in enumerate(COMPONENTS)}
    return as_table(
        STEPS,
        {
            "node": pa.repeat(chunk.node, rows),
            "rank": pa.repeat(chunk.rank, rows),
            "phase": pa.DictionaryArray.from_arrays(pa.array(chunk.phases), pa.array(PHASES)),
            "number": chunk.numbers,
            "start": timestamps(chunk.starts),
            "elapsed_seconds": elapsed(chunk.starts, start),
            "duration_seconds": chunk.durations,
            **components,
        },
    )


def listed(found: Iterable[Any], fields: pa.Schema, **others: Callable[[Any], Any]) -> pa.Table:
    """Returns one row per item: its attributes of the columns' names, unless one of `others` returns them."""
    values = {name: others.get(name) or attrgetter(name) for name in fields.names}
    return pa.Table.from_pylist([{name: of(each) for name, of in values.items()} for each in found], fields)


def phases(ranks: Iterable[RankFacts]) -> pa.Table:
    """Returns one row per rank and phase, summed over the rank's processes."""
    seconds, finished = _summed(ranks, "phase_seconds"), _summed(ranks, "steps")
    rows = [
        {"node": key[0], "rank": key[1], "phase": key[2], "steps": finished.get(key), "seconds": spent}
        for key, spent in seconds.items()
    ]
    return pa.Table.from_pylist(rows, RANK_PHASES)


def components(ranks: Iterable[RankFacts]) -> pa.Table:
    """Returns one row per rank and component, summed over the rank's processes."""
    in_steps: dict[tuple[str, int], float] = {}
    for (node, rank, phase), spent in _summed(ranks, "phase_seconds").items():
        if phase in PHASES:
            in_steps[node, rank] = in_steps.get((node, rank), 0.0) + spent
    rows = []
    for (node, rank, component), spent in _summed(ranks, "component_seconds").items():
        total = in_steps.get((node, rank))
        row = {"node": node, "rank": rank, "component": component, "seconds": spent}
        rows.append({**row, "step_time_ratio": spent / total if total else None})
    return pa.Table.from_pylist(rows, RANK_COMPONENTS)


def _summed(ranks: Iterable[RankFacts], totals: str) -> dict[tuple[str, int, str], float]:
    """Returns totals by node, rank and name, in the order of the ranks."""
    sums: dict[tuple[str, int, str], float] = {}
    for rank in sorted(ranks, key=lambda rank: (rank.rank, rank.node, rank.start)):
        for name, amount in getattr(rank, totals).items():
            key = rank.node, rank.rank, name
            sums[key] = sums.get(key, 0) + amount
    return sums


def bands(rules: Iterable[RuleResult]) -> pa.Table:
    """Returns one row per time in which a rule held."""
    rows = [
        {"rule": rule.rule, **asdict(band), "start": moment(band.start), "end": moment(band.end)}
        for rule in rules
        for band in rule.bands
    ]
    return pa.Table.from_pylist(rows, BANDS)


def usage(resources: Iterable[UsageRow]) -> pa.Table:
    """Returns one row per node and resource, percentages as ratios."""
    rows = []
    for row in resources:
        values = {name: _in_base_unit(getattr(row, name), row.unit) for name in USAGE.names[3:]}
        rows.append({"node": row.node, "resource": row.resource, "unit": BASE_UNITS[row.unit], **values})
    return pa.Table.from_pylist(rows, USAGE)


def gauges(histories: Iterable[GaugeHistory], start: float | None) -> pa.Table:
    """Returns one row per value, gauge by gauge; `start` is the run's. A NaN that was published stays NaN."""
    found = [
        pa.table(
            [
                *(pa.repeat(each, len(history.times)) for each in (history.node, history.rank)),
                pa.repeat(history.name, len(history.times)),
                timestamps(history.times),
                _array(elapsed(history.times, start), pa.float64()),
                pa.array(history.values),
            ],
            names=GAUGES.names,
        ).cast(GAUGES)
        for history in histories
    ]
    return pa.concat_tables([GAUGES.empty_table(), *found]).unify_dictionaries()


def lines(threads: Iterable[ThreadTime]) -> pa.Table:
    """Returns one row per sampled line and what it did, the most time first."""
    rows = [
        {
            **{name: getattr(line, name) for name in LINES.names[3:8]},
            "node": thread.node,
            "rank": thread.rank,
            "role": thread.role,
            "caller": line.caller_place,
            "seconds": line.total,
            "running_seconds": line.running,
        }
        for thread in threads
        for line in thread.lines
    ]
    return pa.Table.from_pylist(sorted(rows, key=lambda row: -row["seconds"]), LINES)


def events(found: Iterable[TimedEvent], start: float | None) -> pa.Table:
    """Returns one row per call, in the order of their starts; `start` is the run's."""
    return listed(
        found,
        EVENTS,
        start=lambda each: round(each.start * 1e6),
        elapsed_seconds=lambda each: None if start is None else each.start - start,
        duration_seconds=attrgetter("duration"),
    ).sort_by("start")


def windows(found: Iterable[ProfileWindow]) -> pa.Table:
    """Returns one row per profile window, in the order in which they began."""

    def kind(window: ProfileWindow) -> str | None:
        return ("python" if window.trace.endswith(PYTHON) else "operators") if window.trace else None

    return listed(found, WINDOWS, kind=kind, start=lambda window: moment(window.start))


def timed(found: Iterable[OperatorTime] | Iterable[CollectiveTime], fields: pa.Schema) -> pa.Table:
    """Returns one row per operator or collective, the most time first."""
    return listed(sorted(found, key=lambda each: -each.seconds), fields)


def figures(compared: Iterable[Figure]) -> pa.Table:
    """Returns one row per figure of two runs, percentages as ratios; counts have no unit."""
    return listed(
        compared,
        FIGURES,
        figure=attrgetter("key"),
        unit=lambda each: BASE_UNITS[each.unit],
        a=lambda each: _in_base_unit(each.a, each.unit),
        b=lambda each: _in_base_unit(each.b, each.unit),
        change_ratio=lambda each: each.change / 100 if each.is_share and each.change else each.change,
        change_low_ratio=lambda each: each.interval and each.interval.low,
        change_high_ratio=lambda each: each.interval and each.interval.high,
    )


def _in_base_unit(value: float | None, unit: str) -> float | None:
    """Returns the value; None if it is unknown, which Arrow makes null."""
    if value is None or not np.isfinite(value):
        return None
    return value / 100 if unit == "%" else value
