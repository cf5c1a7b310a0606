"""Joins samples with the steps that ran meanwhile: which phase, which step, of which rank."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stepscope.analysis.tables import column, columns, schema
from stepscope.common.errors import UserError
from stepscope.runs.model import PHASES, Times

BEFORE, BETWEEN, AFTER = "initialization", "other", "finalization"  # as in Run.phases
_PERCENTILES = {"min": 0, "p50": 50, "p95": 95, "p99": 99, "max": 100}
_RATIOS = ("cpu_utilization_ratio", "cpu_io_wait_ratio", "gpu_utilization_ratio", "memory_used_ratio")
_RATES = ("network_bytes_per_second", "disk_bytes_per_second")

_RANK = [column("node", pa.string()), column("rank", pa.int32()), column("phase", pa.string())]
INTERVALS = schema(
    *_RANK,
    column("start", pa.timestamp("us", tz="UTC")),
    *columns(pa.float64(), "seconds", "elapsed_seconds", "duration_seconds"),
    column("steps", pa.int64(), "steps"),
    *columns(pa.int64(), "", "first", "last"),
)
STATISTICS = schema(
    *_RANK,
    column("steps", pa.int64(), "steps"),
    *columns(pa.float64(), "seconds", "sum_seconds", "mean_seconds", "deviation_seconds"),
    *columns(pa.float64(), "seconds", *(f"{name}_seconds" for name in _PERCENTILES)),
)
BY_PHASE = schema(
    *columns(pa.string(), "", "node", "phase"),
    column("samples", pa.int64(), "samples"),
    *columns(pa.float64(), "ratio", *_RATIOS),
    *columns(pa.float64(), "bytes/second", *_RATES),
)
WHILE_LOW = schema(
    *columns(pa.string(), "", "node", "gpu", "phase"),
    column("samples", pa.int64(), "samples"),
    *columns(pa.float64(), "ratio", "low_ratio", "phase_ratio"),
)

RANGES = schema(
    *columns(pa.string(), "", "node", "device"),
    *columns(pa.float64(), "ratio", "from_ratio", "to_ratio"),
    column("samples", pa.int64(), "samples"),
    column("samples_ratio", pa.float64(), "ratio"),
)


@dataclass(frozen=True)
class RankSteps:
    """The finished steps of one rank in the order of their starts. n steps, seconds since the epoch."""

    node: str
    rank: int
    phases: NDArray[Any]  # (n,) names
    numbers: NDArray[np.int64]  # (n,)
    starts: Times  # (n,)
    durations: Times  # (n,)

    def running(self, times: Times) -> NDArray[np.intp]:
        """Returns the index of the step that ran at each time; -1: none did."""
        at = np.searchsorted(self.starts, times, side="right") - 1
        return np.where((at >= 0) & (times < self.starts[at] + self.durations[at]), at, -1)

    def phases_at(self, times: Times) -> NDArray[Any]:
        """Returns the phase at each time, also before, between and after steps."""
        at = self.running(times)
        outside = np.where(times < self.starts[0], BEFORE, BETWEEN)
        outside = np.where(times >= self.starts[-1] + self.durations[-1], AFTER, outside)
        return np.where(at >= 0, self.phases[at], outside)


def steps_of_ranks(steps: pa.Table) -> list[RankSteps]:
    """Returns the steps of each rank, by node and rank. `steps` is a table of `Run.steps`."""
    found = []
    for node, rank in sorted(set(zip(steps["node"].to_pylist(), steps["rank"].to_pylist(), strict=True))):
        own = steps.filter((pc.field("node") == node) & (pc.field("rank") == rank))
        found.append(
            RankSteps(
                node,
                rank,
                np.array(own["phase"].to_pylist(), dtype=object),
                own["number"].to_numpy(),
                seconds(own["start"]),
                own["duration_seconds"].to_numpy(),
            )
        )
    return found


def seconds(times: pa.ChunkedArray) -> Times:
    """Returns timestamps as seconds since the epoch."""
    values: Times = times.cast(pa.int64()).to_numpy() / 1e6
    return values


def joined(samples: pa.Table, ranks: Sequence[RankSteps], interval: float) -> pa.Table:
    """Returns a row per sample and rank of its node, with the columns rank, phase and step.

    `step` is null outside steps. A node without steps has one row per sample, in which all three are null.
    """
    parts = [_with_rank(samples.slice(0, 0), None, interval)]
    for node in pc.unique(samples["node"].cast(pa.string())).to_pylist():
        own = samples.filter(pc.equal(samples["node"].cast(pa.string()), node))
        there: list[RankSteps | None] = [rank for rank in ranks if rank.node == node]
        parts += [_with_rank(own, rank, interval) for rank in there or [None]]
    order = [("time", "ascending"), ("rank", "ascending")]
    return pa.concat_tables(parts).unify_dictionaries().sort_by(order)


def _with_rank(samples: pa.Table, rank: RankSteps | None, interval: float) -> pa.Table:
    count = len(samples)
    if rank is None:
        ranks, phases, numbers = (pa.nulls(count, kind) for kind in (pa.int32(), pa.string(), pa.int64()))
    else:
        times = seconds(samples["time"]) - interval / 2  # in the middle of what each sample measures
        at = rank.running(times)
        ranks = pa.array(np.full(count, rank.rank, np.int32))
        phases = pa.array(rank.phases_at(times), pa.string())
        numbers = pa.array(rank.numbers[at], pa.int64(), mask=at < 0)
    table = samples.append_column("rank", ranks).append_column("phase", phases)
    return table.append_column("step", numbers)


def first_rank_only(ranks: Sequence[RankSteps]) -> list[RankSteps]:
    """Returns the first rank of each node with steps: what a node's samples are split by."""
    return list({rank.node: rank for rank in reversed(ranks)}.values())


