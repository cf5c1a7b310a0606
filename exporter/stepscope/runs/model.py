"""The samples, steps and facts of one run, whatever they were read from."""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepscope.common.errors import UserError
from stepscope.exporter.processes.cgroup import RESOURCES
from stepscope.exporter.sampling.sample import GPU_QUANTITIES, RUN_QUANTITIES
from stepscope.runs.gauge_history import GaugeHistory
from stepscope.runs.rank_dump import RankDump
from stepscope.training.layout import COMPONENTS as COMPONENTS
from stepscope.training.layout import PHASES as PHASES
from stepscope.training.window_plans import OFF_CPU, ON_CPU

T = TypeVar("T")

Floats = NDArray[np.float32]
Times = NDArray[np.float64]  # seconds since the epoch

USEFUL = ("forward", "backward", "optimizer")  # components in which steps compute


ROUNDING = 1e-6  # of seconds since the epoch
_NOT_GIVEN: Times = np.empty((0, 0))

# The columns of NodeSamples.run_use: what the run's processes use of the host, as recorded.
RUN_USE = (
    *(name for name, quantity in RUN_QUANTITIES.items() if quantity.bits),
    *(f"{resource}_waiting_seconds" for resource in RESOURCES),
)

# The columns of NodeSamples.traffic: rates of counters of the exporter's sample.
TRAFFIC = (
    *("network_receive_bytes", "network_transmit_bytes", "disk_read_bytes", "disk_written_bytes"),
    "disk_operations",
)


@dataclass(frozen=True)
class NodeSamples:
    """Consecutive samples of one node, in time order. Ratios are 0..1 and NaN where missing.

    n samples, c cores, g GPUs. Rates are per second, since the previous sample.
    """

    node: str
    times: Times  # (n,)
    cpu: Floats  # (n, c) utilisation
    io_wait: Floats  # (n, c)
    gpu: Floats  # (n, g) utilisation
    gpu_memory: Floats  # (n, g) used / total
    memory: Floats  # (n,) used / total
    traffic: Times  # (n, len(TRAFFIC)) per second
    # (n, g) each, NaN where the source does not have them. Counters start anywhere, and restart at 0.
    gpu_power_watts: Floats | Times = field(default_factory=lambda: _NOT_GIVEN)
    gpu_temperature_celsius: Floats | Times = field(default_factory=lambda: _NOT_GIVEN)
    gpu_clock_hertz: Times = field(default_factory=lambda: _NOT_GIVEN)  # of the multiprocessors
    gpu_thermal_throttle_seconds: Times = field(default_factory=lambda: _NOT_GIVEN)  # counter
    gpu_power_throttle_seconds: Times = field(default_factory=lambda: _NOT_GIVEN)  # counter
    gpu_ecc_uncorrected_errors: Times = field(default_factory=lambda: _NOT_GIVEN)  # counter
    gpu_xid_errors: Times = field(default_factory=lambda: _NOT_GIVEN)  # counter
    gpu_last_xid: Times = field(default_factory=lambda: _NOT_GIVEN)  # the number of the last one
    gpu_lost: Floats | Times = field(default_factory=lambda: _NOT_GIVEN)  # 1: the driver does not reach it
    gpu_compute_processes: Floats | Times = field(default_factory=lambda: _NOT_GIVEN)  # that hold its memory
    run_use: Times = field(default_factory=lambda: _NOT_GIVEN)  # (n, len(RUN_USE))

    def __post_init__(self) -> None:
        if self.run_use is _NOT_GIVEN:
            object.__setattr__(self, "run_use", np.full((len(self.times), len(RUN_USE)), np.nan))
        missing = [item.name for item in fields(self) if getattr(self, item.name) is _NOT_GIVEN]
        unknown = np.broadcast_to(np.nan, self.gpu.shape) if missing else None
        for name in missing:
            object.__setattr__(self, name, unknown)

    def __len__(self) -> int:
        return len(self.times)

    def of_run(self, name: str) -> Times:
        """Returns (n,) one column of `run_use`."""
        column: Times = self.run_use[:, RUN_USE.index(name)]
        return column

    @property
    def network(self) -> Times:
        """Returns (n,) received and sent bytes per second."""
        return self._traffic("network_receive_bytes", "network_transmit_bytes")

    @property
    def disk(self) -> Times:
        """Returns (n,) read and written bytes per second."""
        return self._traffic("disk_read_bytes", "disk_written_bytes")

    def _traffic(self, *names: str) -> Times:
        total: Times = self.traffic[:, [TRAFFIC.index(name) for name in names]].sum(axis=1)
        return total

    @cached_property
    def cpu_mean(self) -> Floats:
        """Returns (n,) the mean utilisation of the cores per sample, NaN where no core was read."""
        return _nan_mean(self.cpu)

    @cached_property
    def io_wait_mean(self) -> Floats:
        """Returns (n,) the mean I/O wait of the cores per sample, NaN where no core was read."""
        return _nan_mean(self.io_wait)


