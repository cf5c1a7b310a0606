"""What a scenario is made of: what its ranks do in a step, how busy cores are, how GPUs fill and heat up.

Everything that a subclass does not say is as on a healthy node. Amounts are such as one sees on a node of
8 GPUs of the H100 kind; they are no measurement of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar, TypeVar

CORES = 32
GPUS = 8
Range = tuple[float, float]  # amounts are drawn evenly from it


@dataclass(frozen=True)
class Work:
    """What one rank does in one step, in this order; seconds on the host."""

    data_wait: float = 0.0
    host_to_device: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    communication: float = 0.0  # of its own; the waiting for slower ranks comes on top
    optimizer: float = 0.0
    checkpoint: float = 0.0
    phase: str = "train"

    @property
    def until_exchange(self) -> float:
        """Until the rank is ready to exchange gradients."""
        return self.data_wait + self.host_to_device + self.forward + self.backward

    @property
    def after_exchange(self) -> float:
        return self.optimizer + self.checkpoint

    def slower(self, factor: float) -> Work:
        """The same with computing that takes `factor` times as long."""
        return replace(
            self,
            forward=self.forward * factor,
            backward=self.backward * factor,
            optimizer=self.optimizer * factor,
        )


@dataclass(frozen=True)
class Step:
    """A step of one rank as it came about; moments are seconds since the run's start."""

    number: int
    work: Work
    start: float
    end: float
    waited: float  # for slower ranks

    @property
    def computed(self) -> float:
        """When its GPU's part was over: what comes behind is a checkpoint."""
        return self.end - self.work.checkpoint


@dataclass(frozen=True)
class Busy:
    """A GPU has kernels running for `load` (0..1) of the time from `begin` to `end` (since the start)."""

    gpu: int
    begin: float
    end: float
    load: float


class Scenario:
    """A healthy node. `@scenario` above a subclass lists it.

    The subclass's docstring says what is simulated, and why the rules fire that do.

    `fires` names every rule that must fire over `minutes` of the run; no other one may.
    """

    name: ClassVar[str]
    fires: ClassVar[frozenset[str]] = frozenset()
    minutes: ClassVar[float] = 10

    ranks: ClassVar[int] = GPUS
    workers: ClassVar[int] = CORES // GPUS  # that load data, each rank
    fetch_cpu_share: ClassVar[float] = 0.9  # of a worker's fetch; the rest it waits for storage
    fetch_seconds: ClassVar[float] = 0.6
    waits_show: ClassVar[bool] = True  # whether ranks wait for each other in what they mark as communication
    setup_seconds: ClassVar[float] = 12.0  # from the start to the first step

    cpu: ClassVar[Range] = (0.25, 0.5)
    io_wait: ClassVar[Range] = (0.0, 0.04)
    memory: ClassVar[float] = 0.4  # share of the host's
    disk_bytes: ClassVar[float] = 180e6  # read a second
    gpu_load: ClassVar[Range] = (0.96, 1.0)  # while its rank computes
    celsius: ClassVar[float] = 64.0  # of a busy GPU

    def work(self, rank: int, number: int, random: Random) -> Work:
        """What a rank does in its step of this number."""
        return compute(0.36, random)

    def pause_after(self, number: int) -> float:
        """Seconds in which no rank makes a step, behind the step of this number."""
        return 0.0

    def hangs(self, number: int, elapsed: float) -> bool:
        """Whether the exchange of the step that begins so long after the start never ends."""
        return False

    def cores(self, random: Random) -> list[float]:
        """How busy each core was since the last tick, 0..1."""
        return [random.uniform(*self.cpu) for _ in range(CORES)]

    def waiting_cores(self, random: Random) -> list[float]:
        """The share of its time in which each core waited for I/O; what is over with `cores` is cut off."""
        return [random.uniform(*self.io_wait) for _ in range(CORES)]

    def busy(self, rank: int, step: Step, random: Random) -> Iterator[Busy]:
        """What the step lets GPUs do: all but waiting for data and writing checkpoints.

        Waiting for other ranks is work, too: NCCL's kernels spin on the GPU meanwhile.
        """
        begin = step.start + step.work.data_wait
        yield Busy(rank, begin, step.computed, random.uniform(*self.gpu_load))

    def gpu_memory(self, gpu: int, elapsed: float) -> float:
        """The share of a GPU's memory in use so long after the start."""
        return 0.77

    def heat_throttling(self, gpu: int, elapsed: float) -> float:
        """The share of the time in which a GPU's clocks are held down by heat."""
        return 0.0


S = TypeVar("S", bound="type[Scenario]")

marked_scenarios: list[type[Scenario]] = []


def scenario(marked: S) -> S:
    """Registers a class as a scenario of `trainwatch demo`."""
    marked_scenarios.append(marked)
    return marked


def compute(seconds: float, random: Random, data_wait: float = 0.002, width: float = 0.02) -> Work:
    """A step that waits `data_wait` for its data and computes for about `seconds`.

    Both vary evenly by `width` (a share): evenly, because no step is then ever an outlier by chance.
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