def by_phase(samples: pa.Table, ranks: Sequence[RankSteps], interval: float) -> pa.Table:
    """Returns the mean of each node's samples in each phase of its first rank."""
    table = joined(samples, first_rank_only(ranks), interval).filter(pc.field("phase").is_valid())
    means = [(name, "mean") for name in (*_RATIOS, *_RATES)]
    grouped = _grouped(table, ["node", "phase"], [("time", "count"), *means])
    return grouped.rename_columns(BY_PHASE.names).cast(BY_PHASE)


def while_low(samples: pa.Table, ranks: Sequence[RankSteps], interval: float, below: float) -> pa.Table:
    """Returns, by GPU and phase of the node's first rank, the samples in which the GPU was below `below`."""
    table = joined(samples, first_rank_only(ranks), interval)
    table = table.filter(pc.field("phase").is_valid() & pc.field("utilization_ratio").is_valid())
    table = table.append_column("low", pc.less(table["utilization_ratio"], below).cast(pa.int64()))
    counted = _grouped(table, ["node", "gpu", "phase"], [("low", "sum"), ("low", "count")]).to_pylist()
    low: dict[tuple[str, str], int] = {}
    for row in counted:
        low[row["node"], row["gpu"]] = low.get((row["node"], row["gpu"]), 0) + row["low_sum"]
    rows = [
        {
            **{name: row[name] for name in ("node", "gpu", "phase")},
            "samples": row["low_sum"],
            "low_ratio": row["low_sum"] / low[row["node"], row["gpu"]],
            "phase_ratio": row["low_sum"] / row["low_count"],
        }
        for row in counted
        if row["low_sum"]
    ]
    return pa.Table.from_pylist(rows, WHILE_LOW)


def ranges(samples: pa.Table, device: str, edges: Sequence[float]) -> pa.Table:
    """Returns how many samples of each device had a utilisation in each range between the edges.

    A range includes its lower edge; the last one also includes 1. Samples without a reading do not count.
    """
    bounds = np.array([0.0, *edges, 1.0])
    if np.any(np.diff(bounds) <= 0):
        raise UserError(f"edges={tuple(edges)!r}: must rise, and be between 0 and 1, as in (0.1, 0.9)")
    read = samples.filter(pc.field("utilization_ratio").is_valid())
    names = [read[name].cast(pa.string()).to_numpy(zero_copy_only=False) for name in ("node", device)]
    # 0.9 is stored a little below 0.9, and readings are percents.
    used = read["utilization_ratio"].cast(pa.float64()).to_numpy().round(3)
    rows = []
    for node, number in sorted(set(zip(*names, strict=True)), key=lambda key: (key[0], len(key[1]), key[1])):
        counts = np.histogram(used[(names[0] == node) & (names[1] == number)], bounds)[0]
        for begin, end, count in zip(bounds, bounds[1:], counts.tolist(), strict=False):
            row = {"node": node, "device": number, "from_ratio": begin, "to_ratio": end}
            rows.append({**row, "samples": count, "samples_ratio": count / int(counts.sum())})
    return pa.Table.from_pylist(rows, RANGES)


def _grouped(table: pa.Table, keys: list[str], sums: list[tuple[str, str]]) -> pa.Table:
    """Returns a row per combination of the keys, sorted, with the keys first."""
    for name in keys:
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].cast(pa.string()))
    found = table.group_by(keys).aggregate(sums)
    return found.select([*keys, *(f"{name}_{kind}" for name, kind in sums)]).sort_by(
        [(key, "ascending") for key in keys]
    )


def intervals(ranks: Sequence[RankSteps], start: float | None) -> pa.Table:
    """Returns a row per stretch of consecutive steps of one phase; `start` is the run's."""
    return pa.Table.from_pylist([row for rank in ranks for row in _stretches(rank, start)], INTERVALS)