# The fields of NodeSamples that are readings of GPUs as the exporter takes them.
GPU_READINGS = {
    name: quantity
    for attribute, quantity in GPU_QUANTITIES.items()
    if (name := f"gpu_{attribute}") in NodeSamples.__dataclass_fields__
}


@dataclass(frozen=True)
class Steps:
    """Finished steps of one rank, in the order in which they ended. n steps, seconds throughout."""

    node: str
    rank: int
    numbers: NDArray[np.int64]  # (n,) the step's number within its phase
    phases: NDArray[np.uint8]  # (n,) index into PHASES
    starts: Times  # (n,) since the epoch
    durations: Times  # (n,)
    components: Times  # (n, len(COMPONENTS))
    # (n,) whether a profiler ran: such steps take longer, so they are no outliers. Not given: in none.
    profiled: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    def __post_init__(self) -> None:
        if len(self.profiled) != len(self.starts):
            object.__setattr__(self, "profiled", np.zeros(len(self.starts), np.bool_))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: slice | NDArray[Any]) -> "Steps":
        names = ("numbers", "phases", "starts", "durations", "components", "profiled")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    @property
    def ends(self) -> Times:
        """Returns (n,) when they ended, in seconds since the epoch."""
        return self.starts + self.durations


@dataclass(frozen=True)
class Loader:
    """The data loader of one rank in one phase, and the seconds that its workers spent in fetches."""

    rank: int
    phase: str
    workers: int | None  # None: not known; the same below
    pin_memory: bool | None
    prefetch_factor: int | None
    batch_size: int | None = None  # items of a batch of this rank
    fetches: int = 0  # batches (or items) that workers fetched, if they were timed
    fetch_seconds: float = 0.0  # wall time of these fetches, all workers together
    fetch_cpu_seconds: float = 0.0  # CPU time of these fetches, all workers together
    fetch_core_wait_seconds: float = 0.0  # ready to run, but no core was free; 0: never, or not counted
    busiest_fetch_seconds: float | None = None  # of fetch_seconds, of the worker with most
    worker_threads: int | None = None  # that compute, of all workers together
    persistent_workers: bool | None = None
    restart_seconds: float | None = None  # waits for the first batch of each pass but the first
    fetch_counts: tuple[int, ...] = ()  # fetches between FETCH_BOUNDS of training/layout.py; (): not known


@dataclass(frozen=True, slots=True)
class Stay:
    """A long time that training spent in one place, as far as it was seen. Times are since the epoch."""

    component: str  # or `initialization` before the first step, or `host`: none of them
    operation: str  # of communication; "": not known
    start: float
    end: float  # when it was last seen
    state: str = ""  # of the process then: running, waiting, stopped; "": not known


@dataclass(frozen=True)
class RankStack:
    """The Python stack of a rank at a moment, or why there is none."""

    node: str
    rank: int
    time: float  # since the epoch
    text: str


