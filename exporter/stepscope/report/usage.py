"""The sentences on how well each node's GPUs and CPU were used."""

import math
from dataclasses import dataclass

from stepscope.common.words import capitalised, listing
from stepscope.evaluation.analysis import Analysis

WELL_USED = 70  # percent, as Debugger's report judges p50 and p95
# Sentences on nodes that were used alike, with the bounds of their percentiles.
NOTHING_READ = "neither CPU nor GPU could be read."
CPU_BUSY = "no GPU was read; the CPU was busy: {least_cpu_p50} in half of the samples."
CPU_NOT_BUSY = (
    "no GPU was read; the CPU was at or below {high_cpu_p50} in half of the samples, {high_cpu_p95} in 95 % "
    "of them."
)
GPUS_WELL_USED = "the GPUs were well used: {least_gpu_p50} in half of the samples."
GPUS_LOW_AND_CPU_HIGH = (
    "the GPUs were at or below {high_gpu_p50} in half of the samples while the CPU reached {low_cpu_p95} "
    "(p95): look at the CPU first."
)
BOTH_LOW = (
    "GPUs and CPU were under-utilised: at or below {high_gpu_p95} and {high_cpu_p95} in 95 % of the samples. "
    "A larger batch or a smaller machine would do."
)
GPUS_IN_BURSTS = (
    "the GPUs were at or below {high_gpu_p50} in half of the samples; one sample of twenty was above "
    "{low_gpu_p95}."
)


@dataclass(frozen=True)
class _Use:
    """Percentiles of one node in percent, NaN if it has no GPU or nothing could be read."""

    node: str
    cpu_p50: float
    cpu_p95: float
    gpu_p50: float
    gpu_p95: float


def usage(analysis: Analysis) -> list[str]:
    """Returns sentences on under-use, starvation or good use; one for all nodes with the same result."""
    alike: dict[str, list[_Use]] = {}
    unread = math.nan, math.nan
    nodes = list(dict.fromkeys(row.node for row in analysis.usage))
    for node in nodes:
        known = {row.resource: (row.p50, row.p95) for row in reversed(analysis.usage) if row.node == node}
        use = _Use(node, *known.get("CPU", unread), *known.get("GPU", unread))
        alike.setdefault(_sentence_for(use), []).append(use)
    said = [
        capitalised(_on([use.node for use in uses], nodes) + sentence.format(**_bounds(uses)))
        for sentence, uses in alike.items()
    ]
    return said or ["No sample of the machine was taken."]


def _sentence_for(use: _Use) -> str:
    if math.isnan(use.gpu_p50):
        if math.isnan(use.cpu_p50):
            return NOTHING_READ
        return CPU_BUSY if use.cpu_p50 > WELL_USED else CPU_NOT_BUSY
    if use.gpu_p50 > WELL_USED:
        return GPUS_WELL_USED
    if use.cpu_p95 >= WELL_USED:
        return GPUS_LOW_AND_CPU_HIGH
    return BOTH_LOW if use.gpu_p95 < WELL_USED and use.cpu_p95 < WELL_USED else GPUS_IN_BURSTS


def _bounds(uses: list[_Use]) -> dict[str, str]:
    """Returns the lowest and the highest value of each percentile that was read on all nodes, in words."""
    found: dict[str, str] = {}
    for name in ("cpu_p50", "cpu_p95", "gpu_p50", "gpu_p95"):
        values = [getattr(use, name) for use in uses]
        if all(map(math.isfinite, values)):
            low, high = math.floor(min(values)), math.ceil(max(values))
            found |= {f"low_{name}": f"{low} %", f"high_{name}": f"{high} %"}
            found[f"least_{name}"] = f"{low} %" if low == 100 else f"{low} % or more"
    return found


def _on(names: list[str], nodes: list[str]) -> str:
    """Names the nodes of a sentence; nothing if there is only one node."""
    if len(nodes) == 1:
        return ""
    if len(names) == len(nodes):
        return f"on all {len(nodes)} nodes "
    if len(names) <= 3:
        return f"on {listing(names)} "
    return f"on {len(names)} of {len(nodes)} nodes ({names[0]}, {names[1]}, …) "
