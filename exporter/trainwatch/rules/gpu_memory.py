"""Finds memory that fills steadily, for GPUMemoryLeak and GPUMemoryNearlyFull."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.memory_growth import MEMORY_GROWTH, Filling, MemoryOfNode
from trainwatch.measurements.scraped import Labels, Moment, Vector, both, divided, of_run
from trainwatch.rules.base import P, Rule, Verdict, status_of
from trainwatch.rules.gpus import for_each_run
from trainwatch.rules.judgement import Tallies
from trainwatch.rules.promql import Record, Scraping, time_span
from trainwatch.runs.model import labelled
from trainwatch.words import too_few

USED, TOTAL = "trainwatch_gpu_memory_used_bytes", "trainwatch_gpu_memory_total_bytes"

EACH_PART = 0.5  # of a part's share of steady growth is the least that a part grows


class FollowsMemory(Rule[P, Filling]):
    """Concludes for both rules. They estimate no seconds lost."""

    about_gpus = True
    measure = MEMORY_GROWTH

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
        parameters: Any = self.parameters
        return too_few("samples", max(node.lows.rows for node in nodes), parameters.patience)

    @abstractmethod
    def details(self, run: RunMeasurements, name: str, node: MemoryOfNode) -> list[dict[str, Any]]:
        """Returns the details of each GPU of a node."""

    @abstractmethod
    def finding(self, gpus: list[dict[str, Any]]) -> str:
        """Returns the finding, from the details of each GPU, if any could be judged."""


def share_in_use(scraping: Scraping) -> str:
    """Returns the PromQL of the share of a GPU's memory that is in use."""
    return for_each_run(f"{scraping.held(USED)} / {scraping.held(TOTAL)}", scraping)


def in_use(now: Moment, readings: Vector, scraping: Scraping) -> Vector:
    """Returns the values of `share_in_use`."""
    used, total = (now.held(name, scraping.hold, of_run=False) for name in (USED, TOTAL))
    return of_run(now, readings, both(used, total, divided), scraping.hold)


@dataclass(frozen=True)
class SteadyGrowth:
    """Memory that grew in each of several parts of some time: fewer jumps leave a part without growth.

    The gain of a part is recorded only if growth by `least` (a share of a GPU's memory) over the whole time
    is possible. So PromQL reads the past only for the few GPUs whose memory grows, instead of reading `lows`
    of all GPUs 18 times.
    """

    lows: str  # the series of the lowest use of memory: level:metric:min_ratio
    parts: int
    part: float  # seconds
    least: float

    @property
    def seconds(self) -> float:
        return self.parts * self.part

    @property
    def each(self) -> float:
        """Returns the share of the growth that a part must have."""
        return EACH_PART / self.parts

    @property
    def records(self) -> list[Record]:
        """Returns the gain of a part, and that of all parts."""
        span = time_span(self.part)
        least = f"{self.each * self.least:.12g}"
        return [
            Record(self._gain, f"{self.lows} - {self.lows} offset {span} > {least}"),
            Record(self._total, " + ".join(self._gains)),
        ]

    @property
    def expression(self) -> str:
        """Returns the PromQL of the gain in all parts, if each has its share of it."""
        each = f"{self.each:.12g} * {self._total}"
        return "\n  and ".join([self._total, *(f"{gain} > {each}" for gain in self._gains)])

    @property
    def _gain(self) -> str:
        return f"{self.lows.rpartition(':')[0]}:gain{time_span(self.part)}"

    @property
    def _total(self) -> str:
        return f"{self.lows.rpartition(':')[0]}:growth{time_span(self.seconds)}"

    @property
    def _gains(self) -> list[str]:
        """Returns the PromQL of the gain in each part, from the last to the first."""
        offsets = [time_span(number * self.part) for number in range(1, self.parts)]
        return [self._gain, *(f"{self._gain} offset {offset}" for offset in offsets)]

    def recorded(self, now: Moment) -> dict[str, Vector]:
        """Returns the values of `records`."""
        early, late = now.recorded(self.lows, ago=self.part), now.recorded(self.lows)
        gains = both(late, early, lambda high, low: high - low)
        least = float(f"{self.each * self.least:.12g}")
        return {
            self._gain: {labels: gain for labels, gain in gains.items() if gain > least},
            self._total: {labels: sum(steps) for labels, steps in self._of_parts(now).items()},
        }

    def grown(self, now: Moment) -> Vector:
        """Returns the values of `expression`."""
        each = float(f"{self.each:.12g}")
        return {
            labels: sum(steps)
            for labels, steps in self._of_parts(now).items()
            if min(steps) > each * sum(steps)
        }

    def _of_parts(self, now: Moment) -> dict[Labels, list[float]]:
        """Returns the gains of the parts, from the last to the first, of each GPU that has all of them."""
        gains = [now.recorded(self._gain, ago=number * self.part) for number in range(self.parts)]
        return {
            labels: [gain[labels] for gain in gains]
            for labels in gains[0]
            if all(labels in gain for gain in gains)
        }


def dividing(seconds: float, at_most: float) -> float:
    """Returns the longest evaluation interval, up to `at_most`, that divides `seconds`.

    A value recorded `seconds` ago was then recorded at exactly that moment.
    """
    return seconds / math.ceil(seconds / at_most)


def known(value: float) -> float | None:
    """Returns the value, or None for NaN, which JSON does not have."""
    return value if np.isfinite(value) else None