@dataclass(frozen=True)
class RankFacts:
    """One rank (one training process) as it is known at this moment. Times are since the epoch."""

    node: str
    rank: int
    pid: int
    start: float
    first_step_start: float | None  # None: no step yet
    last_step_end: float | None
    end: float | None  # None: still alive, or not known
    world_size: int
    phase_seconds: dict[str, float]  # phases, other, initialization, finalization
    component_seconds: dict[str, float]
    steps: dict[str, int]  # finished steps by phase
    killed: bool = False  # ended without saying so
    framework: str = ""
    framework_version: str = ""
    records_lost: int = 0  # steps that were counted but whose record nobody read in time
    loaders: tuple[Loader, ...] = ()
    last_alive: float | None = None  # when the process was last seen alive; None: not known
    stays: tuple[Stay, ...] = ()  # oldest first
    # For which the rank could not run so far, over all its processes: stopped, no_core, throttled.
    paused_seconds: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)  # of the script or its framework: the last values
    counts: dict[str, float] = field(default_factory=dict)  # of the script: its totals
    flops_per_step: float | None = None  # floating-point operations that a trace knows
    attempt: int = 0  # how often the launcher had restarted the run before
    reports_steps: bool = True  # False: nothing says that it would, so without steps it has no slow start


@dataclass(frozen=True)
class OperatorTime:
    """All calls of one operator (or GPU kernel) by one rank on one device."""

    node: str
    rank: int
    device: str  # "cpu", or "gpu" and its index: "gpu0"
    operator: str
    calls: int
    seconds: float  # including the operators that it called
    self_seconds: float | None = None  # excluding them; None: not known
    place: str = ""  # file:line of the user's code that calls it most; "": not known
    shapes: str = ""  # of the inputs of its calls with most self time: "32×64, 64"; "": not recorded


@dataclass(frozen=True)
class FunctionTime(OperatorTime):
    """All calls of one Python function."""

    primitive_calls: int | None = None  # while no other call of it was open; None: not known


FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


@dataclass(frozen=True)
class PassTime:
    """The time of one module in the passes of one rank, without the modules that it called."""

    node: str
    rank: int
    device: str  # "cpu": of the host, with Python code; "gpu0": of what it launched there
    part: str  # FORWARD, BACKWARD or OPTIMIZER
    module: str  # "Net.layers.0 (Linear)"; "": none, or not known
    calls: int  # of the module; on a GPU of kernels
    seconds: float


@dataclass(frozen=True)
class TracedSteps:
    """The operators of one rank in the steps of one trace."""

    rank: int
    steps: int
    operators: tuple[OperatorTime, ...]


PICTURE = 240  # columns of a picture


@dataclass(frozen=True)
class StepPicture:
    """One traced step of a rank, in PICTURE columns.

    `lanes` has, per device ("cpu", "gpu") and part of the step, a byte per column: percent of its time. The
    parts are data_wait, communication, backward, optimizer and operators. A GPU has compute, communication
    and copy.
    """

    node: str
    rank: int
    number: int
    seconds: float
    lanes: dict[str, dict[str, bytes]]


@dataclass(frozen=True)
class OperatorMemory:
    """Bytes that all calls of one operator allocated on one device."""

    operator: str
    allocations: int
    allocated: int
    freed: int  # while it ran
    place: str = ""  # as of OperatorTime


@dataclass(frozen=True)
class DeviceMemory:
    """Memory that the operators of one rank allocated on one device, in windows that recorded it."""

    device: str  # as of OperatorTime
    most: int  # bytes that were allocated at once; on the CPU, of those since the window began
    operators: tuple[OperatorMemory, ...]
    steps: int  # of these windows
    node: str = ""
    rank: int = 0
    # The bytes over time in the window with most: by the part of the step that allocated them, or "before".
    # A byte per PICTURE column: percent of the most. {}: addresses are not known.
    held: dict[str, bytes] = field(default_factory=dict)
    begins: tuple[tuple[int, float], ...] = ()  # of its steps: number, and percent of its time


PYTHON = "python"  # how the device of an OperatorTime begins that is a Python function
PYTHON_TIMES = {PYTHON: PYTHON, ON_CPU: f"{PYTHON}, on a core", OFF_CPU: f"{PYTHON}, off the cores"}


@dataclass(frozen=True)
class StackTime:
    """The time that main threads spent in a whole stack."""

    phase: str
    component: str
    functions: tuple[str, ...]  # outermost first: "load, data.py:14" (the user's own) or "module.function"
    seconds: float


