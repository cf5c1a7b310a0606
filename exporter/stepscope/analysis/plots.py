"""Draws a run as Altair charts, which Jupyter, VS Code and Colab show: `stepscope.analysis.open(RUN).plot`.

Charts contain means or maxima of at most some thousand bins, however long the run was.
"""

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepscope.analysis.tables import STEPS
from stepscope.common.errors import UserError
from stepscope.runs.model import COMPONENTS

MOST_MARKS = 20_000  # of one chart
MOST_COLUMNS = 200  # of a chart over time
MOST_STEPS = 4000  # that a timeline draws one by one
BIN = 0.05  # of histograms of ratios
STEP_BINS = 40

# The rows of a heatmap: device of Run.samples, column, and the name of a row. "gpu/0" is the row of one GPU.
ROWS = {
    "gpu": ("gpu", "utilization_ratio", "GPU {}"),
    "gpu_memory": ("gpu", "memory_used_ratio", "GPU {} memory"),
    "cpu": ("cpu", "utilization_ratio", "CPU {}"),
    "io_wait": ("cpu", "io_wait_ratio", "CPU {} I/O wait"),
    "memory": ("node", "memory_used_ratio", "Memory"),
    "network": ("node", "network_bytes_per_second", "Network"),
    "disk": ("node", "disk_bytes_per_second", "Disk"),
    "gpu_mean": ("node", "gpu_utilization_ratio", "GPU, mean"),
    "gpu_memory_mean": ("gpu", "memory_used_ratio", "GPU memory, mean"),
    "cpu_mean": ("node", "cpu_utilization_ratio", "CPU, mean of the cores"),
    "io_wait_mean": ("node", "cpu_io_wait_ratio", "I/O wait, mean of the cores"),
}
SHARE = {"format": "%"}


