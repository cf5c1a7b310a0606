"""Finds memory that fills steadily, for GPUMemoryLeak and GPUMemoryNearlyFull."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Any

from stepscope.common.words import too_few
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.memory_growth import MEMORY_GROWTH, Filling, MemoryOfNode
from stepscope.rules.parts.base import P, Rule, Verdict, status_of
from stepscope.rules.parts.expressions import Expression
from stepscope.rules.parts.gpus import ForEachRun
from stepscope.rules.parts.judgement import Tallies
from stepscope.rules.parts.promql import Scraping
from stepscope.runs.model import labelled

USED, TOTAL = "stepscope_gpu_memory_used_bytes", "stepscope_gpu_memory_total_bytes"


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


def share_in_use(scraping: Scraping) -> Expression:
    """Returns the share of a GPU's memory that is in use."""
    used, total = (scraping.held(name, of_run=False) for name in (USED, TOTAL))
    return ForEachRun(used / total, scraping)