@dataclass(frozen=True)
class PythonWindow:
    """The Python functions of one rank in the steps of one window."""

    node: str
    rank: int
    first: int  # its first step
    start: float  # seconds since the epoch
    steps: int
    step_seconds: float
    functions: tuple[FunctionTime, ...]
    device: str = PYTHON  # of PYTHON_TIMES: which seconds they have
    stacks: tuple[StackTime, ...] = ()  # by samples of the main thread; (): none were taken

    @property
    def last(self) -> int:
        """Returns the number of its last step."""
        return self.first + self.steps - 1


@dataclass(frozen=True)
class ProfileWindow:
    """Consecutive training steps of one rank that a profiler recorded, or why it did not."""

    node: str
    rank: int
    pid: int
    first: int  # the number of its first step,
    last: int | None  # and of its last one; None: none has ended
    start: float  # since the epoch
    pause_seconds: float  # in no step: to start and stop the profiler, and to write the trace
    state: str  # "open" (or its process was killed), "written", "failed", "skipped", "removed" or "lost"
    reason: str  # of a window that is not as planned
    trace: str  # path in the recording; "": there is none
    step_seconds: float = 0.0  # of its steps together; 0: none has ended


@dataclass(frozen=True)
class CollectiveTime:
    """All collective operations of one kind by one rank: "allreduce", Horovod's "NEGOTIATE_ALLREDUCE"."""

    node: str
    rank: int
    operation: str
    calls: int
    seconds: float
    exposed_seconds: float | None = None  # while nothing else ran on the device; None: not known


@dataclass(frozen=True)
class TransferTime:
    """The collectives of one kind that move the same data in one group, from a trace; seconds."""

    operation: str
    group: str  # its description or name; "": not known
    size: int | None  # ranks of the group; None: not known
    dtype: str
    bytes: int | None  # the larger of what a rank gives and gets
    calls: int
    seconds: float  # waits for other ranks included
    shortest: float  # of the calls
    node: str = ""
    rank: int = 0


def summed_transfers(parts: Iterable[TransferTime]) -> tuple[TransferTime, ...]:
    """Returns the sums of those that move the same data in the same group, the longest first."""
    sums: dict[tuple[object, ...], TransferTime] = {}
    for part in parts:
        key = (part.operation, part.group, part.size, part.dtype, part.bytes)
        before = sums.get(key)
        if before is not None:
            part = replace(
                before,
                calls=before.calls + part.calls,
                seconds=before.seconds + part.seconds,
                shortest=min(before.shortest, part.shortest),
            )
        sums[key] = part
    return tuple(sorted(sums.values(), key=lambda found: -found.seconds))


@dataclass(frozen=True)
class ActivityTime:
    """All other timed work of one kind by one rank, by the name that its profiler gave it."""

    node: str
    rank: int
    activity: str  # "DataLoaderIter", "Forward-SubModuleInternal"
    calls: int
    seconds: float


# The columns of RankTrace.work: each moment of a step counts for the first of these that a rank does.
WORK = ("compute", "copies", "data_wait", "host")


class ProcessGroup(NamedTuple):
    """Ranks that communicate with each other."""

    name: str  # unique in its job; otherwise the stream or the library that carries the group's calls
    description: str = ""  # "default_pg", "mesh_tp"
    ranks: tuple[int, ...] = ()  # (): not known


@dataclass(frozen=True)
class RankTrace:
    """The collectives of one rank, one by one, and its steps, from a trace of each device's work.

    n collectives in the order in which they were launched, s steps. Seconds on the clock of the rank's node.
    """

    node: str
    rank: int
    groups: tuple[ProcessGroup, ...]
    group: NDArray[np.int64]  # (n,) index into groups
    operations: tuple[str, ...]  # (n,) "allreduce"
    sequence: NDArray[np.int64]  # (n,) the number that the group gave the call; -1: not known
    peers: NDArray[np.int64]  # (n,) the other rank of a send or receive; -1: none, or not known
    starts: Times  # (n,) arrivals, since the epoch
    ends: Times  # (n,) departures
    step: NDArray[np.int64]  # (n,) index of the step that launched it; -1: outside of all
    exposed: Times  # (m, 2) starts and ends of the times in which the rank only communicates
    numbers: NDArray[np.int64]  # (s,) as the profiler counts steps
    durations: Times  # (s,)
    communicated: Times  # (s,) exposed
    work: Times  # (s, len(WORK))

    def later(self, seconds: float) -> "RankTrace":
        """Returns this trace with all its times moved."""
        moved = {name: getattr(self, name) + seconds for name in ("starts", "ends", "exposed")}
        return replace(self, **moved)


