"""OverallSystemUsage: how much of each resource a run used. It never fires.

Source: SageMaker Debugger's OverallSystemUsage: percentiles over snapshots of the mean over a node's
cores, or over its GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwatch.evaluation.analysis import UsageRow
from trainwatch.measurements.sketch import RatioSketch, SizeSketch, Sketch
from trainwatch.measurements.state import NodeState, Scans
from trainwatch.rules.base import Rule, Verdict
from trainwatch.rules.parameters import Parameters
from trainwatch.rules.registry import rule
from trainwatch.rules.topics import Effect
from trainwatch.runs.model import Floats, NodeSamples, RunFacts

# Debugger's names of the metrics; it has none for the disk, and its notebook knows no other.
DEBUGGER_NAMES = {
    "CPU": "CPU",
    "CPU memory": "CPU memory",
    "GPU": "GPU",
    "GPU memory": "GPU memory",
    "I/O wait": "I/O",
    "Network": "Network",
}


@dataclass(frozen=True)
class OverallSystemUsageParameters(Parameters):
    """There is nothing to set."""


@rule
class OverallSystemUsage(Rule[OverallSystemUsageParameters, "UsageOfNode"]):
    parameters_type = OverallSystemUsageParameters
    subject = "The use of resources"
    question = "How much of each resource did the run use?"
    description = "Shows what a node's cores, GPUs, memory, storage and network did over the whole run."
    recommendation = "Nothing to do: this is the overview that the other findings refer to."
    effect = Effect.OVERVIEW

    def node(self) -> UsageOfNode:
        return UsageOfNode()

    def judge(self, nodes: Mapping[str, UsageOfNode], facts: RunFacts) -> Verdict:
        rows = usage_rows(nodes)
        details: dict[str, Any] = {}
        for row in rows:
            if row.resource in DEBUGGER_NAMES:
                values = {name: getattr(row, name) for name in ("max", "p99", "p95", "p50", "min")}
                details.setdefault(DEBUGGER_NAMES[row.resource], {})[row.node] = values
        p95 = ", ".join(
            f"{row.resource} {row.p95:.0f} %" for row in rows if row.resource in ("CPU", "GPU", "GPU memory")
        )
        return Verdict(
            "quiet" if rows else "not judged",
            f"95th percentile: {p95}." if len(nodes) == 1 and p95 else f"{len(nodes)} nodes were sampled.",
            datapoints=sum(node.snapshots for node in nodes.values()),
            details=details,
        )


class UsageOfNode(NodeState):
    def __init__(self) -> None:
        self.snapshots = 0
        self.sketches: dict[str, Sketch] = {
            "CPU": RatioSketch(),
            "CPU memory": RatioSketch(),
            "GPU": RatioSketch(),
            "GPU memory": RatioSketch(),
            "I/O wait": RatioSketch(),
            "Network": SizeSketch(),
            "Disk": SizeSketch(),
        }

    def observe(self, samples: NodeSamples, scans: Scans) -> None:
        self.snapshots += len(samples)
        self.sketches["CPU"].add(samples.cpu_mean)
        self.sketches["CPU memory"].add(samples.memory)
        self.sketches["GPU"].add(_mean(samples.gpu))
        self.sketches["GPU memory"].add(_mean(samples.gpu_memory))
        self.sketches["I/O wait"].add(samples.io_wait_mean)
        self.sketches["Network"].add(samples.network)
        self.sketches["Disk"].add(samples.disk)


def usage_rows(nodes: Mapping[str, UsageOfNode]) -> list[UsageRow]:
    """A row a resource that was read, node by node; % or B/s."""
    return [
        _row(name, resource, sketch)
        for name, node in nodes.items()
        for resource, sketch in node.sketches.items()
        if sketch.count
    ]


def _row(node: str, resource: str, sketch: Sketch) -> UsageRow:
    factor, unit = (100, "%") if isinstance(sketch, RatioSketch) else (1, "B/s")
    values = [sketch.max, *(sketch.percentile(percent) for percent in (99, 95, 50)), sketch.min]
    return UsageRow(node, resource, unit, *(round(factor * value, 3) for value in values))


def _mean(values: Floats) -> Floats:
    """(n,) mean of each row's readings, NaN where there is none."""
    there = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        means: Floats = (np.nansum(values, axis=1) / there.sum(axis=1)).astype(np.float32)
    return means
