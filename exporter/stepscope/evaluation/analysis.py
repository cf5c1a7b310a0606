"""Holds the results of an evaluation: everything that the terminal, the report and the JSON files show."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import inf, nan
from typing import Any, Literal

from stepscope.common.status import Status
from stepscope.evaluation.account import Account
from stepscope.evaluation.places import main_threads
from stepscope.measurements.counted import Counted
from stepscope.measurements.energy import Energy
from stepscope.measurements.heatmap import Heatmap, LowGpuSamples
from stepscope.measurements.step_totals import LastStep, Restart
from stepscope.measurements.steps import StepDistribution
from stepscope.measurements.timeline import StepTimeline
from stepscope.measurements.usage import UsageRow
from stepscope.rules import all_rules
from stepscope.rules.parts.bands import Band as Band
from stepscope.rules.parts.base import Rule, RuleClass, Verdict
from stepscope.rules.parts.topics import About
from stepscope.runs.gauge_history import GaugeHistory
from stepscope.runs.malformed import is_date
from stepscope.runs.model import (
    DeviceMemory,
    DeviceTime,
    Gap,
    OperatorTime,
    ProfileWindow,
    PythonWindow,
    StepPicture,
    ThreadTime,
)

ACCOUNT = "Account"  # instead of a rule's name


@dataclass(frozen=True)
class RuleResult:
    """The result of one rule for the whole run. Counts are as in Debugger (see docs/heuristics.md)."""

    rule: str
    question: str
    description: str
    recommendation: str  # for this run; names the cause if it is known
    status: Status
    finding: str  # one sentence with values, or why nothing could be judged
    triggered: int  # scans that fired
    violations: int
    datapoints: int
    parameters: dict[str, float | int | str | None]
    about: About
    seconds_lost: float = 0.0  # an estimate, for the order of rules; 0 if there is none
    details: dict[str, Any] = field(default_factory=dict)  # JSON values only
    debugger_parameters: dict[str, float | int | str | None] | None = None  # if Debugger names others
    debugger_triggered: int | None = None  # RuleTriggered, if it is not `triggered`
    bands: list[Band] = field(default_factory=list)  # by start; none overlap for one subject
    cause_known: bool = True  # whether it was measured what took the time

    @property
    def is_of_a_rule(self) -> bool:
        """Returns whether a rule found it, instead of the account."""
        return self.rule != ACCOUNT

    @property
    def name(self) -> str:
        """Returns the name of the rule, or the title of what was found without one."""
        return self.rule if self.is_of_a_rule else self.about.subject

    @property
    def definition(self) -> RuleClass:
        """Returns the rule's class; that of no rule in particular if there is no such rule."""
        return all_rules().get(self.rule, Rule)

    @classmethod
    def of(cls, rule: Rule[Any, Any], verdict: Verdict, bands: Iterable[Band]) -> "RuleResult":
        concluded = {
            key: value for key, value in vars(verdict).items() if key not in ("held", "recommendation")
        }
        return cls(
            rule=rule.name,
            question=rule.question,
            description=rule.description,
            recommendation=verdict.recommendation or rule.recommendation,
            parameters=asdict(rule.parameters),
            about=rule.about(),
            debugger_parameters=rule.debugger_parameters(),
            bands=sorted(bands, key=lambda band: (band.start, band.node, band.subject)),
            **concluded,
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
class CoreHistogram:
    """The share of a core's samples in each of CORE_LEVELS ranges of its utilisation, 0..1."""

    node: str
    core: str
    shares: list[float]


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
    by: str | None = None  # the evidence that the run uses it; None: not recorded


@dataclass(frozen=True)
class RunCores:
    """The cores of one node that the run may use, and how many of them were used on average."""

    node: str
    allowed: float
    own: float
    others: float


@dataclass(frozen=True)
class RunUse:
    """The use of one node by the run's processes, on average; NaN: not known."""

    node: str
    cores: float
    allowed: float  # cores that they may use
    waited_share: float  # of the time in which their main threads could run: they had no core
    read_per_second: float  # bytes from disks
    written_per_second: float
    memory: float = nan  # bytes that they held at the end, without those of files
    memory_capacity: float = nan  # bytes that they may use: their limit, or the node's memory
    memory_growth: float = nan  # bytes per second, if it was steady


@dataclass(frozen=True)
class DeviceProfile:
    """The operators of one device of one rank, in all of its windows together."""

    node: str
    rank: int
    device: str
    steps: int  # of the windows
    step_seconds: float  # how long these took together
    seconds: float  # self time of all operators: more than that of the steps if several ran at once
    operators: tuple[OperatorTime, ...]  # the most self time first
    kinds: dict[str, float] = field(default_factory=dict)  # of a GPU: seconds by what kernels compute
    windows: tuple[PythonWindow, ...] = ()  # of Python, with their stacks


@dataclass(frozen=True)
class ModuleTime:
    """The time of a module, or of all modules whose names differ in numbers only."""

    module: str  # "Net.layers.*.fc1 (Linear)"
    calls: int  # on a GPU: kernels
    forward: float  # seconds, without the modules that it called
    backward: float
    total: float  # of both passes, with these modules


@dataclass(frozen=True)
class DevicePasses:
    """The passes of one rank in all of its windows together: of the host, or of what it launched on a GPU."""

    node: str
    rank: int
    device: str
    steps: int
    step_seconds: float
    forward: float  # seconds
    backward: float
    optimizer: float
    modules: tuple[ModuleTime, ...]  # the most time of their own first


@dataclass(frozen=True)
class OperatorExcess:
    """The operator or kernel in which a rank spends most beyond its peers; self seconds per step."""

    rank: int
    operator: str
    seconds: float
    others: float  # the median of the other ranks
    step_seconds: float  # of the rank, in its windows
    place: str  # file:line of the user's code that calls it most on this rank; "": not known


@dataclass(frozen=True)
class OperatorChange:
    """Self seconds per step of profile windows, the mean of the ranks; 0: not seen."""

    device: str  # "cpu", "gpu" or "python"
    operator: str
    a: float
    b: float
    place: str  # file:line of the user's code that calls it most; "": not known

    @property
    def difference(self) -> float:
        return self.b - self.a


@dataclass(frozen=True)
class Profile:
    """The traces of a run's profile windows, summed up."""

    devices: tuple[DeviceProfile, ...]  # by rank
    findings: tuple[tuple[str, str, str], ...]  # title, sentence and advice, as of any trace
    unread: tuple[str, ...]  # why traces could not be read
    excess: tuple[OperatorExcess, ...] = ()  # of each rank, if several have traces
    memory: tuple[DeviceMemory, ...] = ()  # by rank, of each the operators that allocated most
    # From the first to the last window of each rank, if a rank has several. Windows with memory do not count.
    changes: tuple[OperatorChange, ...] = ()
    # Self seconds per step by device ("cpu", "gpu", "python") and operator, the mean of the ranks.
    per_step: dict[str, dict[str, float]] = field(default_factory=dict)
    passes: tuple[DevicePasses, ...] = ()  # by rank
    flops: dict[int, float] = field(default_factory=dict)  # per step, by rank, if known
    pictures: tuple[StepPicture, ...] = ()  # of the slowest rank and of the one in the middle, if several
    traces: "Analysis | None" = None  # of the windows alone, as a report on their traces has it

    def places(self) -> dict[str, str]:
        """Returns the known lines by operator."""
        operators = (each for device in self.devices for each in device.operators)
        return {each.operator: each.place for each in operators if each.place}


@dataclass(frozen=True)
class Analysis:
    """A whole evaluation. Times are seconds since the epoch, None if unknown."""

    run: str  # the label; the name if the label is unknown
    name: str
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
    rules: list[RuleResult]  # in the order of evaluation/problems.py
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
    core_histograms: list[CoreHistogram] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)  # parts of the run that all figures exclude
    no_steps: str = ""  # sentences: why no steps were seen, and the fix; "": some were, or it is not known
    run_cores: list[RunCores] = field(default_factory=list)  # of nodes on which the run's use was measured
    run_use: list[RunUse] = field(default_factory=list)  # by node
    gauges: dict[str, float] = field(default_factory=dict)  # of the first rank that has any
    gauge_histories: list[GaugeHistory] = field(default_factory=list)  # of that rank, process by process
    counted: list[Counted] = field(default_factory=list)  # totals of the script, of all ranks
    waited_by_turns: float = 0.0  # of the time of training steps, 0..1: for a rank that is slow in turn,
    uneven_component: str = ""  # mostly in this component; "": in none
    stopped_seconds: dict[int, float] = field(default_factory=dict)  # by signals, of each rank
    large: float = 0.1  # of the run: a smaller part that no rule judges is no finding,
    shortest: float = 3.0  # and no part is one of a run of fewer seconds
    # MFU, 0..1; None: there is no peak, or neither the script nor a profile window counts FLOPs.
    flops_utilisation: float | None = None
    threads: list[ThreadTime] = field(default_factory=list)  # the lines that were sampled
    ended: str = ""  # how, in the words of ledgers/presence.py; "": not known (yet)
    stopped_by: str = ""  # as in run.json
    exception: dict[str, str] = field(default_factory=dict)  # as in run.json
    restarted_after: dict[str, str] = field(default_factory=dict)  # as in run.json
    compiled_steps: int = 0  # in which something was compiled, of the rank with most
    restarts: list[Restart] = field(default_factory=list)
    last_steps: list[LastStep] = field(default_factory=list)  # by rank
    is_trace: bool = False  # it has neither the run's start nor samples
    unobserved_seconds: float = 0.0  # between captures of traces: no part of the run's duration
    devices: list[DeviceTime] = field(default_factory=list)  # of traces, by node, rank and device
    too_little: str = ""  # a clause: of what a trace shows too little to be healthy; "": of nothing
    unrecognised: int = 0  # events of traces of categories that nobody here knows
    damaged: tuple[str, ...] = ()  # sentences that name these
    windows: list[ProfileWindow] = field(default_factory=list)  # in the order in which they began
    profile: Profile | None = None  # what their traces show; None: there are none, or the run continues
    account: Account | None = None  # None: of a trace, or the start or the end is not known

    @property
    def date(self) -> float | None:
        """Returns when the run began; None also if its times count from its start, as in some profiles."""
        return _date(self.start)

    @property
    def end_date(self) -> float | None:
        """Returns when it ended, likewise."""
        return _date(self.end)

    @property
    def last_seen(self) -> float | None:
        """Returns the end, or the end of the last step or samples if it is unknown."""
        if self.end is not None:
            return self.end
        samples = [heatmap.times[-1] for heatmap in self.heatmaps if heatmap.times]
        steps = [] if self.last_step_end is None else [self.last_step_end]
        return max(samples + steps, default=None)

    @property
    def run_seconds(self) -> float | None:
        """Returns the run's seconds, until `last_seen` at least; the time between captures is left out."""
        if self.start is None or self.last_seen is None:
            return None
        return max(0.0, self.last_seen - self.start - self.unobserved_seconds)

    @property
    def main_threads(self) -> list[ThreadTime]:
        """Returns the threads whose time is the run's, as far as they were sampled."""
        return main_threads(self.threads, self.run_seconds if self.run_seconds is not None else inf)

    @property
    def core_wait_seconds(self) -> float:
        """Returns the most seconds for which a main thread was ready to run, but had no core."""
        return max((thread.core_wait_seconds for thread in self.main_threads), default=0.0)

    @property
    def uses_gpus(self) -> bool:
        """Returns whether there is evidence that the run uses a GPU."""
        return any(use.by for use in self.gpu_use)

    def result_of(self, rule: RuleClass) -> RuleResult | None:
        """Returns the result of a rule; None if it was not evaluated."""
        return next((result for result in self.rules if result.rule == rule.__name__), None)

    def details_of(self, rule: RuleClass) -> dict[str, Any]:
        """Returns the details of a rule; empty if it was not evaluated."""
        result = self.result_of(rule)
        return {} if result is None else result.details

    def found(self, rule: RuleClass) -> bool:
        """Returns whether a rule fired."""
        result = self.result_of(rule)
        return result is not None and result.status is Status.FOUND


def _date(time: float | None) -> float | None:
    return time if time is not None and is_date(time) else None