@dataclass(frozen=True)
class HostTime:
    """A part of a host's time in a trace."""

    # "operator", "computing", "python", "runtime", "slow call", "synchronising", "memory", "capture", "gc" or
    # "not recorded"
    kind: str
    name: str  # of the innermost event; "" if none was recorded
    site: str  # the line of the user's code that called it, "train.py(12): step"; "": not known
    calls: int
    seconds: float


# Why a device was idle, in a trace. The first four are waits for the host.
COPIES = ("pageable", "to device", "to host", "in device", "fill", "unknown")
IDLE_REASONS = ("profiler", "data", "collective", "host", "launch", "unknown")


@dataclass(frozen=True)
class DeviceTime:
    """A device between its first and last event in a trace, all streams together; seconds.

    Each moment counts once, for the first of these: computing, a memory copy, communication, idle.
    """

    device: str  # "gpu0"
    compute: float
    copy: float
    communication: float  # exposed: nothing else runs
    idle: float
    idle_for: dict[str, float]  # by IDLE_REASONS; their sum is `idle`
    host: tuple[HostTime, ...] = ()  # while the device waited for "host", the longest first
    synchronising: tuple[HostTime, ...] = ()  # calls of the host that waited for the device
    node: str = ""
    rank: int = 0
    steps: int | None = None  # in the trace; None: not known
    copies: dict[str, float] = field(default_factory=dict)  # by COPIES, of each copy

    @property
    def busy(self) -> float:
        return self.compute + self.copy + self.communication

    @property
    def seconds(self) -> float:
        return self.busy + self.idle

    @property
    def knows_launches(self) -> bool:
        """Returns whether what the device waited for was measured, of any part of its idle time."""
        return self.idle_for["unknown"] < self.idle


@dataclass(frozen=True)
class LineTime:
    """The time that a main thread was in one line of the user's code, by samples. "": not known, or none."""

    phase: str
    component: str  # "host": in a step, and in no component
    place: str  # file:line, relative to the working directory; "" in all names: all other lines
    function: str
    library: str  # the function of a library that the line called
    caller_place: str
    caller: str  # the function that called it
    seconds: dict[str, float]  # by what the thread did: line_layout.STATES
    step: str = ""  # "long": of a step that already lasted twice as long as usual
    text: str = ""  # of the line; "": not known

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def running(self) -> float:
        """Returns the seconds in which the thread had or wanted a core."""
        return self.seconds.get("running", 0.0)


KNOWN = 0.9  # of the sampled seconds: with less, a wait that the kernel does not show could be any


