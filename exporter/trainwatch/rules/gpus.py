"""Lists the GPUs that a rule judged, and selects the GPUs of runs in PromQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from trainwatch.measurements.measure import ByGpu, GpuMeasurement
from trainwatch.measurements.scraped import GPU_SAMPLES
from trainwatch.rules.judgement import Tallies, Tally
from trainwatch.runs.model import RunFacts, labelled

GPUS = f"{GPU_SAMPLES}_count"  # the GPUs of each run, with the number of readings
GOING_ON = "unless ignoring (gpu) trainwatch_run_end_time_seconds"  # selects GPUs of runs that have not ended
WHERE = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"  # in an alert's words

G = TypeVar("G", bound=GpuMeasurement[Any])


def for_each_run(expression: str) -> str:
    """Returns the value of each GPU for each run that uses it and has not ended."""
    return f"({expression})\n  * ignoring (run) group_right ()\nclamp({GPUS} {GOING_ON}, 1, 1)"


@dataclass(frozen=True)
class JudgedGpu(Generic[G]):
    """The measurement of a GPU, and how often its rule fired."""

    node: str
    label: str
    measured: G
    tally: Tally

    @property
    def name(self) -> str:
        return f"{self.label} of {self.node}"


def judged_gpus(facts: RunFacts, nodes: Mapping[str, ByGpu[Any, G]], tallies: Tallies) -> list[JudgedGpu[G]]:
    """Returns the GPUs of all nodes."""
    return [
        JudgedGpu(node, label, gpu, tallies.of(node, column))
        for node, measured in nodes.items()
        for column, (label, gpu) in enumerate(labelled(facts, node, measured.gpus))
    ]
