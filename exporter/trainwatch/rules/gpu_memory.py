"""Finds memory that fills steadily, for GPUMemoryLeak and GPUMemoryNearlyFull."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.memory_growth import Filling, MemoryGrowth, MemoryOfNode
from trainwatch.measurements.scraped import Moment, Vector, both, divided, of_run
from trainwatch.rules.base import P, Rule, Verdict, status_of
from trainwatch.rules.gpus import for_each_run
from trainwatch.rules.judgement import Tallies
from trainwatch.rules.promql import Record, time_span
from trainwatch.runs.model import labelled
from trainwatch.words import too_few

USED, TOTAL = "trainwatch_gpu_memory_used_bytes", "trainwatch_gpu_memory_total_bytes"
IN_USE = for_each_run(f"{USED} / {TOTAL}")

QUARTERS = 4
EACH_QUARTER = 0.125  # of the growth: half of a quarter's part of steady growth


class FollowsMemory(Rule[P, Filling]):
    """Concludes for both rules. They estimate no seconds lost."""

    @property
    def measure(self) -> MemoryGrowth:
        return MemoryGrowth()

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        nodes = run.of(self.measure)
        gpus = [
            {"node": name, "gpu": label, "triggered": tallies.of(name, column).triggered, **fields}
            for name, node in nodes.items()
            for column, (label, fields) in enumerate(labelled(run.facts, name, self.details(run, name, node)))
        ]
        return Verdict(
            status_of(tallies.triggered, tallies.judged),
            self.finding(gpus) if tallies.judged else self._why_not(nodes.values()),
            tallies.triggered,
            tallies.triggered,
            sum(node.lows.rows for node in nodes.values()),
            details={"gpus": gpus},
        )

    def _why_not(self, nodes: Collection[MemoryOfNode]) -> str:
        if not any(node.lows.known for node in nodes):
            return "No GPU's memory was read."
        return too_few("samples", max(node.lows.rows for node in nodes), self.patience)

    @property
    @abstractmethod
    def patience(self) -> int:
        """Returns the number of samples that a decision needs."""

    @abstractmethod
    def details(self, run: RunMeasurements, name: str, node: MemoryOfNode) -> list[dict[str, Any]]:
        """Returns the details of each GPU of a node."""

    @abstractmethod
    def finding(self, gpus: list[dict[str, Any]]) -> str:
        """Returns the finding, from the details of each GPU, if any could be judged."""


def in_use(now: Moment, readings: Vector) -> Vector:
    """Returns the values of IN_USE."""
    used, total = (now(name, of_run=False) for name in (USED, TOTAL))
    return of_run(now, readings, both(used, total, divided))


@dataclass(frozen=True)
class SteadyGrowth:
    """Memory that grew in each quarter of some time: up to three jumps leave a quarter without growth.

    The gain of a quarter is recorded only if growth by `least` (a share of a GPU's memory) over the whole
    time is possible. So PromQL reads the past only for the few GPUs whose memory grows, instead of reading
    `lows` of all GPUs 18 times.
    """

    lows: str  # the series of the lowest use of memory: level:metric:min_ratio
    quarter: float  # seconds
    least: float

    @property
    def seconds(self) -> float:
        return QUARTERS * self.quarter

    @property
    def record(self) -> Record:
        span = time_span(self.quarter)
        least = f"{EACH_QUARTER * self.least:.12g}"
        return Record(self._gain, f"{self.lows} - {self.lows} offset {span} > {least}")

    @property
    def expression(self) -> str:
        """Returns the PromQL of the gain in all quarters, if each has its part of it."""
        offsets = [time_span(number * self.quarter) for number in range(1, QUARTERS)]
        gains = [self._gain, *(f"{self._gain} offset {offset}" for offset in offsets)]
        total = f"({' + '.join(gains)})"
        return "\n  and ".join([total, *(f"{gain} > {EACH_QUARTER} * {total}" for gain in gains)])

    @property
    def _gain(self) -> str:
        return f"{self.lows.rpartition(':')[0]}:gain{time_span(self.quarter)}"

    def gained(self, now: Moment) -> Vector:
        """Returns the values of `record`."""
        early, late = now.recorded(self.lows, ago=self.quarter), now.recorded(self.lows)
        gains = both(late, early, lambda high, low: high - low)
        return {labels: gain for labels, gain in gains.items() if gain > EACH_QUARTER * self.least}

    def grown(self, now: Moment) -> Vector:
        """Returns the values of `expression`."""
        gains = [now.recorded(self._gain, ago=number * self.quarter) for number in range(QUARTERS)]
        found = {labels: [gain[labels] for gain in gains if labels in gain] for labels in gains[0]}
        return {
            labels: sum(steps)
            for labels, steps in found.items()
            if len(steps) == QUARTERS and min(steps) > EACH_QUARTER * sum(steps)
        }


def dividing(seconds: float, at_most: float) -> float:
    """Returns the longest evaluation interval, up to `at_most`, that divides `seconds`.

    A value recorded `seconds` ago was then recorded at exactly that moment.
    """
    return seconds / math.ceil(seconds / at_most)


def known(value: float) -> float | None:
    """Returns the value, or None for NaN, which JSON does not have."""
    return value if np.isfinite(value) else None
