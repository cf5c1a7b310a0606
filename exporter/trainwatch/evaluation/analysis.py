"""Holds the results of an evaluation: everything that the terminal, the report and the JSON files show."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trainwatch.measurements.energy import Energy
from trainwatch.measurements.heatmap import Heatmap, LowGpuSamples
from trainwatch.measurements.timeline import StepTimeline
from trainwatch.measurements.usage import UsageRow
from trainwatch.rules.base import Rule, Verdict
from trainwatch.rules.topics import About
from trainwatch.status import Status


@dataclass(frozen=True)
class RuleResult:
    """The result of one rule for the whole run. Counts are as in Debugger (see docs/heuristics.md)."""

    rule: str
    question: str
    description: str
    recommendation: str  # for this run; names the cause if it is known
    status: Status
    finding: str  # one sentence with values, or why nothing could be judged
    triggered: int  # RuleTriggered: scans that fired
    violations: int
    datapoints: int
    parameters: dict[str, float | int | str | None]
    about: About
    seconds_lost: float = 0.0  # an estimate, for the order of rules; 0 if there is none
    details: dict[str, Any] = field(default_factory=dict)  # JSON values only
    debugger_parameters: dict[str, float | int | str | None] | None = None  # if Debugger names others

    @classmethod
    def of(cls, rule: Rule[Any, Any], verdict: Verdict) -> RuleResult:
        return cls(
            rule=rule.name,
            question=rule.question,
            description=rule.description,
            recommendation=verdict.recommendation or rule.recommendation,
            status=verdict.status,
            finding=verdict.finding,
            triggered=verdict.triggered,
            violations=verdict.violations,
            datapoints=verdict.datapoints,
            parameters=asdict(rule.parameters),
            about=rule.about(),
            seconds_lost=verdict.seconds_lost,
            details=verdict.details,
            debugger_parameters=rule.debugger_parameters(),
        )


@dataclass(frozen=True)
class BoxPlot:
    """All readings of one device in percent; whiskers extend 1.5 interquartile ranges beyond the box."""

    node: str
    device: str  # "GPU 0", or "CPU": the mean of the node's cores
    quantity: Literal["utilisation", "memory"]
    p5: float
    p25: float
    p50: float
    p75: float
    p95: float
    lower: float
    upper: float


@dataclass(frozen=True)
class UtilisationHistogram:
    """The readings of a GPU per bin of 2 points, from 0 to 100 %."""

    node: str
    gpu: str
    counts: list[int]


@dataclass(frozen=True)
class StepDistribution:
    """The step durations of one rank in one phase, in seconds.

    `counts[i]` steps took `edges[i]` to `edges[i + 1]`; the outliers of StepOutlier are in no bin.
    """

    rank: int
    phase: str
    count: int
    mean: float
    standard_deviation: float
    min: float
    p50: float
    p95: float
    p99: float
    max: float
    edges: list[float]
    counts: list[int]


@dataclass(frozen=True)
class GpuUse:
    """The use of one GPU over the whole run, in percent; NaN if it was not read."""

    node: str
    gpu: str  # "GPU 0"
    mean: float  # of the utilisation, like p50, p95 and max
    p50: float
    p95: float
    max: float
    memory_p50: float
    memory_p95: float
    memory_max: float
    memory_bytes: float  # the GPU's size; 0 if unknown


@dataclass(frozen=True)
class Analysis:
    """A whole evaluation. Times are seconds since the epoch, None if unknown."""

    run: str
    command: str
    exit_status: int | None
    start: float | None
    first_step_start: float | None
    last_step_end: float | None
    end: float | None
    finished: bool  # False while the run continues, or if the recording was cut off
    framework: str
    world_size: int
    ranks: int
    nodes: list[str]
    cores: dict[str, int]  # by node
    gpus: dict[str, list[str]]  # by node, "0: NVIDIA H100"
    interval: float
    samples_taken: int
    samples_missed: int
    versions: dict[str, str]
    unknowns: list[str]
    rules: list[RuleResult]  # found first, by seconds lost, then by times triggered
    usage: list[UsageRow]
    heatmaps: list[Heatmap]
    steps: list[StepDistribution]
    phase_seconds: dict[str, float]  # summed over ranks: train, eval, predict, global, other, ...
    component_seconds: dict[str, float]  # summed over ranks
    loaders: list[dict[str, Any]]
    gpu_use: list[GpuUse] = field(default_factory=list)  # by node, in the order of the GPUs
    energy: Energy | None = None  # None if no GPU's power was read
    low_gpu_snapshots: list[LowGpuSamples] = field(default_factory=list)
    timelines: list[StepTimeline] = field(default_factory=list)  # one per node with recorded steps
    box_plots: list[BoxPlot] = field(default_factory=list)
    utilisation_histograms: list[UtilisationHistogram] = field(default_factory=list)
