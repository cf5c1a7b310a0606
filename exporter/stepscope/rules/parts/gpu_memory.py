"""Finds memory that fills steadily, for GPUMemoryLeak and GPUMemoryNearlyFull."""

from abc import abstractmethod
from typing import Any, ClassVar

from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.memory_growth import MEMORY_GROWTH, Filling, Growth, MemoryOfNode
from stepscope.rules.parts.base import P, Verdict, status_of
from stepscope.rules.parts.expressions import Expression
from stepscope.rules.parts.gpus import ForEachRun
from stepscope.rules.parts.judgement import Tallies
from stepscope.rules.parts.promql import Scraping
from stepscope.rules.parts.steady_growth import counts_of
from stepscope.rules.parts.tallied import Patient
from stepscope.runs.model import labelled

USED, TOTAL = "stepscope_gpu_memory_used_bytes", "stepscope_gpu_memory_total_bytes"


class FollowsMemory(Patient[P, Filling]):
    """Concludes for both rules. They estimate no seconds lost."""

    about_gpus = True
    measure = MEMORY_GROWTH
    unseen = "No GPU's memory was read."
    growing: ClassVar[int]  # the condition that memory grows: if it levelled off, that was no leak

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        nodes = run.of(self.measure)
        gpus = []
        for name, node in nodes.items():
            growth = node.lows.growth()
            rows = labelled(run.facts, name, self.details(run, name, node, growth))
            for column, (label, fields) in enumerate(rows):
                scans = counts_of(tallies.of(name, column), bool(growth.levelled[column]), self.growing)
                gpus.append({"node": name, "gpu": label, **scans, **fields})
        triggered = sum(gpu["triggered"] for gpu in gpus)
        known = any(node.lows.known for node in nodes.values())
        most = max(node.lows.rows for node in nodes.values()) if known else 0
        return Verdict(
            status_of(triggered, tallies.judged),
            self.finding(gpus) if tallies.judged else self.why_not(most),
            triggered,
            triggered,
            sum(node.lows.rows for node in nodes.values()),
            details={"gpus": gpus},
        )

    @abstractmethod
    def details(
        self, run: RunMeasurements, name: str, node: MemoryOfNode, growth: Growth
    ) -> list[dict[str, Any]]:
        """Returns the details of each GPU of a node."""

    @abstractmethod
    def finding(self, gpus: list[dict[str, Any]]) -> str:
        """Returns the finding, from the details of each GPU, if any could be judged."""


def share_in_use(scraping: Scraping) -> Expression:
    """Returns the share of a GPU's memory that is in use."""
    used, total = (scraping.held(name, of_run=False) for name in (USED, TOTAL))
    return ForEachRun(used / total, scraping)
