"""The parts of a scenario: the steps of its ranks, the load of its cores, memory and heat of its GPUs.

The defaults are a healthy node. The numbers are typical of a node with 8 H100 GPUs; they were not measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

CORES = 32
GPUS = 8
Range = tuple[float, float]  # amounts are drawn evenly from it


@dataclass(frozen=True)
class Work:
    """The parts of one rank's step in their order, in seconds on the host."""

    data_wait: float = 0.0
    host_to_device: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    communication: float = 0.0  # without waiting for slower ranks
    optimizer: float = 0.0
    checkpoint: float = 0.0
    compile: float = 0.0
    gc: float = 0.0
    host: float = 0.0  # Python between the marked parts
    phase: str = "train"

    @property
    def until_exchange(self) -> float:
        """Returns the seconds until the rank is ready to exchange gradients."""
        own = self.host + self.compile + self.gc
        return self.data_wait + self.host_to_device + self.forward + self.backward + own

    @property
    def after_exchange(self) -> float:
        return self.optimizer + self.checkpoint

    def slower(self, factor: float) -> "Work":
        """Returns the same work with `factor` times the compute time."""
        return replace(
            self,
            forward=self.forward * factor,
            backward=self.backward * factor,
            optimizer=self.optimizer * factor,
        )


@dataclass(frozen=True)
class Step:
    """A step of one rank; moments are in seconds since the run's start."""

    number: int
    work: Work
    start: float
    end: float
    waited: float  # for slower ranks

    @property
    def computed(self) -> float:
        """Returns when its GPU's work ends: what follows is a checkpoint."""
        return self.end - self.work.checkpoint


@dataclass(frozen=True)
class Busy:
    """A GPU runs kernels for `load` (0..1) of the time from `begin` to `end`, in seconds since the start."""

    gpu: int
    begin: float
    end: float
    load: float


class Scenario:
    """A healthy node. `@scenario` above a subclass lists it.

    Its docstring describes the simulation, and explains why its rules fire. `fires` names the rules that must
    fire within `minutes` of the run; no others may. `too_early`: those of them that are only reported, as
    their alerts are about later growth.
    """

    name: ClassVar[str]
    fires: ClassVar[frozenset[str]] = frozenset()
    too_early: ClassVar[frozenset[str]] = frozenset()
    minutes: ClassVar[float] = 10

    ranks: int = GPUS
    core_count: int = CORES  # of each node of the run
    workers: int = CORES // GPUS  # of the data loader, per rank
    fetch_cpu_share: float = 0.9  # of a worker's fetch; the rest is waiting for storage
    fetch_seconds: float = 0.6
    waits_show: bool = True  # whether marked communication includes the waiting for other ranks
    setup_seconds: float = 12.0  # from the start to the first step

    cpu: Range = (0.25, 0.5)
    io_wait: Range = (0.0, 0.04)
    memory: float = 0.4  # share of the host's
    swap: float = 0.0  # used share of the host's swap space; without any use it has none
    disk_bytes: float = 180e6  # read per second
    neighbours: float = 0.0  # share of the run's cores that processes of another user take
    waits_for_cores: float = 0.005  # share of the time in which main threads could run, but have no core
    memory_waits: float = 0.0  # share of the time in which a process of the run waits for memory
    throttled: float = 0.0  # CPU time for which its limit stops the run, as a share of what it grants
    gpu_load: Range = (0.96, 1.0)  # while its rank computes
    celsius: float = 64.0  # of a busy GPU

    @classmethod
    def alerts(cls) -> frozenset[str]:
        """Returns the rules that alert within `minutes`."""
        return cls.fires - cls.too_early

    def at(self, elapsed: float) -> "Scenario":
        """Returns the scenario in force at `elapsed` seconds: a run may be healthy at times only."""
        return self

    def work(self, rank: int, number: int, random: Random) -> Work:
        """Returns the work of a rank in step `number`."""
        return compute(0.36, random)

    def loss(self, number: int) -> float | None:
        """Returns the loss that rank 0 publishes after step `number`; None: it publishes none."""
        return None

    def pause_after(self, number: int) -> float:
        """Returns the seconds without a step after step `number`."""
        return 0.0

    def hangs(self, number: int, elapsed: float) -> bool:
        """Returns whether the exchange of the step that begins at `elapsed` seconds never ends."""
        return False

    def stuck(self, rank: int) -> tuple[str, str] | None:
        """Returns the component in which a rank is when training hangs, and the operation; None: unknown."""
        return None

    def cores(self, random: Random) -> list[float]:
        """Returns the utilisation of each core since the last tick, 0..1."""
        return [random.uniform(*self.cpu) for _ in range(self.core_count)]

    def waiting_cores(self, random: Random) -> list[float]:
        """Returns the I/O wait of each core, 0..1; the sum with `cores` is cut off at 1."""
        return [random.uniform(*self.io_wait) for _ in range(self.core_count)]

    def busy(self, rank: int, step: Step, random: Random) -> Iterator[Busy]:
        """Yields the GPU work of a step: all but waiting for data and writing checkpoints.

        Waiting for other ranks keeps a GPU busy, because NCCL's kernels spin.
        """
        begin = step.start + step.work.data_wait
        yield Busy(rank, begin, step.computed, random.uniform(*self.gpu_load))

    def gpu_memory(self, gpu: int, elapsed: float) -> float:
        """Returns the used share of a GPU's memory at `elapsed` seconds."""
        return 0.77

    def heat_throttling(self, gpu: int, elapsed: float) -> float:
        """Returns the share of the time in which heat throttles a GPU, at `elapsed` seconds."""
        return 0.0


def compute(seconds: float, random: Random, data_wait: float = 0.002, width: float = 0.02) -> Work:
    """Returns a step that waits `data_wait` seconds for its data and computes for about `seconds`.

    Both vary uniformly by the share `width`, so that no step is an outlier by chance.
    """
    seconds *= random.uniform(1 - width, 1 + width)
    return Work(
        data_wait=data_wait * random.uniform(1 - width, 1 + width),
        host_to_device=0.01 * seconds,
        forward=0.31 * seconds,
        backward=0.59 * seconds,
        communication=0.04 * seconds,
        optimizer=0.05 * seconds,
    )
