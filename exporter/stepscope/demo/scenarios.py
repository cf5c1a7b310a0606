"""The scenarios of `stepscope demo`: what is wrong with a simulated node."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from stepscope.demo.scenario import CORES, GPUS, Busy, Scenario, Step, Work, compute

FLUCTUATING_EVERY = 50  # steps
AT_START = 0.03
PER_MINUTE = 0.06
MAXIMUM = 0.97
MISSING_RANK_AFTER = 3 * 60.0  # seconds
MISSING = 3
STALL_AFTER = 8 * 60.0  # seconds
STEP_OUTLIERS_EVERY = 50  # steps
SLOW_RANK = 5


def all_scenarios() -> dict[str, type[Scenario]]:
    """Returns every scenario by its name, in alphabetical order."""
    return {each.name: each for each in Scenario.__subclasses__() if each.__module__ == __name__}


def summary(scenario: type[Scenario]) -> str:
    """Returns what is simulated, in a line: the first one of the docstring."""
    return (scenario.__doc__ or "").strip().splitlines()[0].rstrip(".")


class CpuBottleneck(Scenario):
    """A heavy transform pins every core, and GPUs wait for it.

    The transform of a batch takes a core about 10 s, and each rank has four cores for its workers. So a batch
    arrives every 2.4 s, and is computed in 0.25 s. All cores are above 94 %, and in most samples GPUs are
    idle (CPUBottleneck). 90 % of a step is waiting for data (DataStarved). In no sample is a GPU busy for
    much more than half of the time (LowGPUUtilization).
    """

    name = "cpu-bottleneck"
    fires = frozenset({"CPUBottleneck", "DataStarved", "LowGPUUtilization"})
    cpu = (0.94, 1.0)
    fetch_seconds = 9.6
    fetch_cpu_share = 0.97

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.25, random, data_wait=2.15, width=0.05)

    def loss(self, number: int) -> float | None:
        return 2.0 + 5.0 / (1 + number / 50)


class FewDataloaders(Scenario):
    """Each rank has only one loader worker, although it has four cores.

    A worker takes 0.57 s for a batch that is computed in 0.3 s. So a rank waits for nearly half of each step
    (DataStarved, with the cause "too few workers"). Its GPU is busy for little more than half of each sample
    (LowGPUUtilization). 8 workers for 32 cores are 25 % (Dataloader). CPUBottleneck does not fire although
    the workers' cores are pinned, because a GPU is never idle for a whole sample.
    """

    name = "few-dataloaders"
    fires = frozenset({"DataStarved", "Dataloader", "LowGPUUtilization"})
    workers = 1
    fetch_seconds = 0.57
    fetch_cpu_share = 0.95
    gpu_load = (0.93, 0.97)

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.3, random, data_wait=0.27)

    def cores(self, random: Random) -> list[float]:
        pinned = [random.uniform(0.95, 1.0) for _ in range(GPUS)]
        return pinned + [random.uniform(0.02, 0.15) for _ in range(CORES - GPUS)]


class Fluctuating(Scenario):
    """Training is fine, but every 50 steps an evaluation runs on the CPU.

    GPUs are busy for 18 s, then idle for 5 s while the CPU computes metrics. So a fifth of each GPU's
    readings are 0, and most others near 100 %. A high 95th and a low 5th percentile are what
    LowGPUUtilization calls "fluctuating". The steps themselves are normal.
    """

    name = "fluctuating"
    fires = frozenset({"LowGPUUtilization"})

    def pause_after(self, number: int) -> float:
        return 5.0 if number % FLUCTUATING_EVERY == FLUCTUATING_EVERY - 1 else 0.0


class Healthy(Scenario):
    """A healthy node: every GPU computes nearly all the time.

    Eight ranks with one GPU each take about 0.36 s per step. 32 loader workers on 32 cores keep ahead of
    them, so a step waits only 2 ms for data. The exchange of gradients takes 4 %. GPUs are 96 to 100 % busy,
    their memory is 77 % full, and no rule fires.
    """

    name = "healthy"


class Imbalance(Scenario):
    """One process drives all GPUs, and GPU 0 also gathers what the others computed.

    As with torch.nn.DataParallel: all GPUs compute forward and backward, then GPU 0 alone gathers outputs
    and gradients, updates the weights and broadcasts them. GPU 0 is busy nearly all the time, the others
    little more than half of it. Their distributions are far apart (LoadBalancing), and seven GPUs are
    under-utilised (LowGPUUtilization).
    """

    name = "imbalance"
    fires = frozenset({"LoadBalancing", "LowGPUUtilization"})
    ranks = 1
    workers = CORES
    fetch_seconds = 5.0

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.5, random)

    def busy(self, rank: int, step: Step, random: Random) -> Iterator[Busy]:
        begin = step.start + step.work.data_wait
        together = begin + 0.58 * (step.end - begin)
        for gpu in range(GPUS):
            yield Busy(gpu, begin, step.end if gpu == 0 else together, random.uniform(*self.gpu_load))


class IoBottleneck(Scenario):
    """Workers wait for slow storage, and GPUs wait for them.

    As in cpu-bottleneck, a batch arrives every 2.4 s, but here workers spend 90 % of that on reads from a
    network file system. Cores are hardly busy and wait for I/O 55 to 80 % of the time. GPUs are idle in most
    samples (IOBottleneck, DataStarved, LowGPUUtilization).
    """

    name = "io-bottleneck"
    fires = frozenset({"IOBottleneck", "DataStarved", "LowGPUUtilization"})
    cpu = (0.04, 0.12)
    io_wait = (0.55, 0.8)
    disk_bytes = 240e6
    fetch_seconds = 9.6
    fetch_cpu_share = 0.08

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.25, random, data_wait=2.15, width=0.05)


class MemoryLeak(Scenario):
    """Each step keeps a little GPU memory, as when losses are summed without .item().

    GPU memory grows from 3 % by six points per minute. That is more than five points within a minute
    (GPUMemoryIncrease), steady over the run (GPUMemoryLeak), and leads to full memory within the hour
    (GPUMemoryNearlyFull). Nothing is slow yet. Alerts of GPUMemoryLeak are about growth after a run's first
    hour, so here only reports have it. The simulated leak stops at 97 %, after 15 minutes; a real run would
    crash.
    """

    name = "memory-leak"
    fires = frozenset({"GPUMemoryIncrease", "GPUMemoryLeak", "GPUMemoryNearlyFull"})
    too_early = frozenset({"GPUMemoryLeak"})
    minutes = 15

    def gpu_memory(self, gpu: int, elapsed: float) -> float:
        return min(AT_START + PER_MINUTE * elapsed / 60, MAXIMUM)


class MissingRank(Scenario):
    """After three minutes the data loader of rank 3 hangs; the other seven ranks wait in backward.

    No rank finishes a step any more: TrainingStalled fires after a minute. After five, CollectiveHang names
    rank 3, because all others wait in a collective.
    """

    name = "missing-rank"
    fires = frozenset({"TrainingStalled", "CollectiveHang"})

    def hangs(self, number: int, elapsed: float) -> bool:
        return elapsed >= MISSING_RANK_AFTER

    def stuck(self, rank: int) -> tuple[str, str]:
        return ("data_wait", "") if rank == MISSING else ("communication", "gradients")


class SlowStart(Scenario):
    """The data set is fetched and unpacked before the first step, while the processes already hold the GPUs.

    The model is on the GPUs from the start: their memory is in use. But the first step ends only after 23
    minutes (MaxInitializationTime, whose threshold is 20). GPUs are idle until then (LowGPUUtilization,
    IdleGPU), and busy afterwards.
    """

    name = "slow-start"
    fires = frozenset({"IdleGPU", "LowGPUUtilization", "MaxInitializationTime"})
    minutes = 27
    setup_seconds = 23 * 60.0


class SmallBatch(Scenario):
    """Batches are so small that launching kernels takes longer than running them.

    Ranks wait for nothing: no core is busy, and data is ready. But a GPU is idle between kernels for more
    than half of the time (LowGPUUtilization), and three quarters of its memory are free. A larger batch would
    fit (BatchSize).
    """

    name = "small-batch"
    fires = frozenset({"BatchSize", "LowGPUUtilization"})
    cpu = (0.1, 0.25)
    gpu_load = (0.38, 0.48)
    celsius = 48.0
    fetch_seconds = 0.1

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.12, random, data_wait=0.001)

    def gpu_memory(self, gpu: int, elapsed: float) -> float:
        return 0.24


class Stall(Scenario):
    """After eight minutes an exchange of gradients never ends; all processes stay alive.

    No rank finishes a step any more (TrainingStalled after a minute). GPU utilisation stays at 100 % until
    someone ends the run, because NCCL's kernels spin. So utilisation does not show a hang, but power does: it
    falls to a third.
    """

    name = "stall"
    fires = frozenset({"TrainingStalled"})

    def hangs(self, number: int, elapsed: float) -> bool:
        return elapsed >= STALL_AFTER


class StepOutliers(Scenario):
    """Every 50th step writes a checkpoint before the next one may begin.

    That adds 0.8 s to a step of 0.36 s. So 2 % of the steps are far above mean + 3 standard deviations
    (StepOutlier, which also finds the period and the component). GPUs are idle for only 4 % of the time, so
    no other rule fires.
    """

    name = "step-outliers"
    fires = frozenset({"StepOutlier"})

    def work(self, rank: int, number: int, random: Random) -> Work:
        saves = number % STEP_OUTLIERS_EVERY == STEP_OUTLIERS_EVERY - 1
        return replace(compute(0.36, random), checkpoint=0.8 if saves else 0.0)


class SlowRank(Scenario):
    """Rank 5 computes 2.5 times as long as its peers, which wait for it at every exchange.

    The steps of all ranks take equally long; the time without communication shows the straggler (Straggler).
    Its peers spend more than half of their steps in communication (CommunicationBound, which says that
    they may merely wait). Utilisation shows nothing: NCCL's kernels keep GPUs busy while they wait.
    """

    name = "straggler"
    fires = frozenset({"CommunicationBound", "Straggler"})

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = compute(0.36, random)
        return work.slower(2.5) if rank == SLOW_RANK else work


class Thermal(Scenario):
    """Cooling is insufficient: heat throttles all GPUs for 60 % of the time.

    At 88 degrees the driver limits the clocks to 1.2 instead of 1.98 GHz (ThermalThrottling). Steps take 1.3
    times as long as on a healthy node, but utilisation stays near 100 %. All GPUs are equally hot, so no rank
    waits for another.
    """

    name = "thermal"
    fires = frozenset({"ThermalThrottling"})
    celsius = 88.0

    def work(self, rank: int, number: int, random: Random) -> Work:
        return compute(0.36 * 1.3, random)

    def heat_throttling(self, gpu: int, elapsed: float) -> float:
        return 0.6
