"""The data of the charts: one object of JSON values per chart."""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from stepscope.evaluation.analysis import Analysis, DeviceProfile, UtilisationHistogram
from stepscope.measurements.heatmap import Heatmap
from stepscope.measurements.steps import StepDistribution
from stepscope.measurements.timeline import StepTimeline
from stepscope.report.figures import main_steps
from stepscope.report.held import strips
from stepscope.report.hot_lines import compared_threads, part_name, thread_name
from stepscope.report.rows import outliers
from stepscope.report.sentences import device_name
from stepscope.report.shares import NAMES, steps_by_phase
from stepscope.rules.dataloader import Dataloader
from stepscope.runs.model import StackTime

MOST = 4  # graphs: of the slow rank and the one in the middle, and of other roles
LEAST = 0.001  # of the samples: a narrower rectangle is not seen
OTHER = "all others"
# Matplotlib's Viridis at 0, 10, ... 100 %: even to the eye, readable by the colour-blind and in print.
VIRIDIS = (
    "#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c",
    "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725",
)  # fmt: skip
KNOWN_TO = 0.02  # of a wait: waits are counted in steps of 1 %, which narrower bins would show
NOTHING_SAMPLED = 255  # in the bytes of a heatmap or a line; 0..100 are percent


def chart_data(analysis: Analysis) -> dict[str, Mapping[str, Any]]:
    """Returns the charts by name, as in the `data-chart` attributes of the page."""
    timelines = {timeline.node: timeline for timeline in analysis.timelines}
    charts: dict[str, Mapping[str, Any]] = {}
    for index, heatmap in enumerate(analysis.heatmaps):
        charts[f"heatmap-{index}"] = {
            **_heatmap(heatmap, timelines.get(heatmap.node)),
            "bands": strips(analysis, heatmap.node),
        }
    for index, heatmap in enumerate(each for each in analysis.heatmaps if each.gpu_memory):
        charts[f"memory-{index}"] = _memory(heatmap)
    for phase, rows in steps_by_phase(analysis).items():
        charts[f"steps-{phase}"] = _step_durations(rows)
    by_node: dict[str, list[UtilisationHistogram]] = {}
    for each in analysis.utilisation_histograms:
        by_node.setdefault(each.node, []).append(each)
    for index, histograms in enumerate(found for found in by_node.values() if len(found) > 1):
        charts[f"balance-{index}"] = _utilisation(histograms)
    if analysis.timelines:
        charts["durations"] = _durations(
            analysis, min(analysis.timelines, key=lambda timeline: timeline.rank)
        )
    waits = analysis.details_of(Dataloader).get("dataloading_time")
    if waits:
        charts["waits"] = _waits(waits)
    for index, graph in enumerate(flame_graphs(analysis)):
        charts[f"flames-{index}"] = flame_data(graph)
    for index, device in enumerate(analysis.profile.devices if analysis.profile is not None else ()):
        if any(window.stacks for window in device.windows):
            charts[f"window-flames-{index}"] = flame_data(window_flames(device))
    return charts


def marks_on_heatmap(analysis: Analysis, node: str) -> list[tuple[str, str]]:
    """Returns colour and meaning of the marks above the rows of a node's heatmap."""
    phases = [phase for line in analysis.timelines if line.node == node for phase in line.phase_seconds]
    starved = [cause for heatmap in analysis.heatmaps if heatmap.node == node for cause in _starved(heatmap)]
    held = [("band", "a rule held (over windows)")] if strips(analysis, node) else []
    marks = [(phase, NAMES[phase].lower()) for phase in phases]
    return [*held, *marks, *(STARVED[cause][:2] for cause in starved)]


# By cause of a bottleneck: the name of its colour, its meaning, and a short name.
STARVED = {
    "cpu": ("pinned-core", "GPU low while a core was pinned", "CPU-bound"),
    "io": ("waiting-core", "GPU low while a core waited for I/O", "I/O-bound"),
}


def _heatmap(heatmap: Heatmap, timeline: StepTimeline | None) -> dict[str, Any]:
    """Encodes cells as one byte each, row by row, in base64: a tenth of the size of JSON."""
    return {
        "kind": "heatmap",
        "colours": VIRIDIS,
        **_columns(heatmap),
        "gpuRows": sum(label.startswith("GPU") for label in heatmap.rows),
        "rows": heatmap.rows,
        "cells": _bytes(value for row in heatmap.values for value in row),
        "starved": [
            {"colour": STARVED[cause][0], "name": STARVED[cause][2], "cells": _bytes(row)}
            for cause, row in _starved(heatmap).items()
        ],
        "timeline": None if timeline is None else _timeline(timeline),
    }


def _starved(heatmap: Heatmap) -> dict[str, list[int | None]]:
    """Returns the rows by cause, without those that have nothing to mark."""
    return {cause: row for cause, row in heatmap.starved.items() if any(row)}


def _timeline(timeline: StepTimeline) -> dict[str, Any]:
    """Returns the share of each phase per column, of all ranks' time, and the marked steps."""
    whole = timeline.column_seconds * timeline.ranks
    return {
        "start": 1000 * timeline.start,
        "columnMilliseconds": 1000 * timeline.column_seconds,
        "phases": [
            {
                "phase": phase,
                "name": NAMES[phase],
                "cells": _bytes(round(100 * seconds / whole) for seconds in columns),
            }
            for phase, columns in timeline.phase_seconds.items()
        ],
        "marks": [[mark.number, 1000 * mark.start] for mark in timeline.marks],
    }


def _memory(heatmap: Heatmap) -> dict[str, Any]:
    names = [label for label in heatmap.rows if label.startswith("GPU")]
    series = zip(names, heatmap.gpu_memory, strict=False)
    return {
        "kind": "lines",
        **_columns(heatmap),
        "series": [{"name": name, "cells": _bytes(row)} for name, row in series],
    }


