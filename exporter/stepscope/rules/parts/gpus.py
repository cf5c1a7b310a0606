"""Lists the GPUs that a rule judged, and selects the GPUs of runs in PromQL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stepscope.measurements.scraped import GPU_SAMPLES, Moment, Vector, of_run
from stepscope.rules.parts.expressions import Expression
from stepscope.rules.parts.judgement import Tallies, Tally
from stepscope.rules.parts.promql import Scraping
from stepscope.runs.model import RunFacts, labelled

GPUS = f"{GPU_SAMPLES}_count"  # the GPUs of each run, with the number of readings
WHERE = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"  # in an alert's words

G = TypeVar("G")
G_co = TypeVar("G_co", covariant=True)


def going_on(scraping: Scraping, ago: float = 0.0) -> str:
    """Returns the condition that selects GPUs of runs that had not ended `ago` seconds before."""
    return f"unless ignoring (gpu) {scraping.held('stepscope_run_end_time_seconds', ago)}"


def for_each_run(expression: str, scraping: Scraping, ago: float = 0.0) -> str:
    """Returns the value of each GPU for each run that uses it and had not ended `ago` seconds before."""
    gpus = f"clamp({scraping.held(GPUS)} {going_on(scraping, ago)}, 1, 1)"
    return f"({expression})\n  * ignoring (run) group_right ()\n{gpus}"


@dataclass(frozen=True)
class ForEachRun(Expression):
    """The value of each GPU for each run that uses it and has not ended."""

    of_gpus: Expression
    scraping: Scraping

    def __str__(self) -> str:
        return for_each_run(f"{self.of_gpus}", self.scraping)

    def value(self, now: Moment) -> Vector:
        readings = now.held(GPUS, self.scraping.hold)
        return of_run(now, readings, self.of_gpus.value(now), self.scraping.hold)


class HasGpus(Protocol[G_co]):
    """The measurement of a node, with one per GPU."""

    @property
    def gpus(self) -> Sequence[G_co]: ...


@dataclass(frozen=True)
class Judged(Generic[G]):
    """The measurement of a GPU or of a node, and how often its rule fired."""

    node: str
    column: int
    label: str  # "" for a node
    measured: G
    tally: Tally

    @property
    def name(self) -> str:
        return f"{self.label} of {self.node}" if self.label else self.node


Every = Sequence[Judged[G]]


def judged_gpus(facts: RunFacts, nodes: Mapping[str, HasGpus[G]], tallies: Tallies) -> list[Judged[G]]:
    """Returns the GPUs of all nodes, without those that the run does not use."""
    strange = {
        (node.node, column)
        for node in facts.nodes
        for column, gpu in enumerate(node.gpus)
        if not gpu.may_be_used
    }
    return [
        Judged(node, column, label, gpu, tallies.of(node, column))
        for node, measured in nodes.items()
        for column, (label, gpu) in enumerate(labelled(facts, node, measured.gpus))
        if (node, column) not in strange
    ]
