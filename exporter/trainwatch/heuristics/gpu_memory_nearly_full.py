"""GPUMemoryNearlyFull: a GPU has next to no memory left, or will have none soon.

Source: our own. The forecast is the line of GPUMemoryLeak; of what does not grow steadily there is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from trainwatch.heuristics.base import Heuristic, Verdict, status_of
from trainwatch.heuristics.growth import Lows
from trainwatch.heuristics.low_gpu_utilization import gpu_labels
from trainwatch.heuristics.parameters import Minutes, Parameters, Percent, Samples
from trainwatch.heuristics.promql import MINUTE, Alert, PrometheusRules, Record, Scraping, ratio, time_span
from trainwatch.heuristics.shared_rules import (
    GPUS,
    MEMORY,
    QUARTERS,
    SteadyGrowth,
    dividing,
    of_run,
)
from trainwatch.heuristics.state import NodeState, Scans
from trainwatch.heuristics.words import count, duration, too_few
from trainwatch.recording.source import Floats, NodeSamples, RunFacts, Times

FORECAST_ROWS = 600  # snapshots (5 minutes) that a forecast needs


@dataclass(frozen=True)
class GPUMemoryNearlyFullParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires when more of a GPU's memory than this is in use"] = 95
    horizon: Annotated[Minutes, "it also fires when the memory, growing as it does, is full before that"] = 60
    patience: Annotated[Samples, "decisions begin after this many snapshots"] = 120


class GPUMemoryNearlyFull(Heuristic[GPUMemoryNearlyFullParameters, "FillingNode"]):
    """It claims no seconds lost: a run that fails for want of memory loses all since its last checkpoint."""

    parameters_type = GPUMemoryNearlyFullParameters
    question = "Is the memory of a GPU nearly full, or about to be?"
    description = (
        "Looks at the highest use of memory of each GPU in each scan, and where it grows steadily, at when "
        "it will be full: the next larger batch, or a longer sequence, then ends the run."
    )
    recommendation = (
        "Leave a margin: a smaller batch with gradient accumulation, activation checkpointing, a sharded "
        "optimizer. A framework that takes all memory in advance (JAX, TensorFlow) is no reason to worry."
    )

    def node(self) -> FillingNode:
        return FillingNode(self.parameters)

    def judge(self, nodes: Mapping[str, FillingNode], facts: RunFacts) -> Verdict:
        triggered = sum(int(node.triggered.sum()) for node in nodes.values())
        judged = sum(node.judged for node in nodes.values())
        gpus = _gpus(nodes, facts)
        return Verdict(
            status_of(triggered, judged),
            self._finding(nodes, gpus, judged),
            triggered,
            triggered,
            sum(node.lows.rows for node in nodes.values()),
            details={"gpus": gpus},
        )

    def _finding(self, nodes: Mapping[str, FillingNode], gpus: list[dict[str, Any]], judged: int) -> str:
        known = [gpu for gpu in gpus if gpu["highest_percent"] is not None]
        if not known:
            return "The memory of no GPU was read."
        if not judged:
            most = max(node.lows.rows for node in nodes.values())
            patience = self.parameters.patience
            return too_few("snapshots", most, patience)
        fired = [gpu for gpu in known if gpu["triggered"]]
        worst = max(fired or known, key=lambda gpu: gpu["highest_percent"])
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

    def rules(self, scraping: Scraping) -> PrometheusRules:
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
                Record(used, of_run(MEMORY)),
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


class FillingNode(NodeState):
    def __init__(self, parameters: GPUMemoryNearlyFullParameters) -> None:
        self.parameters = parameters
        self.lows = Lows()
        self.judged = 0
        self.triggered: np.ndarray = np.zeros(0, np.int64)  # scans by GPU
        self.highest: Floats = np.empty(0, np.float32)  # ever
        self.since_scan: Floats = np.empty(0, np.float32)  # the highest reading since the last scan

    def observe(self, samples: NodeSamples, scans: Scans) -> None:
        more = (0, samples.gpu_memory.shape[1] - len(self.triggered))
        self.triggered = np.pad(self.triggered, more)
        self.highest = np.pad(self.highest, more, constant_values=np.nan)
        self.since_scan = np.pad(self.since_scan, more, constant_values=np.nan)
        start = 0
        for end in scans:
            self._take(samples.times[start:end], samples.gpu_memory[start:end])
            self._scan()
            start = int(end)
        self._take(samples.times[start:], samples.gpu_memory[start:])

    def _take(self, times: Times, memory: Floats) -> None:
        if len(times):
            self.lows.add(times, memory)
            self.since_scan = np.fmax(self.since_scan, np.fmax.reduce(memory, axis=0))

    def _scan(self) -> None:
        known = ~np.isnan(self.since_scan)
        if self.lows.rows > self.parameters.patience and known.any():
            self.judged += 1
            full = self.since_scan > self.parameters.threshold / 100
            soon = self.full_in_seconds() < 60 * self.parameters.horizon
            self.triggered = self.triggered + (known & (full | soon))
        self.highest = np.fmax(self.highest, self.since_scan)
        self.since_scan = np.full_like(self.since_scan, np.nan)

    def full_in_seconds(self) -> Times:
        """By GPU: from the last reading until its memory is full at this pace; NaN where there is no pace."""
        if self.lows.rows <= FORECAST_ROWS:
            return np.full(len(self.triggered), np.nan)
        growth = self.lows.growth()
        return (1 - growth.level) / growth.slope


def _gpus(nodes: Mapping[str, FillingNode], facts: RunFacts) -> list[dict[str, Any]]:
    rows = []
    for name, node in nodes.items():
        full_in = node.full_in_seconds()
        highest = np.fmax(node.highest, node.since_scan)
        for number, label in enumerate(gpu_labels(facts, name, len(node.triggered))):
            rows.append(
                {
                    "node": name,
                    "gpu": label,
                    "triggered": int(node.triggered[number]),
                    "highest_percent": _known(100 * float(highest[number])),
                    "full_in_seconds": _known(float(full_in[number])),
                }
            )
    return rows


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
