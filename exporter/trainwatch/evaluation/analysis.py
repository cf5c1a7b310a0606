"""What an evaluation found: everything that the terminal, the report and the JSON files show."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trainwatch.measurements.energy import Energy
from trainwatch.measurements.heatmap import Heatmap, LowGpuSnapshots
from trainwatch.measurements.timeline import StepTimeline
from trainwatch.measurements.usage import UsageRow
from trainwatch.rules.base import Rule, Verdict
from trainwatch.rules.topics import About
from trainwatch.status import Status


@dataclass(frozen=True)
class RuleResult:
    """One heuristic over the whole run. Counts are as Debugger reports them (see docs/heuristics.md)."""

    rule: str
    question: str
    description: str
    recommendation: str  # for this run; names the cause where it is known
    status: Status
    finding: str  # one sentence with values; where nothing could be judged, why
    triggered: int  # RuleTriggered: scans that fired
    violations: int
    datapoints: int
    parameters: dict[str, float | int | str | None]
    about: About
    seconds_lost: float = 0.0  # an estimate that orders the verdict; 0 where it makes no sense
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
    """All readings of one device in percent; whiskers reach 1.5 interquartile ranges beyond the box."""

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
    """How many readings of a GPU lay in each bin of 2 points, from 0 to 100 %."""

    node: str
    gpu: str
    counts: list[int]


@dataclass(frozen=True)
class StepDistribution:
    """The step durations of one rank in one phase, in seconds.

    `counts[i]` steps lie in `edges[i]`..`edges[i + 1]`; outliers of the StepOutlier rule lie outside.
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
    """How much of one GPU was used over the whole run, in percent; NaN where it was not read."""

    node: str
    gpu: str  # "GPU 0"
    mean: float  # of the utilisation; so p50, p95, max
    p50: float
    p95: float
    max: float
    memory_p50: float
    memory_p95: float
    memory_max: float
    memory_bytes: float  # that it has; 0 where not known


@dataclass(frozen=True)
class Analysis:
    """A whole evaluation. Times are seconds since the epoch, None where not known."""

    run: str
    command: str
    exit_status: int | None
    start: float | None
    first_step_start: float | None
    last_step_end: float | None
    end: float | None
    finished: bool  # False: the run goes on, or was cut off
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
    rules: list[RuleResult]  # fired first, by seconds lost, then by times triggered
    usage: list[UsageRow]
    heatmaps: list[Heatmap]
    steps: list[StepDistribution]
    phase_seconds: dict[str, float]  # summed over ranks: train, eval, predict, global, other, ...
    component_seconds: dict[str, float]  # summed over ranks
    loaders: list[dict[str, Any]]
    gpu_use: list[GpuUse] = field(default_factory=list)  # by node, in the order of the GPUs
    energy: Energy | None = None  # None: the power of no GPU was read
    low_gpu_snapshots: list[LowGpuSnapshots] = field(default_factory=list)
    timelines: list[StepTimeline] = field(default_factory=list)  # a node each, where steps were recorded
    box_plots: list[BoxPlot] = field(default_factory=list)
    utilisation_histograms: list[UtilisationHistogram] = field(default_factory=list)