def _stretches(rank: RankSteps, start: float | None) -> Iterator[dict[str, Any]]:
    is_another = (rank.phases[1:] != rank.phases[:-1]) | (np.diff(rank.numbers) < 0)  # or of another process
    firsts = np.flatnonzero(np.concatenate(([True], is_another)))
    for first, following in zip(firsts, [*firsts[1:], len(rank.starts)], strict=True):
        last, began = following - 1, float(rank.starts[first])
        yield {
            "node": rank.node,
            "rank": rank.rank,
            "phase": rank.phases[first],
            "start": round(began * 1e6),
            "elapsed_seconds": None if start is None else began - start,
            "duration_seconds": float(rank.starts[last] + rank.durations[last]) - began,
            "steps": int(following - first),
            "first": int(rank.numbers[first]),
            "last": int(rank.numbers[last]),
        }


def statistics(ranks: Sequence[RankSteps]) -> pa.Table:
    """Returns a row per rank and phase of its steps."""
    rows = []
    for rank in ranks:
        for phase in (phase for phase in PHASES if phase in set(rank.phases)):
            took = rank.durations[rank.phases == phase]
            values = np.percentile(took, list(_PERCENTILES.values())).tolist()
            row = {"node": rank.node, "rank": rank.rank, "phase": phase, "steps": len(took)}
            row |= {"sum_seconds": took.sum(), "mean_seconds": took.mean(), "deviation_seconds": took.std()}
            named = zip(_PERCENTILES, values, strict=True)
            rows.append({**row, **{f"{name}_seconds": value for name, value in named}})
    return pa.Table.from_pylist(rows, STATISTICS)


def chosen_steps(steps: pa.Table, numbers: tuple[int, int], phase: str | None, rank: int | None) -> pa.Table:
    """Returns the steps with these numbers (both included) of one phase: by default training.

    Numbers begin at 0 again in each process of a rank: those are returned that were made last.

    Raises UserError if there are none, naming those that there are.
    """
    there = pc.unique(steps["phase"]).to_pylist()
    phase = phase or ("train" if "train" in there else max(there, default="train"))
    of_phase = steps.filter(pc.field("phase") == phase)
    if rank is not None:
        of_phase = of_phase.filter(pc.field("rank") == rank)
    first, last = numbers
    if not all(isinstance(each, Real) for each in numbers):
        raise UserError(f"steps {first!r} to {last!r}: are not numbers")
    number = of_phase["number"].to_numpy()
    found = of_phase.filter(pa.array((number >= first) & (number <= last)))
    keys = zip(*(found[name].to_pylist() for name in ("node", "rank", "number")), strict=True)
    found = found.take(pa.array(sorted({key: row for row, key in enumerate(keys)}.values()), pa.int64()))
    if not len(found):
        known = pc.min_max(of_phase["number"]).as_py()
        has = f"{phase} has steps {known['min']} to {known['max']}" if len(of_phase) else f"{phase} has none"
        raise UserError(f"steps {first} to {last}: were not recorded; {has}")
    return found


class Stretch:
    """A part of a run: what the machine and the ranks did meanwhile. Seconds since the run's start."""

    def __init__(self, run: Any, start: float, end: float, steps: pa.Table | None = None) -> None:
        self._run = run
        self.start = start
        self.end = end
        self._steps = steps

    def __repr__(self) -> str:
        return f"<{self._run.name} from {self.start:.3f} s to {self.end:.3f} s>"

    @property
    def duration(self) -> float:
        """Returns its seconds."""
        return self.end - self.start

    def samples(self, device: Any = "node", *, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the rows of `Run.samples` that measured it, by their middle; at least one per device."""
        middle = self._run.interval / 2
        until = max(self.end, self.start + self._run.interval)
        table: pa.Table = self._run.samples(
            device, start=self.start + middle, end=until + middle, columns=columns
        )
        return table

    def steps(self) -> pa.Table:
        """Returns the rows of `Run.steps`: those of the given numbers, or those that ran meanwhile."""
        if self._steps is not None:
            return self._steps
        steps: pa.Table = self._run.steps()
        ends = pc.add(steps["elapsed_seconds"], steps["duration_seconds"])
        return steps.filter(
            pc.and_(pc.less(steps["elapsed_seconds"], self.end), pc.greater(ends, self.start))
        )

    def joined(self, device: Any = "node") -> pa.Table:
        """Returns a row per sample and rank of its node: the columns of `samples`, and those below.

        rank   of the node; null without steps
        phase  in which the rank was: as in `Run.phases`
        step   its number; null outside steps"""
        ranks = steps_of_ranks(self._run.steps())
        return joined(self.samples(device), ranks, self._run.interval)
