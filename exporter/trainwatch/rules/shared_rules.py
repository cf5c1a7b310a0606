"""Rules in PromQL that two heuristics share: of starved snapshots, of step time, of memory that fills."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainwatch.rules.promql import Record, time_span

SAMPLES = "trainwatch_samples_total"
MEMORY = "trainwatch_gpu_memory_used_bytes / trainwatch_gpu_memory_total_bytes"

QUARTERS = 4
EACH_QUARTER = 0.125  # of the growth: half of what a quarter has of steady growth


@dataclass(frozen=True)
class SteadyGrowth:
    """Memory that grew in each quarter of some time: one jump, or three, leave a quarter without growth.

    What a quarter gained is recorded, and only where it is so much that growth of `least` (a share of a GPU's
    memory) over the whole time is possible. So the past is looked at only where memory grows, which is at few
    of many GPUs: PromQL would else read `lows` of all of them 18 times.
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
        """What was gained in all quarters, where each has its part of it."""
        offsets = [time_span(number * self.quarter) for number in range(1, QUARTERS)]
        gains = [self._gain, *(f"{self._gain} offset {offset}" for offset in offsets)]
        total = f"({' + '.join(gains)})"
        return "\n  and ".join([total, *(f"{gain} > {EACH_QUARTER} * {total}" for gain in gains)])

    @property
    def _gain(self) -> str:
        return f"{self.lows.rpartition(':')[0]}:gain{time_span(self.quarter)}"


def dividing(seconds: float, at_most: float) -> float:
    """The longest time between evaluations, up to `at_most`, of which so many seconds are a multiple.

    What was recorded so many seconds ago was then recorded at that very moment.
    """
    return seconds / math.ceil(seconds / at_most)