class Plots:
    """The charts of a run. Each method returns a chart of Altair, which a notebook shows and you can edit.

    All need Altair, and raise UserError without it, or if there is nothing to draw.
    """

    def __init__(self, run: Any) -> None:
        self._run = run

    def histogram(
        self,
        device: str = "gpu",
        value: str = "utilization_ratio",
        start: float | None = None,
        end: float | None = None,
        by_node: bool = True,
        only: Sequence[str] | None = None,
    ) -> Any:
        """Returns how often each "gpu" or "cpu" had which `value`: a small histogram per device, in 5 % bins.

        `value` is a ratio of `Run.samples(device)`. Without `by_node`, GPU 0 is that of all nodes together.
        `only` has the numbers of devices, as in ["0"].
        """
        alt = _altair()
        table = self._samples(device, value, start, end, only)
        ratios = table[value].cast(pa.float64()).to_numpy() + 1e-6  # 0.15 is in the bin from 0.15 on
        bins = np.minimum(np.floor(ratios / BIN), round(1 / BIN) - 1) * BIN
        names = _names(table, device, f"{device.upper()} {{}}", by_node)
        counts = Counter(zip(names, bins.round(4).tolist(), strict=True))
        rows = [{"device": name, "from": begin, "count": count} for (name, begin), count in counts.items()]
        chart = alt.Chart(alt.Data(values=rows)).mark_bar().transform_calculate(to=f"datum.from + {BIN}")
        axis, scale = alt.Axis(**SHARE), alt.Scale(domain=[0, 1])
        x = alt.X("from:Q", bin="binned", title=value, axis=axis, scale=scale)
        encoded = chart.encode(
            x=x, x2="to:Q", y=alt.Y("count:Q", title="samples"), tooltip=["from:Q", "count:Q"]
        )
        return encoded.properties(width=160, height=80).facet(alt.Facet("device:N", title=None), columns=4)

    def step_histogram(
        self,
        phase: str = "train",
        start: float | None = None,
        end: float | None = None,
        by_rank: bool = True,
        value: str = "duration_seconds",
    ) -> Any:
        """Returns how many steps of a phase took how long: an outline per rank, or one of all.

        `value` may be a part of `Run.steps`, such as "forward_seconds": then steps without it do not count.
        """
        alt = _altair()
        if value not in STEPS.names or not value.endswith("_seconds"):
            raise UserError(f"value={value!r}: choose a duration of run.steps(), as in 'forward_seconds'")
        steps = self._within(self._steps(phase).filter(pc.field(value) > 0), start, end)
        took = steps[value].to_numpy()
        edges = np.linspace(took.min(), max(took.max(), took.min() + 1e-9), STEP_BINS + 1)
        ranks = steps["rank"].to_numpy() if by_rank else np.full(len(steps), "all")
        rows = [
            {"rank": rank.item(), "seconds": float(edge), "count": int(count)}
            for rank in np.unique(ranks)
            for edge, count in zip(edges, np.histogram(took[ranks == rank], edges)[0], strict=False)
        ]
        chart = alt.Chart(alt.Data(values=rows)).mark_line(interpolate="step-after")
        part = "" if value == "duration_seconds" else f"{value.removesuffix('_seconds')} in "
        x = alt.X("seconds:Q", title=f"seconds of {part}a {phase} step")
        return chart.encode(
            x=x, y=alt.Y("count:Q", title="steps"), color="rank:N", tooltip=["rank:N", "count:Q"]
        )

    def step_timeline(self, start: float | None = None, end: float | None = None) -> Any:
        """Returns when the steps of all ranks ran, a row per rank. Times are seconds since its start.

        A chart of many steps has only the longest of several consecutive ones.
        """
        alt = _altair()
        steps = self._within(self._run.steps(), start, end)
        every = -(-len(steps) // MOST_STEPS)
        names = ["rank", "phase", "number", "elapsed_seconds", "duration_seconds"]
        rows = [
            {**step, "end": step["elapsed_seconds"] + step["duration_seconds"]}
            for step in _longest(steps.select(names), every).to_pylist()
        ]
        title = "steps" if every == 1 else f"the longest of every {every} steps of a rank"
        chart = alt.Chart(alt.Data(values=rows), title=title).mark_bar(stroke="white", strokeWidth=0.3)
        x = _elapsed(alt)
        shown = [f"{name}:{kind}" for name, kind in zip(names, "NNQQQ", strict=True)]
        encoded = chart.encode(x=x, x2="end:Q", y="rank:O", color="phase:N", tooltip=shown)
        return encoded.properties(width=700).interactive(bind_y=False)

    def heatmap(
        self,
        rows: Sequence[str] = ("gpu", "cpu"),
        start: float | None = None,
        end: float | None = None,
        by_node: bool = True,
    ) -> Any:
        """Returns the use of devices over time, dark for idle and bright for busy.

        `rows` are of: gpu, gpu_memory, cpu, io_wait, memory, network, disk. The last two are shares of the
        largest rate seen. "gpu/0" is one GPU, "gpu_mean" the mean of a node's. Without `by_node`, GPU 0 is
        the mean of all nodes.
        """
        alt = _altair()
        found = self._grid(rows, start, end, by_node)
        names = list(dict.fromkeys(cell["row"] for cell in found))
        chart = alt.Chart(alt.Data(values=found)).mark_rect()
        x = _elapsed(alt)
        colour = alt.Color(
            "used:Q", scale=alt.Scale(scheme="viridis", domain=[0, 1]), legend=alt.Legend(**SHARE)
        )
        y = alt.Y("row:N", sort=names, title=None)
        shown = ["row:N", "elapsed_seconds:Q", alt.Tooltip("used:Q", **SHARE)]
        return chart.encode(x=x, x2="end:Q", y=y, color=colour, tooltip=shown).properties(width=700)

    def utilization(
        self,
        start: float | None = None,
        end: float | None = None,
        by_node: bool = True,
        rows: Sequence[str] = ("gpu", "cpu_mean"),
    ) -> Any:
        """Returns the use of cores and GPUs over time; a click shows below what ran then.

        `rows` are those of `heatmap`. Without `by_node`, GPU 0 is the mean of all nodes.
        """
        alt = _altair()
        grid = self._grid(rows, start, end, by_node)
        cells = [{**cell, "column": round(cell["elapsed_seconds"], 6)} for cell in grid]
        ran = self._ran(cells)
        first = [{"column": row["column"]} for row in ran[:1]]  # until somebody clicks
        click = alt.selection_point(fields=["column"], nearest=True, empty=False, value=first)
        x = _elapsed(alt, "; click to see what ran")
        y = alt.Y("used:Q", axis=alt.Axis(**SHARE), scale=alt.Scale(domain=[0, 1]), title="used")
        lines = alt.Chart(alt.Data(values=cells)).encode(x=x, y=y, color=alt.Color("row:N", title=None))
        near = lines.mark_point(size=60).encode(opacity=alt.condition(click, alt.value(1), alt.value(0)))
        upper = alt.layer(lines.mark_line(), near.add_params(click)).properties(width=700, height=200)
        lower = alt.Chart(alt.Data(values=ran)).mark_bar().transform_filter(click)
        lower = lower.encode(
            x=alt.X("seconds:Q", title="seconds of all ranks in steps that began then"),
            y=alt.Y("component:N", sort="-x", title=None),
            color=alt.Color("phase:N", title=None),
        )
        lower = lower.properties(width=700, height=20 * (1 + len(COMPONENTS)))
        return alt.vconcat(upper, lower).resolve_scale(color="independent")

    # -- data ---------------------------------------------------------------------------------------------

    def _samples(
        self,
        device: str,
        value: str,
        start: float | None = None,
        end: float | None = None,
        only: Sequence[str] | None = None,
    ) -> pa.Table:
        names = ["elapsed_seconds", "node", *([] if device == "node" else [device]), value]
        table = self._run.samples(device, start=start, end=end, columns=names)
        table = table.filter(pc.field(value).is_valid())
        if only is not None:
            numbers = pa.array([str(number) for number in only], pa.string())
            table = table.filter(pc.is_in(table[device].cast(pa.string()), value_set=numbers))
        if not len(table):
            raise UserError(f"{self._run.source}: has no {value} of {device} samples to draw")
        return table

    def _steps(self, phase: str) -> pa.Table:
        steps = self._run.steps().filter(pc.field("phase") == phase)
        if not len(steps):
            raise UserError(f"{self._run.source}: has no {phase} steps to draw")
        return steps

    def _within(self, steps: pa.Table, start: float | None, end: float | None) -> pa.Table:
        if start is not None:
            steps = steps.filter(pc.field("elapsed_seconds") >= start)
        if end is not None:
            steps = steps.filter(pc.field("elapsed_seconds") < end)
        if not len(steps):
            raise UserError(f"{self._run.source}: has no steps to draw")
        return steps

    def _grid(
        self, rows: Sequence[str], start: float | None, end: float | None, by_node: bool
    ) -> list[dict[str, Any]]:
        """Returns the cells of all rows, with fewer columns if there are many rows. Raises UserError."""
        wrong = [row for row in rows if not _is_row(row)]
        if wrong or not rows:
            raise UserError(f"rows={list(rows)!r}: choose from {', '.join(ROWS)}, or one device as in gpu/0")
        times = self._run.samples(start=start, end=end, columns=["elapsed_seconds"])["elapsed_seconds"]
        span = pc.min(times).as_py(), pc.max(times).as_py()  # so that all rows have the same columns
        found = [cell for row in rows for cell in self._cells(row, start, end, by_node, span)]
        if not found:
            raise UserError(f"{self._run.source}: has no samples of {', '.join(rows)}")
        if len(found) > MOST_MARKS:
            columns = max(MOST_MARKS // len({cell["row"] for cell in found}), 1)
            found = [cell for row in rows for cell in self._cells(row, start, end, by_node, span, columns)]
        return found

    def _cells(
        self,
        row: str,
        start: float | None,
        end: float | None,
        by_node: bool,
        span: tuple[float, float],
        columns: int = MOST_COLUMNS,
    ) -> list[dict[str, Any]]:
        """Returns the mean of each row in each column of time; nothing if it was not sampled."""
        kind, _, number = row.partition("/")
        device, value, name = ROWS[kind]
        try:
            table = self._samples(device, value, start, end, [number] if number else None)
        except UserError:
            return []
        names = _names(table, device, name, by_node)
        first, last = span
        width = max((last - first) / columns, 2 * self._run.interval)  # samples come a little late
        column = np.floor((table["elapsed_seconds"].to_numpy() - first) / width)
        column = np.minimum(column, columns - 1)
        values = pa.table({"row": names, "column": column, "used": table[value].cast(pa.float64())})
        means = values.group_by(["row", "column"], use_threads=False).aggregate([("used", "mean")])
        most = pc.max(means["used_mean"]).as_py() if value.endswith("per_second") else 1.0
        return [
            {
                "row": cell["row"],
                "elapsed_seconds": first + cell["column"] * width,
                "end": first + (cell["column"] + 1) * width,
                "used": cell["used_mean"] / (most or 1.0),
            }
            for cell in means.to_pylist()
        ]

    def _ran(self, cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the seconds of each phase and component of the steps that began in each column."""
        columns = np.array(sorted({cell["column"] for cell in cells}))
        steps = self._run.steps()
        at = np.searchsorted(columns, steps["elapsed_seconds"].to_numpy() + 1e-6, side="right") - 1
        steps = steps.append_column("column", pa.array(at)).filter(pc.field("column") >= 0)
        names = [f"{name}_seconds" for name in ("duration", *COMPONENTS)]
        sums = steps.group_by(["column", "phase"], use_threads=False).aggregate(
            [(name, "sum") for name in names]
        )
        rows = []
        for found in sums.to_pylist():
            parts = {name: found[f"{name}_seconds_sum"] for name in COMPONENTS}
            parts["host"] = max(found["duration_seconds_sum"] - sum(parts.values()), 0.0)
            shared = {"column": float(columns[found["column"]]), "phase": found["phase"]}
            rows += [shared | {"component": name, "seconds": spent} for name, spent in parts.items() if spent]
        return rows


def _is_row(row: str) -> bool:
    kind, slash, number = row.partition("/")
    return kind in ROWS and (not slash or (number.isdigit() and "{}" in ROWS[kind][2]))


def _altair() -> Any:
    try:
        return import_module("altair")
    except ImportError:
        raise UserError(
            "charts need Altair, which is not installed: pip install 'stepscope[notebook]'"
        ) from None


def _elapsed(alt: Any, hint: str = "") -> Any:
    """Returns the axis of time."""
    title = f"seconds since the run's start{hint}"
    return alt.X("elapsed_seconds:Q", title=title, scale=alt.Scale(zero=False))


def _names(table: pa.Table, device: str, name: str, by_node: bool) -> list[str]:
    """Returns the name of each row's device; `by_node`, it begins with the node if there are several."""
    nodes = table["node"].to_pylist()
    several = by_node and len(set(nodes)) > 1
    every = nodes if by_node else ["all"] * len(nodes)
    devices = every if device == "node" else table[device].to_pylist()
    names = {each: name.format(each) for each in set(devices)}
    named = [names[each] for each in devices]
    return [f"{node} {each}" for node, each in zip(nodes, named, strict=True)] if several else named


def _longest(steps: pa.Table, every: int) -> pa.Table:
    """Returns the longest of every so many consecutive steps of each rank."""
    if every == 1:
        return steps
    ranks, took = steps["rank"].to_numpy(), steps["duration_seconds"].to_numpy()
    kept: list[int] = []
    for rank in np.unique(ranks):
        own = np.flatnonzero(ranks == rank)
        kept += [int(part[np.argmax(took[part])]) for part in np.split(own, range(every, len(own), every))]
    return steps.take(pa.array(sorted(kept)))
