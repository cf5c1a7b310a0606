"""GPUMemoryLeak: the memory of a GPU fills steadily.

Source: our own definition, with the statistics that the field uses for leaks of host memory: a trend is one
by Kendall's rank correlation (Mann and Kendall's test), its size is Theil and Sen's slope. Debugger's
GPUMemoryIncrease compares moving averages of a minute, which a single large allocation lets fire.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from trainwatch.rules.gpu_memory import FollowedMemory, FollowsMemory, known
from trainwatch.rules.gpus import GPUS, for_each_run
from trainwatch.rules.parameters import Parameters, Percent, Samples
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping, ratio, time_span
from trainwatch.rules.registry import rule
from trainwatch.rules.shared_rules import MEMORY, QUARTERS, SteadyGrowth, dividing
from trainwatch.rules.topics import Effect
from trainwatch.words import duration

LONGER = (1, 6, 36)  # times `patience`: how far Prometheus looks back


@dataclass(frozen=True)
class GPUMemoryLeakParameters(Parameters):
    increase: Annotated[Percent, "the rule fires when this share of a GPU's memory filled up steadily"] = 2
    patience: Annotated[Samples, "decisions begin after this many snapshots"] = 1200


@rule
class GPUMemoryLeak(FollowsMemory[GPUMemoryLeakParameters, "LeakingNode"]):
    """It claims no seconds lost: what a leak costs is the end of the run."""

    parameters_type = GPUMemoryLeakParameters
    subject = "Steadily growing GPU memory"
    question = "Does the memory of a GPU fill up steadily, until the run fails?"
    description = (
        "Follows the lowest use of memory of each GPU over the run. Warm-up, a larger batch or an evaluation "
        "make it jump and stay; what is kept by mistake at each step makes it grow for as long as one looks."
    )
    recommendation = (
        "Look for tensors that outlive their step: losses summed up without .item() or .detach(), outputs "
        "kept in lists, caches without a bound, graphs kept by retain_graph. "
        "torch.cuda.memory._record_memory_history shows who allocated what stays."
    )
    topic = "GPU memory"
    view = "memory"
    effect = Effect.RISK

    def node(self) -> LeakingNode:
        return LeakingNode(self.parameters)

    def finding(self, gpus: list[dict[str, Any]]) -> str:
        fired = [gpu for gpu in gpus if gpu["triggered"]]
        if not fired:
            return "The memory of no GPU grew steadily."
        worst = max(fired, key=lambda gpu: (gpu["points_per_hour"] or 0.0, gpu["triggered"]))
        sentence = f"The memory of {worst['gpu']} of {worst['node']} "
        if worst["points_per_hour"] is None:
            return f"{sentence}grew steadily in {worst['triggered']} scans, and no longer does at the end."
        return (
            f"{sentence}grows by {worst['points_per_hour']:.3g} % of it an hour; it is "
            f"{worst['percent']:.0f} % full now, and would be full in {duration(worst['full_in_seconds'])}."
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Growth in each quarter of the time of `patience`, or of 6 or 36 times as long."""
        its = self.parameters
        used = "run_instance_gpu:trainwatch_gpu_memory_used:ratio"
        lowest = "run_instance_gpu:trainwatch_gpu_memory_used:min_ratio"
        growth = "run_instance_gpu:trainwatch_gpu_memory_leak:growth_ratio"
        interval = max(MINUTE, scraping.interval)
        shortest = interval * max(4, math.ceil(scraping.window(its.patience) / interval))
        quarters = [shortest * factor / QUARTERS for factor in LONGER]
        windows = [SteadyGrowth(lowest, quarter, its.increase / 100) for quarter in quarters]
        where = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"
        return PrometheusRules(
            targets=GPUS,
            every=dividing(quarters[0], 4 * MINUTE),
            records=[
                Record(used, for_each_run(MEMORY)),
                Record(lowest, f"min_over_time({used}[{time_span(scraping.reach(quarters[0]))}])"),
                *(window.record for window in windows),
                Record(growth, "\nor\n".join(f"({window.expression})" for window in windows[::-1])),
            ],
            alerts=[
                Alert(
                    f"{growth} > {ratio(its.increase)} and {GPUS} > {its.patience}",
                    summary=f"The memory of {where} fills up steadily",
                    description=f"In run {{{{ $labels.run }}}}, the used memory of {where} has grown "
                    "steadily, by {{ $value | humanizePercentage }} of all its memory by now "
                    f"(fires above {its.increase:g} %).",
                    keep_firing=600,
                )
            ],
        )


class LeakingNode(FollowedMemory):
    def __init__(self, parameters: GPUMemoryLeakParameters) -> None:
        super().__init__(parameters.patience)
        self.increase = parameters.increase

    def in_trouble(self) -> NDArray[np.bool_] | None:
        return self.lows.growth().growth > self.increase / 100 if self.lows.known else None

    def told(self) -> list[dict[str, Any]]:
        growth = self.lows.growth()
        full_in = (1 - growth.level) / growth.slope
        return [
            {
                "percent": known(100 * level),
                "points_per_hour": known(100 * 3600 * slope),
                "full_in_seconds": known(seconds),
            }
            for level, slope, seconds in zip(
                growth.level.tolist(), growth.slope.tolist(), full_in.tolist(), strict=True
            )
        ]
