"""The faults of a job. Each is a scenario that is in force for some time, and the rules that it explains.

A fault has three strengths. A clear one is far above its rule's threshold, a near one just above it. A near
miss is just below: its rule must stay silent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Literal

from stepscope.demo.scenario import Busy, Scenario, Step, Work, compute

Strength = Literal["clear", "near", "miss"]
MINUTE = 60.0
IDLE = frozenset({"LowGPUUtilization", "DataStarved"})


class Job(Scenario):
    """A healthy run on some cores and GPUs of each of its nodes. `episodes` are its faults."""

    name = "job"

    def __init__(self, ranks: int, cores: int, workers: int) -> None:
        self.ranks, self.core_count, self.workers = ranks, cores, workers
        self.gpu_share = 0.77  # of each GPU's memory
        self.episodes: list[Episode] = []

    def gpu_memory(self, gpu: int, elapsed: float) -> float:
        return self.gpu_share

    def at(self, elapsed: float) -> Scenario:
        for episode in self.episodes:
            if episode.begin <= elapsed < episode.end:
                return episode.fault
        return self


class Fault(Job):
    """A job while something is wrong with it."""

    rule: ClassVar[str]  # that must name it
    may: ClassVar[frozenset[str]] = frozenset()  # rules of its consequences, on the same run
    also_if_missed: ClassVar[frozenset[str]] = frozenset()  # those of a near miss
    needs_ranks: ClassVar[int] = 1
    needs_limit: ClassVar[bool] = False  # whether its run must be a pod with a CPU limit
    needs_load: ClassVar[bool] = (
        False  # whether its rule reads utilisation, power or heat: MIG devices have none
    )

    def __init__(self, job: Job, strength: Strength, gpu: int) -> None:
        super().__init__(job.ranks, job.core_count, job.workers)
        self.strength: Strength = strength
        self.gpu = gpu  # the job's own number of the GPU that is concerned

    @property
    def lasts(self) -> float:
        """Returns its duration, in seconds."""
        return 40 * MINUTE

    def labels(self) -> dict[str, int]:
        """Returns what the alert must name besides run and node: `rank` or `gpu`, by the job's number."""
        return {}

    def of(self, clear: float, near: float, miss: float) -> float:
        """Returns the amount for its strength."""
        return {"clear": clear, "near": near, "miss": miss}[self.strength]


@dataclass
class Episode:
    """A fault from `begin` to `end`, in seconds since the run's start."""

    fault: Fault
    begin: float
    end: float


class CpuBound(Fault):
    """Pinned cores: the GPUs are idle in 85, 57 or 43 % of the samples; the threshold is 50 %."""

    rule = "CPUBottleneck"
    needs_load = True
    may = also_if_missed = IDLE
    cpu = (0.94, 1.0)
    fetch_seconds = 9.6
    fetch_cpu_share = 0.97

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(self.of(0.8, 2.3, 4.4), random, data_wait=4.0, width=0.03)


class IoBound(CpuBound):
    """Slow storage, with the shares of `CpuBound`."""

    rule = "IOBottleneck"
    needs_load = True
    cpu = (0.04, 0.12)
    io_wait = (0.55, 0.8)
    disk_bytes = 240e6
    fetch_cpu_share = 0.08


class Starved(Fault):
    """Steps wait for their data for 45, 23 or 17 % of their time; the threshold is 20 %."""

    rule = "DataStarved"
    may = also_if_missed = frozenset({"LowGPUUtilization"})
    fetch_seconds = 1.0

    def work(self, rank: int, number: int, random: Random) -> Work:
        share = self.of(0.45, 0.23, 0.17)
        return compute(0.4 * (1 - share), random, data_wait=0.4 * share)


class Slow(Fault):
    """A rank computes 1.8, 1.1 or 1.03 times as long; the threshold is 5 % of the step."""

    rule = "Straggler"
    may = also_if_missed = frozenset({"CommunicationBound", "LowGPUUtilization"})
    needs_ranks = 4

    def labels(self) -> dict[str, int]:
        return {"rank": self.gpu}

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = compute(0.36, random)
        return work.slower(self.of(1.8, 1.1, 1.03)) if rank == self.gpu else work


class Hot(Fault):
    """Heat throttles a GPU for 40, 8 or 3 % of the time; the threshold is 5 %."""

    rule = "ThermalThrottling"
    needs_load = True
    celsius = 88.0

    def labels(self) -> dict[str, int]:
        return {"gpu": self.gpu}

    def heat_throttling(self, gpu: int, elapsed: float) -> float:
        return self.of(0.4, 0.08, 0.03) if gpu == self.gpu else 0.0


class Uneven(Fault):
    """One GPU has half a load in 70, 32 or 10 % of the steps; the threshold is a distance of 0.2."""

    rule = "LoadBalancing"
    may = frozenset({"LowGPUUtilization"})
    also_if_missed = may
    needs_ranks = 2

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(2.5, random)

    def busy(self, rank: int, step: Step, random: Random) -> Iterator[Busy]:
        low = rank == self.gpu and random.random() < self.of(0.7, 0.32, 0.1)
        load = 0.5 if low else random.uniform(*self.gpu_load)
        yield Busy(rank, step.start + step.work.data_wait, step.computed, load)


