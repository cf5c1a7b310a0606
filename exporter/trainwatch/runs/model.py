"""The samples, steps and facts of one run, whatever they were read from."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainwatch.training.layout import COMPONENTS as COMPONENTS
from trainwatch.training.layout import PHASES as PHASES

T = TypeVar("T")

Floats = NDArray[np.float32]
Times = NDArray[np.float64]  # seconds since the epoch


_NOT_GIVEN: Times = np.empty((0, 0))


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
    network: Times  # (n,) received and transmitted bytes per second
    disk: Times  # (n,) read and written bytes per second
    # (n, g) each, NaN where the source does not have them. Counters start anywhere, and restart at 0.
    gpu_power_watts: Floats | Times = field(default_factory=lambda: _NOT_GIVEN)
    gpu_temperature_celsius: Floats | Times = field(default_factory=lambda: _NOT_GIVEN)
    gpu_clock_hertz: Times = field(default_factory=lambda: _NOT_GIVEN)  # of the multiprocessors
    gpu_thermal_throttle_seconds: Times = field(default_factory=lambda: _NOT_GIVEN)  # counter
    gpu_power_throttle_seconds: Times = field(default_factory=lambda: _NOT_GIVEN)  # counter
    gpu_ecc_uncorrected_errors: Times = field(default_factory=lambda: _NOT_GIVEN)  # counter
    gpu_xid_errors: Times = field(default_factory=lambda: _NOT_GIVEN)  # counter
    gpu_last_xid: Times = field(default_factory=lambda: _NOT_GIVEN)  # the number of the last one

    def __post_init__(self) -> None:
        missing = [item.name for item in fields(self) if getattr(self, item.name) is _NOT_GIVEN]
        unknown = np.broadcast_to(np.nan, self.gpu.shape) if missing else None
        for name in missing:
            object.__setattr__(self, name, unknown)

    def __len__(self) -> int:
        return len(self.times)

    @cached_property
    def cpu_mean(self) -> Floats:
        """Returns (n,) the mean utilisation of the cores per sample, NaN where no core was read."""
        return _nan_mean(self.cpu)

    @cached_property
    def io_wait_mean(self) -> Floats:
        """Returns (n,) the mean I/O wait of the cores per sample, NaN where no core was read."""
        return _nan_mean(self.io_wait)


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

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: slice | NDArray[Any]) -> Steps:
        names = ("numbers", "phases", "starts", "durations", "components")
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
    fetches: int = 0  # batches (or items) that workers fetched, if they were timed
    fetch_seconds: float = 0.0  # wall time of these fetches, all workers together
    fetch_cpu_seconds: float = 0.0  # CPU time of these fetches, all workers together
    fetch_core_wait_seconds: float = 0.0  # ready to run, but no core was free; 0: never, or not counted
    batch_size: int | None = None  # items of a batch of this rank


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
class ActivityTime:
    """All other timed work of one kind by one rank, by the name that its profiler gave it."""

    node: str
    rank: int
    activity: str  # "DataLoaderIter", "Forward-SubModuleInternal"
    calls: int
    seconds: float


@dataclass(frozen=True)
class GpuFacts:
    gpu: str  # the gpu label, NVML's index
    model: str = ""
    uuid: str = ""
    memory_bytes: float = 0.0
    power_limit_watts: float = 0.0


@dataclass(frozen=True)
class NodeFacts:
    node: str
    cpus: tuple[str, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    memory_bytes: float = 0.0
    driver_version: str = ""


@dataclass(frozen=True)
class RunFacts:
    """The run as a whole. Times are since the epoch; None is "not known (yet)"."""

    name: str
    start: float | None = None
    end: float | None = None
    command: str = ""
    exit_status: int | None = None
    interval: float = 0.5  # seconds between samples
    samples_missed: int = 0
    versions: dict[str, str] = field(default_factory=dict)  # trainwatch, python, ...
    nodes: tuple[NodeFacts, ...] = ()
    ranks: tuple[RankFacts, ...] = ()
    operators: tuple[OperatorTime, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()
    activities: tuple[ActivityTime, ...] = ()
    unknowns: tuple[str, ...] = ()  # sentences: what could not be read, and why


class Source(ABC):
    """A run that can be read, once (a finished recording) or repeatedly (one that is being written).

    `read` yields the data since the last call, per node and rank in time order, in chunks that fit in
    memory. `facts` are those at the last `read`.
    """

    @property
    @abstractmethod
    def facts(self) -> RunFacts: ...

    @abstractmethod
    def read(self) -> Iterator[NodeSamples | Steps]: ...


def in_time_order(streams: Iterable[Iterator[NodeSamples | Steps]]) -> Iterator[NodeSamples | Steps]:
    """Merges streams of chunks by the first time in each chunk."""
    return heapq.merge(*streams, key=_first_time)


def _first_time(chunk: NodeSamples | Steps) -> float:
    return float(chunk.times[0] if isinstance(chunk, NodeSamples) else chunk.starts[0])


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


def workers_of(process: RankFacts) -> int | None:
    """Returns the workers of the training loader, otherwise of the largest one; None: no loader is known."""
    known = [loader for loader in process.loaders if loader.workers is not None]
    training = [loader for loader in known if loader.phase == "train"]
    return max((loader.workers or 0 for loader in training or known), default=None)