def _columns(heatmap: Heatmap) -> dict[str, Any]:
    return {
        "start": 1000 * heatmap.times[0] if heatmap.times else 0,
        "columnMilliseconds": 1000 * heatmap.column_seconds,
        "columns": len(heatmap.times),
    }


def _step_durations(rows: list[StepDistribution]) -> dict[str, Any]:
    series = [
        {
            "name": f"Rank {row.rank}",
            "edges": row.edges,
            "counts": row.counts,
            "middle": row.p50,
            "marks": {"mean": row.mean, "p50": row.p50, "p95": row.p95, "p99": row.p99},
        }
        for row in rows
    ]
    return _histogram("seconds", "steps", "duration of a step", series)


def _utilisation(histograms: Sequence[UtilisationHistogram]) -> dict[str, Any]:
    series = []
    for one in histograms:
        width = 100 / len(one.counts)
        edges = [width * edge for edge in range(len(one.counts) + 1)]
        total = sum(one.counts)
        middle = (
            sum(count * (edge + width / 2) for count, edge in zip(one.counts, edges, strict=False)) / total
        )
        series.append({"name": one.gpu, "edges": edges, "counts": one.counts, "middle": middle, "marks": {}})
    return _histogram("percent", "samples", "utilisation", series)


def _waits(waits: dict[str, Any]) -> dict[str, Any]:
    edges, counts = waits["binedges"], waits["probs"]
    width = edges[1] - edges[0]
    merged = max(1, math.ceil(KNOWN_TO * edges[-1] / width)) if width > 0 else 1
    starts = range(0, len(counts), merged)
    one = {
        "name": "Waits",
        "edges": [*(edges[start] for start in starts), edges[-1]],
        "counts": [sum(counts[start : start + merged]) for start in starts],
        "middle": waits["p50"],
        "marks": {name: waits[name] for name in ("p25", "p50", "p95")},
    }
    return _histogram("seconds", "waits", "duration of a wait", [one])


def _histogram(unit: str, of: str, along: str, series: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": "histogram", "unit": unit, "of": of, "along": along, "series": series}


def _durations(analysis: Analysis, timeline: StepTimeline) -> dict[str, Any]:
    """Returns number and seconds of the main phase's steps, and the slowest component of outliers."""
    phase = next((row.phase for row in main_steps(analysis)), "train")
    return {
        "kind": "durations",
        "steps": [[mark.number, mark.seconds] for mark in timeline.marks if mark.phase == phase],
        "outliers": [
            [one.number, one.seconds, NAMES.get(one.component, one.component) if one.component else ""]
            for one in outliers(analysis)
            if (one.rank, one.phase) == (timeline.rank, phase)
        ],
    }


def _bytes(values: Iterable[int | None]) -> str:
    cells = bytes(NOTHING_SAMPLED if value is None else min(max(value, 0), 100) for value in values)
    return base64.b64encode(cells).decode("ascii")


class Flame(NamedTuple):
    """A rectangle from `start` on, in a row below that of its caller. Times are in seconds of samples."""

    row: int
    start: float
    seconds: float
    name: str
    caller: int  # its place in the graph; -1: there is none


class FlameGraph(NamedTuple):
    """The rectangles of a thread; the first one is all of its samples, below it parts or windows."""

    name: str
    flames: list[Flame]


class _Node:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.callees: dict[str, _Node] = {}


def flame_graphs(analysis: Analysis) -> list[FlameGraph]:
    """Returns the graphs of the threads whose lines are shown, and of those that they are compared with."""
    threads = [thread for pair in compared_threads(analysis) for thread in pair if thread is not None]
    return [
        _graph(
            thread_name(thread),
            ((part_name(thread.role, each.phase, each.component) or OTHER, each) for each in thread.stacks),
        )
        for thread in [thread for thread in threads if thread.stacks][:MOST]
    ]


def window_flames(device: DeviceProfile) -> FlameGraph:
    """Returns the graph of the Python windows of a rank."""
    windows = [(f"steps {window.first} to {window.last}", window.stacks) for window in device.windows]
    stacks = ((name, stack) for name, stacks in windows for stack in stacks)
    return _graph(f"rank {device.rank}, {device_name(device.device)}", stacks)


def flame_data(graph: FlameGraph) -> Mapping[str, Any]:
    """Returns the chart; names are listed once."""
    names = {flame.name: None for flame in graph.flames}
    numbers = {name: number for number, name in enumerate(names)}
    return {
        "kind": "flames",
        "title": graph.name,
        "names": list(names),
        "flames": [
            [flame.row, round(flame.start, 3), round(flame.seconds, 3), numbers[flame.name], flame.caller]
            for flame in graph.flames
        ],
    }


def _graph(title: str, stacks: Iterable[tuple[str, StackTime]]) -> FlameGraph:
    """Returns the graph of stacks and the part of each."""
    root = _Node()
    for part, stack in stacks:
        node = root
        node.seconds += stack.seconds
        for name in (part, *stack.functions):
            node = node.callees.setdefault(name, _Node())
            node.seconds += stack.seconds
    found: list[Flame] = []
    open_nodes = [(root, title, 0, 0.0, -1)]
    while open_nodes:
        node, name, row, start, caller = open_nodes.pop()
        place = len(found)
        found.append(Flame(row, start, node.seconds, name, caller))
        for callee, below in sorted(node.callees.items(), key=lambda item: -item[1].seconds):
            if below.seconds >= LEAST * root.seconds:
                open_nodes.append((below, callee, row + 1, start, place))
            start += below.seconds
    return FlameGraph(title, found)
