"""GPUMemoryNearlyFull: a GPU has next to no memory left, or will have none soon.

Source: our own. The forecast is the line of GPUMemoryLeak; of what does not grow steadily there is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from trainwatch.rules.gpu_memory import FollowedMemory, FollowsMemory, known
from trainwatch.rules.gpus import GPUS, for_each_run
from trainwatch.rules.parameters import Minutes, Parameters, Percent, Samples
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping, ratio, time_span
from trainwatch.rules.registry import rule
from trainwatch.rules.shared_rules import (
    MEMORY,
    QUARTERS,
    SteadyGrowth,
    dividing,
)
from trainwatch.rules.topics import Effect
from trainwatch.runs.model import Floats, Times
from trainwatch.words import count, duration

FORECAST_ROWS = 600  # snapshots (5 minutes) that a forecast needs


@dataclass(frozen=True)
class GPUMemoryNearlyFullParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires when more of a GPU's memory than this is in use"] = 95
    horizon: Annotated[Minutes, "it also fires when the memory, growing as it does, is full before that"] = 60
    patience: Annotated[Samples, "decisions begin after this many snapshots"] = 120


@rule
class GPUMemoryNearlyFull(FollowsMemory[GPUMemoryNearlyFullParameters, "FillingNode"]):
    """It claims no seconds lost: a run that fails for want of memory loses all since its last checkpoint."""

    parameters_type = GPUMemoryNearlyFullParameters
    subject = "Nearly full GPU memory"
    question = "Is the memory of a GPU nearly full, or about to be?"
    description = (
        "Looks at the highest use of memory of each GPU in each scan, and where it grows steadily, at when "
        "it will be full: the next larger batch, or a longer sequence, then ends the run."
    )
    recommendation = (
        "Leave a margin: a smaller batch with gradient accumulation, activation checkpointing, a sharded "
        "optimizer. A framework that takes all memory in advance (JAX, TensorFlow) is no reason to worry."
    )
    topic = "GPU memory"
    distance = 1
    view = "memory"
    effect = Effect.RISK

    def node(self) -> FillingNode:
        return FillingNode(self.parameters)

    def finding(self, gpus: list[dict[str, Any]]) -> str:
        read = [gpu for gpu in gpus if gpu["highest_percent"] is not None]
        fired = [gpu for gpu in read if gpu["triggered"]]
        worst = max(fired or read, key=lambda gpu: gpu["highest_percent"])
        sentence = (
            f"{worst['gpu']} of {worst['node']} used up to {worst['highest_percent']:.1f} % of its memory"
        )
        soonest = min(
            (gpu for gpu in fired if gpu["full_in_seconds"] is not None),
            key=lambda gpu: gpu["full_in_seconds"],
            default=None,
        )
        if soonest is not None:
            when = duration(soonest["full_in_seconds"])
            sentence = (
                f"{soonest['gpu']} of {soonest['node']} will be full in {when} at this pace; {sentence}"
            )
        if len(fired) > 1:
            sentence += f", and {count(len(fired) - 1, 'more GPU')} nearly all of theirs"
        return f"{sentence}."

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Of a reading a scrape: memory in use does not come and go between two scrapes."""
        its = self.parameters
        used = "run_instance_gpu:trainwatch_gpu_memory_in_use:ratio"
        lowest = "run_instance_gpu:trainwatch_gpu_memory_in_use:min_ratio"
        full_in = "run_instance_gpu:trainwatch_gpu_memory_full_in:seconds"
        # What a forecast needs, in whole evaluations: each quarter of it must have grown.
        interval = max(MINUTE, scraping.interval)
        quarter = interval * math.ceil(scraping.window(FORECAST_ROWS) / interval / QUARTERS)
        # The least growth with which memory that is not full yet would be full within the horizon.
        least = (1 - its.threshold / 100) * QUARTERS * quarter / (60 * its.horizon) if its.horizon else 1.0
        growth = SteadyGrowth(lowest, quarter, least)
        where = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"
        return PrometheusRules(
            targets=GPUS,
            every=dividing(quarter, 2 * MINUTE),
            records=[
                Record(used, for_each_run(MEMORY)),
                Record(lowest, f"min_over_time({used}[{time_span(quarter + interval / 2)}])"),
                growth.record,
                Record(full_in, f"(1 - {used}) * {growth.seconds:.12g} / ({growth.expression})"),
            ],
            alerts=[
                Alert(
                    f"{used} > {ratio(its.threshold)} and {GPUS} > {its.patience}",
                    summary=f"The memory of {where} is nearly full",
                    description=f"In run {{{{ $labels.run }}}}, {{{{ $value | humanizePercentage }}}} of the "
                    f"memory of {where} is in use (fires above {its.threshold:g} %).",
                    keep_firing=60,
                    labels={"trouble": "full"},
                ),
                Alert(
                    f"{full_in} < {60 * its.horizon:.12g} unless {used} > {ratio(its.threshold)}\n"
                    f"  and {GPUS} > {its.patience}",
                    summary=f"The memory of {where} will be full soon",
                    description=f"In run {{{{ $labels.run }}}}, the memory of {where}, growing as it does, "
                    f"is full in {{{{ $value | humanizeDuration }}}} (fires below {its.horizon:g} min).",
                    keep_firing=300,
                    labels={"trouble": "filling"},
                ),
            ],
        )


class FillingNode(FollowedMemory):
    def __init__(self, parameters: GPUMemoryNearlyFullParameters) -> None:
        super().__init__(parameters.patience)
        self.parameters = parameters
        self.highest: Floats = np.empty(0, np.float32)  # ever
        self.since_scan: Floats = np.empty(0, np.float32)  # the highest reading since the last scan

    def add_gpus(self, more: int) -> None:
        super().add_gpus(more)
        self.highest = np.pad(self.highest, (0, more), constant_values=np.nan)
        self.since_scan = np.pad(self.since_scan, (0, more), constant_values=np.nan)

    def take(self, times: Times, memory: Floats) -> None:
        super().take(times, memory)
        if len(times):
            highest = np.fmax.reduce(memory, axis=0)
            self.highest = np.fmax(self.highest, highest)
            self.since_scan = np.fmax(self.since_scan, highest)

    def scan(self) -> None:
        super().scan()
        self.since_scan = np.full_like(self.since_scan, np.nan)

    def in_trouble(self) -> NDArray[np.bool_] | None:
        """What was not read since the last scan is in none."""
        if np.isnan(self.since_scan).all():
            return None
        full = self.since_scan > self.parameters.threshold / 100
        soon = self.full_in_seconds() < 60 * self.parameters.horizon
        return ~np.isnan(self.since_scan) & (full | soon)

    def full_in_seconds(self) -> Times:
        """By GPU: from the last reading until its memory is full at this pace; NaN where there is no pace."""
        if self.lows.rows <= FORECAST_ROWS:
            return np.full(len(self.triggered), np.nan)
        growth = self.lows.growth()
        return (1 - growth.level) / growth.slope

    def told(self) -> list[dict[str, Any]]:
        return [
            {"highest_percent": known(100 * highest), "full_in_seconds": known(seconds)}
            for highest, seconds in zip(self.highest.tolist(), self.full_in_seconds().tolist(), strict=True)
        ]