@dataclass(frozen=True)
class ThreadTime:
    """The main threads of a rank's processes in one role. Seconds are summed over processes."""

    node: str
    rank: int | None  # None: of a script without ranks
    role: str  # line_layout.ROLES
    processes: int
    seconds: float  # that were sampled
    ran_seconds: float  # with a core
    core_wait_seconds: float  # ready to run, without a core
    own_cpu_seconds: float  # of the sampling itself
    lines: tuple[LineTime, ...] = ()  # most time first
    known_seconds: float = 0.0  # of `seconds`, in which the kernel showed what they waited for
    others: tuple[LineTime, ...] = ()  # the CPU time of other Python threads, by the function that each runs
    stacks: tuple[StackTime, ...] = ()  # most time first
    long_core_wait_seconds: float = 0.0  # without a core in steps of twice the usual time
    train_ran_seconds: float = 0.0  # with a core in training steps
    train_core_wait_seconds: float = 0.0  # without a core in them
    tools: tuple[LineTime, ...] = ()  # for how long each tool, such as a tracer, was on

    @property
    def interpreter_wait_seconds(self) -> float:
        """Returns how long they waited for Python's interpreter lock, by samples; 0 if that is not known.

        Samples count such a wait as running, and the kernel does not. Other threads held the lock meanwhile:
        it is at most their CPU time. The rest of the difference is samples that fell on short waits.
        """
        if not self.ran_seconds or self.known_seconds < KNOWN * self.seconds:
            return 0.0
        running = sum(line.running for line in self.lines)
        held = sum(line.total for line in self.others)
        return min(max(0.0, running - self.ran_seconds - self.core_wait_seconds), held)

    def within(self, seconds: float) -> "ThreadTime":
        """Returns the mean of its processes at the same time, in a run of these seconds."""
        part = max(min(seconds / self.seconds, 1.0), 1 / max(self.processes, 1))
        if part == 1.0:
            return self
        totals = (each.name for each in fields(self) if each.name.endswith("seconds"))
        lines, others, tools = (
            tuple(
                replace(line, seconds={state: part * n for state, n in line.seconds.items()}) for line in each
            )
            for each in (self.lines, self.others, self.tools)
        )
        scaled = {name: part * getattr(self, name) for name in totals}
        return replace(self, **scaled, lines=lines, others=others, tools=tools)


@dataclass(frozen=True)
class GpuFacts:
    gpu: str  # the gpu label, NVML's index
    model: str = ""
    uuid: str = ""
    memory_bytes: float = 0.0
    power_limit_watts: float = 0.0
    by: str | None = None  # the evidence that the run uses it; "": there is none; None: not recorded

    @property
    def may_be_used(self) -> bool:
        """Returns whether the run uses it, as far as was recorded."""
        return self.by != ""