class Leak(Fault):
    """The memory of a GPU grows by 0.45, 0.26 or 0.03 points per minute; the threshold is 2 in ten minutes.

    Slower growth counts over an hour: 2 points there, too.
    """

    rule = "GPUMemoryLeak"
    may = frozenset({"GPUMemoryIncrease", "GPUMemoryNearlyFull"})
    began = 0.0  # seconds since the run's start

    def labels(self) -> dict[str, int]:
        return {"gpu": self.gpu}

    def gpu_memory(self, gpu: int, elapsed: float) -> float:
        grown = self.of(0.0045, 0.0026, 0.0003) * (elapsed - self.began) / MINUTE
        return min(0.97, 0.77 + (grown if gpu == self.gpu else 0.0))


class Stalls(Fault):
    """No step finishes for 10 min, 2.5 min or 45 s, then training continues; the threshold is one minute."""

    rule = "TrainingStalled"
    may = frozenset({"CommunicationBound", "StepOutlier", "LowGPUUtilization", "DataStarved"})
    also_if_missed = may

    @property
    def lasts(self) -> float:
        return self.of(600.0, 150.0, 45.0)

    def __init__(self, job: Job, strength: Strength, gpu: int) -> None:
        super().__init__(job, strength, gpu)
        self._first: int | None = None

    def work(self, rank: int, number: int, random: Random) -> Work:
        self._first = number if self._first is None else self._first
        hang = self.lasts if number == self._first else 0.0
        work = compute(0.36, random)
        return Work(work.data_wait, work.host_to_device, work.forward, work.backward, hang + 0.01, 0.01)


class Idle(Fault):
    """A GPU holds memory and does nothing for 40, 19 or 11 minutes; the threshold is 15 minutes."""

    rule = "IdleGPU"
    needs_load = True
    may = also_if_missed = frozenset({"LowGPUUtilization", "LoadBalancing"})

    def labels(self) -> dict[str, int]:
        return {"gpu": self.gpu}

    @property
    def lasts(self) -> float:
        return self.of(40, 19, 11) * MINUTE

    def busy(self, rank: int, step: Step, random: Random) -> Iterator[Busy]:
        if rank != self.gpu:
            yield from super().busy(rank, step, random)


class Small(Fault):
    """Steps keep GPUs busy for 45, 66 or 75 %, with free memory; the threshold is 70 %."""

    rule = "BatchSize"
    needs_load = True
    may = also_if_missed = frozenset({"LowGPUUtilization", "LoadBalancing"})

    def __init__(self, job: Job, strength: Strength, gpu: int) -> None:
        super().__init__(job, strength, gpu)
        self.gpu_share = job.gpu_share = 0.6

    def busy(self, rank: int, step: Step, random: Random) -> Iterator[Busy]:
        load = self.of(0.45, 0.66, 0.75) * random.uniform(0.99, 1.01)
        yield Busy(rank, step.start, step.end, load)


class Talks(Fault):
    """Ranks communicate for 70, 53 or 47 % of their steps; the threshold is 50 %."""

    rule = "CommunicationBound"
    needs_ranks = 2

    def work(self, rank: int, number: int, random: Random) -> Work:
        share, work = self.of(0.7, 0.53, 0.47), compute(0.36, random)
        exchange = share / (1 - share) * 0.36
        return Work(
            work.data_wait, work.host_to_device, work.forward, work.backward, exchange, work.optimizer
        )


class Throttled(Fault):
    """The CPU limit of its pod stops a run for 30, 12 or 8 % of what it grants; the threshold is 10 %."""

    rule = "CPUThrottled"
    may = also_if_missed = IDLE
    cpu = (0.7, 0.75)
    needs_limit = True

    def __init__(self, job: Job, strength: Strength, gpu: int) -> None:
        super().__init__(job, strength, gpu)
        self.throttled = self.of(0.3, 0.12, 0.08)


class Neighbour(Fault):
    """Main threads wait for cores that others use for 31, 12 or 8 % of their time; the threshold is 10 %."""

    rule = "NoisyNeighbour"
    may = also_if_missed = IDLE

    def __init__(self, job: Job, strength: Strength, gpu: int) -> None:
        super().__init__(job, strength, gpu)
        self.neighbours = 0.6  # next to 0.375 of its own: 62 % of the wait is theirs
        self.waits_for_cores = self.of(0.5, 0.195, 0.13)


class StartsSlowly(Fault):
    """The first step ends 35, 22 or 17 minutes after the run's start; the threshold is 20 minutes."""

    rule = "MaxInitializationTime"
    may = frozenset({"LowGPUUtilization", "IdleGPU"})
    also_if_missed = may


class FewWorkers(Fault):
    """The run has half a worker, 0.62 or 0.75 workers per core; the threshold is 0.7, for the whole run.
    Steps wait for data for 15 % of their time; the threshold is 10 %."""

    rule = "Dataloader"

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.34, random, data_wait=0.06)


FAULTS: Sequence[type[Fault]] = (
    CpuBound, IoBound, Starved, Slow, Hot, Uneven, Leak, Stalls, Idle, Small, Talks, StartsSlowly, FewWorkers,
    Throttled, Neighbour,
)  # fmt: skip
