"""The sentences on how well each node's GPUs and CPU were used."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stepscope.common.words import capitalised, listing
from stepscope.evaluation.analysis import Analysis
from stepscope.measurements.usage import UsageRow

WELL_USED = 70  # percent, as Debugger's report judges p50 and p95


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
    alike: dict[Callable[[list[_Use]], str], list[_Use]] = {}
    nodes = list(dict.fromkeys(row.node for row in analysis.usage))
    for node in nodes:
        use = _use_of([row for row in analysis.usage if row.node == node])
        alike.setdefault(_sentence_for(use), []).append(use)
    said = [capitalised(_on([use.node for use in uses], nodes) + say(uses)) for say, uses in alike.items()]
    return said or ["No sample of the machine was taken."]


def _use_of(rows: list[UsageRow]) -> _Use:
    cpu = next((row for row in rows if row.resource == "CPU"), None)
    gpu = next((row for row in rows if row.resource == "GPU"), None)
    cpu_p50, cpu_p95 = (cpu.p50, cpu.p95) if cpu else (math.nan, math.nan)
    gpu_p50, gpu_p95 = (gpu.p50, gpu.p95) if gpu else (math.nan, math.nan)
    return _Use(rows[0].node, cpu_p50, cpu_p95, gpu_p50, gpu_p95)


def _sentence_for(use: _Use) -> Callable[[list[_Use]], str]:
    if math.isnan(use.gpu_p50):
        if math.isnan(use.cpu_p50):
            return _nothing_read
        return _cpu_busy if use.cpu_p50 > WELL_USED else _cpu_not_busy
    if use.gpu_p50 > WELL_USED:
        return _gpus_well_used
    if use.cpu_p95 >= WELL_USED:
        return _gpus_low_and_cpu_high
    return _both_low if use.gpu_p95 < WELL_USED and use.cpu_p95 < WELL_USED else _gpus_in_bursts


def _nothing_read(_: list[_Use]) -> str:
    return "neither CPU nor GPU could be read."


def _cpu_busy(uses: list[_Use]) -> str:
    half = _at_least(use.cpu_p50 for use in uses)
    return f"no GPU was read; the CPU was busy: {half} in half of the samples."


def _cpu_not_busy(uses: list[_Use]) -> str:
    half, most = _highest(use.cpu_p50 for use in uses), _highest(use.cpu_p95 for use in uses)
    return f"no GPU was read; the CPU was at or below {half} in half of the samples, {most} in 95 % of them."


def _gpus_well_used(uses: list[_Use]) -> str:
    half = _at_least(use.gpu_p50 for use in uses)
    return f"the GPUs were well used: {half} in half of the samples."


def _gpus_low_and_cpu_high(uses: list[_Use]) -> str:
    gpu, cpu = _highest(use.gpu_p50 for use in uses), _lowest(use.cpu_p95 for use in uses)
    return (
        f"the GPUs were at or below {gpu} in half of the samples while the CPU reached {cpu} (p95): "
        f"look at the CPU first."
    )


def _both_low(uses: list[_Use]) -> str:
    gpu, cpu = _highest(use.gpu_p95 for use in uses), _highest(use.cpu_p95 for use in uses)
    return (
        f"GPUs and CPU were under-utilised: at or below {gpu} and {cpu} in 95 % of the samples. "
        f"A larger batch or a smaller machine would do."
    )


def _gpus_in_bursts(uses: list[_Use]) -> str:
    half, top = _highest(use.gpu_p50 for use in uses), _lowest(use.gpu_p95 for use in uses)
    return f"the GPUs were at or below {half} in half of the samples; one sample of twenty was above {top}."


def _at_least(values: Iterable[float]) -> str:
    lowest = _lowest(values)
    return lowest if lowest == "100 %" else f"{lowest} or more"


def _lowest(values: Iterable[float]) -> str:
    return f"{math.floor(min(values))} %"


def _highest(values: Iterable[float]) -> str:
    return f"{math.ceil(max(values))} %"


def _on(names: list[str], nodes: list[str]) -> str:
    """Names the nodes of a sentence; nothing if there is only one node."""
    if len(nodes) == 1:
        return ""
    if len(names) == len(nodes):
        return f"on all {len(nodes)} nodes "
    if len(names) <= 3:
        return f"on {listing(names)} "
    return f"on {len(names)} of {len(nodes)} nodes ({names[0]}, {names[1]}, …) "
