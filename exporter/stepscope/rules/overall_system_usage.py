"""OverallSystemUsage: how much of each resource a run used. It never fires.

Source: SageMaker Debugger's OverallSystemUsage: percentiles over samples of the mean over a node's cores,
or over its GPUs.
"""

from typing import Any

from stepscope.common.status import Status
from stepscope.common.words import percent
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.usage import USAGE, usage_rows
from stepscope.rules.parts.base import Overview, Verdict
from stepscope.rules.parts.judgement import Tallies
from stepscope.rules.parts.parameters import Parameters
from stepscope.rules.parts.registry import rule

# Debugger's names of the metrics; its notebook knows no others, and none for the disk.
SAME = ("CPU", "CPU memory", "GPU", "GPU memory", "Network")
DEBUGGER_NAMES = {"I/O wait": "I/O", **dict(zip(SAME, SAME, strict=True))}


@rule
class OverallSystemUsage(Overview[Parameters]):
    subject = "The use of resources"
    question = "How much of each resource did the run use?"
    description = "Shows the use of each node's cores, GPUs, memory, storage and network over the whole run."
    recommendation = "Nothing to do: this is the overview that the other findings refer to."

    measure = USAGE

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        rows = usage_rows(run.of(self.measure))
        details: dict[str, Any] = {}
        for row in rows:
            if row.resource in DEBUGGER_NAMES:
                values = {name: getattr(row, name) for name in ("max", "p99", "p95", "p50", "min")}
                details.setdefault(DEBUGGER_NAMES[row.resource], {})[row.node] = values
        p95 = ", ".join(
            f"{row.resource} {percent(row.p95)}"
            for row in rows
            if row.resource in ("CPU", "GPU", "GPU memory")
        )
        nodes = len(run.nodes)
        return Verdict(
            Status.HEALTHY if rows else Status.NOT_ENOUGH_DATA,
            f"95th percentile: {p95}." if nodes == 1 and p95 else f"{nodes} nodes were sampled.",
            datapoints=sum(node.samples for node in run.of(self.measure).values()),
            details=details,
        )
