"""Flame graphs of the main threads: the whole stacks of their samples, as rectangles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stepscope.evaluation.analysis import Analysis
from stepscope.report.hot_lines import compared_threads, part_name, thread_name
from stepscope.runs.model import ThreadTime

MOST = 4  # graphs: of the slow rank and the one in the middle, and of other roles
LEAST = 0.001  # of the samples: a narrower rectangle is not seen
OTHER = "all others"


class Flame(NamedTuple):
    """A rectangle from `start` on, in a row below that of its caller. Times are in seconds of samples."""

    row: int
    start: float
    seconds: float
    name: str
    caller: int  # its place in the graph; -1: there is none


class FlameGraph(NamedTuple):
    """The rectangles of a thread; the first one is all of its samples, below it the parts of the run."""

    name: str
    flames: list[Flame]


class _Node:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.callees: dict[str, _Node] = {}


def flame_graphs(analysis: Analysis) -> list[FlameGraph]:
    """Returns the graphs of the threads whose lines are shown, and of those that they are compared with."""
    threads = [thread for pair in compared_threads(analysis) for thread in pair if thread is not None]
    return [FlameGraph(thread_name(thread), _flames(thread)) for thread in threads if thread.stacks][:MOST]


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


def _flames(thread: ThreadTime) -> list[Flame]:
    root = _Node()
    for stack in thread.stacks:
        node = root
        node.seconds += stack.seconds
        for name in (part_name(thread.role, stack.phase, stack.component) or OTHER, *stack.functions):
            node = node.callees.setdefault(name, _Node())
            node.seconds += stack.seconds
    found: list[Flame] = []
    open_nodes = [(root, thread_name(thread), 0, 0.0, -1)]
    while open_nodes:
        node, name, row, start, caller = open_nodes.pop()
        place = len(found)
        found.append(Flame(row, start, node.seconds, name, caller))
        for callee, below in sorted(node.callees.items(), key=lambda item: -item[1].seconds):
            if below.seconds >= LEAST * root.seconds:
                open_nodes.append((below, callee, row + 1, start, place))
            start += below.seconds
    return found