@dataclass(frozen=True)
class NodeFacts:
    node: str
    cpus: tuple[str, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    memory_bytes: float = 0.0
    driver_version: str = ""
    run_cpus: tuple[str, ...] = ()  # the cores that the run may use; empty: not known
    neighbours: tuple[tuple[str, float], ...] = ()  # users of other processes there, and their CPU seconds


@dataclass(frozen=True)
class Gap:
    """A part of the run that is missing, so that the figures exclude it. Times are since the epoch."""

    # "samples", "steps", "ranks" (their totals), "gauges", "scrapes", "run" (command, start, end, status),
    # or "file"
    what: str
    reason: str  # a clause
    node: str = ""  # "": the whole run
    start: float | None = None  # None: not known, or from the start of the run
    end: float | None = None  # None: not known, or to the end of what is recorded
    count: int | None = None  # missing samples or steps; None: not known


@dataclass(frozen=True)
class Span:
    """From when to when a rank was traced. Times are since the epoch."""

    start: float
    end: float
    node: str = ""
    rank: int = 0


@dataclass(frozen=True)
class RunRecord:
    """A run as the run.json of a recording has it. Times are since the epoch; None is "not known (yet)"."""

    name: str
    start: float | None = None
    end: float | None = None
    command: str = ""
    exit_status: int | None = None
    interval: float = 0.5  # seconds between samples
    versions: dict[str, str] = field(default_factory=dict)  # stepscope, python, ...
    run: str = ""  # the label, unique per launch; "": not known
    no_steps: str = ""  # sentences: why no steps were seen, and the fix; "": some were, or it is not known
    ended: str = ""  # how, in the words of ledgers/presence.py; "": not known (yet)
    stopped_by: str = ""  # who sent the signal to stop it: TERMINAL, OUTSIDE, or a program; "": not known
    exception: dict[str, str] = field(default_factory=dict)  # type, message, place, rank; {}: none is known
    restarted_after: dict[str, str] = field(default_factory=dict)  # the same, of the last attempt but one


@dataclass(frozen=True)
class RunFacts(RunRecord):
    """The run as a whole, from any source."""

    nodes: tuple[NodeFacts, ...] = ()
    ranks: tuple[RankFacts, ...] = ()
    operators: tuple[OperatorTime, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()
    activities: tuple[ActivityTime, ...] = ()
    unknowns: tuple[str, ...] = ()  # sentences: what could not be read, and why
    gaps: tuple[Gap, ...] = ()
    traces: tuple[RankTrace, ...] = ()  # one per rank, if the source is a trace of each
    stacks: tuple[RankStack, ...] = ()  # that were taken during a hang
    windows: tuple[ProfileWindow, ...] = ()  # of the profiler, in the order in which they began
    threads: tuple[ThreadTime, ...] = ()  # where their main threads were; empty: not sampled
    captures: tuple[Span, ...] = ()  # when ranks were traced, if the source is traces
    transfers: tuple[TransferTime, ...] = ()  # by node and rank, if a trace has them
    devices: tuple[DeviceTime, ...] = ()  # by node, rank and device, if a trace has them
    memory: tuple[DeviceMemory, ...] = ()  # by node, rank and device, if a trace has it
    passes: tuple[PassTime, ...] = ()  # if a trace has modules
    pictures: tuple[StepPicture, ...] = ()  # of each rank with a trace whose steps are known
    first_and_last: tuple[tuple[TracedSteps, TracedSteps], ...] = ()  # of each rank with several traces
    unrecognised: int = 0  # events of a trace of categories that nobody here knows
    damaged: tuple[str, ...] = ()  # those of `unknowns` that say so
    dumps: tuple[RankDump, ...] = ()  # of the flight recorder, by rank
    gauges: tuple[GaugeHistory, ...] = ()  # of the lowest rank of each node that publishes some
    # Debugger's reports by rule, if nothing else is left: the rules take them over. Empty: they judge.
    reported: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Returns the label of the run, or its name if no launch is known."""
        return self.run or self.name

    @property
    def unobserved_seconds(self) -> float:
        """Returns the seconds between captures, when no rank was traced: no part of the run's duration."""
        if not self.captures:
            return 0.0
        whole = max(each.end for each in self.captures) - min(each.start for each in self.captures)
        unobserved = whole - _traced(self.captures)
        return unobserved if unobserved > ROUNDING else 0.0

    @property
    def samples_missed(self) -> int:
        """Returns how many samples are known to be missing."""
        return sum(gap.count or 0 for gap in self.gaps if gap.what == "samples")


class _Together(NamedTuple):
    """Ranks that were traced at the same time."""

    ranks: set[tuple[str, int]]
    seconds: float
    end: float


def _traced(captures: Iterable[Span]) -> float:
    """Returns for how long ranks were traced. Ranks never traced at the same time are not on one clock: those
    that were traced longest count."""
    found: list[_Together] = []
    for each in sorted(captures, key=lambda each: each.start):
        ranks, seconds, end = {(each.node, each.rank)}, each.end - each.start, each.end
        for other in [other for other in found if each.start < other.end or ranks & other.ranks]:
            found.remove(other)
            common = max(min(other.end, each.end) - each.start, 0.0)
            ranks, seconds, end = ranks | other.ranks, seconds + other.seconds - common, max(end, other.end)
        found.append(_Together(ranks, seconds, end))
    return max(other.seconds for other in found)


TRACE = "trace"


class TimedEvent(NamedTuple):
    """An operator, a kernel, a collective or a wait: one call of it."""

    node: str
    rank: int
    device: str  # cpu, or gpu0
    kind: str  # Debugger's, or operator, kernel, copy or collective of a trace
    name: str
    start: float  # seconds since the epoch
    duration: float  # seconds
    file: str = TRACE  # the kind of its file; of Debugger: python, model, horovod, smdataparallel, tensorflow


Progress = Callable[[int, int], None]  # gets the bytes read so far, and the bytes to read


def counter(total: int, progress: Progress | None) -> Callable[[int], None]:
    """Returns a function to call with the bytes read since the last call, of a `total`."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return add


class Source(ABC):
    """A run that can be read, once (a finished recording) or repeatedly (one that is being written).

    `read` yields the data since the last call, per node and rank in time order, in chunks that fit in
    memory. `facts` are those at the last `read`.
    """

    judged_whole = False  # a trace: it is judged once, over its span, however short that is

    @property
    @abstractmethod
    def facts(self) -> RunFacts: ...

    @abstractmethod
    def read(self) -> Iterator[NodeSamples | Steps]: ...

    def traces(self) -> "Source | None":
        """Returns the traces of the run's profile windows, as a source; None if there are none."""
        return None

    def trace_files(self) -> Iterator[tuple[Path, float]]:
        """Yields the files of traces, and by how many seconds the clock of each is ahead."""
        yield from ()

    def python_windows(self) -> Iterator[PythonWindow | UserError]:
        """Yields the windows of Python functions, or why one cannot be read."""
        yield from ()

    def events(self) -> Iterator[TimedEvent]:
        """Yields the calls that the source knows one by one. Raises UserError. Reads what `read` has not."""
        yield from ()


def in_time_order(streams: Iterable[Iterator[NodeSamples | Steps]]) -> Iterator[NodeSamples | Steps]:
    """Merges streams of chunks by the first time in each chunk."""
    return heapq.merge(
        *streams, key=lambda chunk: chunk.times[0] if isinstance(chunk, NodeSamples) else chunk.starts[0]
    )


def facts_of_steps(steps: Steps) -> dict[str, Any]:
    """Returns the fields of RankFacts that all steps of a rank determine."""
    seconds = np.bincount(steps.phases, steps.durations, minlength=len(PHASES)).tolist()
    counts = np.bincount(steps.phases, minlength=len(PHASES)).tolist()
    first, last = (float(steps.starts.min()), float(steps.ends.max())) if len(steps) else (None, None)
    phase_seconds = dict(zip(PHASES, seconds, strict=True))
    if first is not None and last is not None:
        phase_seconds["other"] = max(last - first - sum(seconds), 0.0)
    return {
        "first_step_start": first,
        "last_step_end": last,
        "phase_seconds": phase_seconds,
        "component_seconds": dict(zip(COMPONENTS, steps.components.sum(axis=0).tolist(), strict=True)),
        "steps": dict(zip(PHASES, counts, strict=True)),
    }


def _nan_mean(values: Floats) -> Floats:
    counts = np.count_nonzero(~np.isnan(values), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Floats = (np.nansum(values, axis=1, dtype=np.float64) / counts).astype(np.float32)
    return means


def why_no_gpu(facts: RunFacts) -> str:
    """Returns why rules on GPUs judge none although the nodes have GPUs; "" if the run uses some."""
    gpus = [gpu for node in facts.nodes for gpu in node.gpus]
    if not gpus or any(gpu.may_be_used for gpu in gpus):
        return ""
    return (
        "It is not known which GPUs this run uses: no process of this run was seen on a GPU, it reported no "
        "GPU, and neither CUDA_VISIBLE_DEVICES nor an otherwise unused node says so."
    )


def gpu_labels(facts: RunFacts, node: str, count: int) -> list[str]:
    """Returns the names of the GPUs of a node, in the order of the columns of its samples: "GPU 0"."""
    known = next((item.gpus for item in facts.nodes if item.node == node), ())
    return [f"GPU {known[i].gpu if i < len(known) else i}" for i in range(count)]


def labelled(facts: RunFacts, node: str, gpus: Sequence[T]) -> list[tuple[str, T]]:
    """Returns a value per GPU of a node, by column, each with the GPU's name."""
    return list(zip(gpu_labels(facts, node, len(gpus)), gpus, strict=True))


def ranks_of(facts: RunFacts, node: str) -> dict[int, list[RankFacts]]:
    """Returns the processes of each rank of a node, oldest first: more than one if it was started again."""
    ranks: dict[int, list[RankFacts]] = {}
    for process in sorted(facts.ranks, key=lambda process: process.start):
        if process.node == node:
            ranks.setdefault(process.rank, []).append(process)
    return dict(sorted(ranks.items()))


def longest_pause(processes: Iterable[RankFacts], reason: str) -> float:
    """Returns for how many seconds a rank could not run so far: a later process continues the counts."""
    return max((process.paused_seconds.get(reason, 0.0) for process in processes), default=0.0)


def workers_of(process: RankFacts) -> int | None:
    """Returns the workers of the training loader, otherwise of the largest one; None: no loader is known."""
    known = [loader for loader in process.loaders if loader.workers is not None]
    training = [loader for loader in known if loader.phase == "train"]
    return max((loader.workers or 0 for loader in training or known), default=None)
