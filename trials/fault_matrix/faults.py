"""The catalogue of faults. Each adds a share of a step to each step, on average, unless it says otherwise.

Severities are what users feel, not what rules test: no amount here is a threshold of a rule.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from queue import Empty, Queue
from random import Random
from typing import ClassVar

import pynvml
from stepscope.demo.gpus import CLOCK_MEGAHERTZ, HOT_CLOCK_MEGAHERTZ
from stepscope.demo.node import INTERVAL
from stepscope.demo.processes import MAIN_THREAD
from stepscope.demo.runs import SimulatedRun
from stepscope.demo.scenario import Busy, Step, Work
from stepscope.exporter.nvidia.nvml import NvmlError

from trials.fault_matrix.training import CORES_PER_RANK, SETUP, Training, Truth, lost
from trials.simulated_node import FailingNode, FailingNvml, kill

SEVERITIES = (0.05, 0.2, 1.0)
OFTEN, SELDOM = 5, 50  # steps between checkpoints
A_MINUTE = 60.0
GSP_ERROR = 119  # an XID


class Fault(Training):
    """A run with a fault."""

    rules: ClassVar[tuple[str, ...]]  # each of which names the cause; empty if none can
    says: ClassVar[str] = ""
    place: ClassVar[str] = ""  # "rank" or "GPU", if one of them has the fault
    of: ClassVar[str] = "step"  # the severity is a share of it
    costs_time: ClassVar[bool] = True

    def truth(self) -> Truth:
        """Returns what is wrong."""
        place = f"{self.place} {self.target}" if self.place else ""
        return Truth(self.rules, self.says, place, lost(self, self.extra) if self.costs_time else None)


class Longer(Fault):
    """All ranks take longer in one part of every n-th step."""

    part: ClassVar[str]
    every: ClassVar[int] = 1

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = super().work(rank, number, random)
        hit = number % self.every == self.every - 1
        longer = getattr(work, self.part) + (self.every * self.extra if hit else 0.0)
        return replace(work, **{self.part: longer})


class LateData(Fault):
    """Each step waits for its batch."""

    rules: ClassVar[tuple[str, ...]] = ("DataStarved",)

    def prepare(self) -> None:
        self.fetch_seconds = self.workers * (self.step + self.extra)

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = super().work(rank, number, random)
        return replace(work, data_wait=work.data_wait + self.extra)


class SlowDecoding(LateData):
    """All loader workers of all ranks decode all the time; a step waits for its batch."""

    name = "slow decoding"
    rules = ("DataStarved", "CPUBottleneck")
    says = "heavy"
    cpu = (0.94, 1.0)
    fetch_cpu_share = 0.97


class FewWorkers(LateData):
    """One loader worker per rank, on four cores, is always busy; a step waits for its batch."""

    name = "too few workers"
    rules = ("DataStarved", "Dataloader")
    says = "too few"
    fetch_cpu_share = 0.95

    def prepare(self) -> None:
        self.workers = 1
        self.fetch_seconds = self.step + self.extra

    def cores(self, random: Random) -> list[float]:
        pinned = [random.uniform(0.95, 1.0) for _ in range(self.ranks)]
        return pinned + [random.uniform(0.02, 0.15) for _ in range(self.core_count - self.ranks)]


class SlowStorage(LateData):
    """Loader workers wait for a local disk."""

    name = "storage latency"
    rules = ("DataStarved", "IOBottleneck")
    says = "storage"
    cpu = (0.04, 0.12)
    io_wait = (0.55, 0.8)
    fetch_cpu_share = 0.08


class NetworkStorage(LateData):
    """Loader workers wait for storage on the network: no core waits for I/O."""

    name = "network storage"
    says = "storage"
    cpu = (0.04, 0.12)
    disk_bytes = 0.0
    fetch_cpu_share = 0.08


class CpuLimit(LateData):
    """The CPU limit of a pod stops the loader's workers; a step waits for its batch."""

    name = "CPU limit of the pod"
    rules = ("CPUThrottled",)
    cpu = (0.7, 0.75)
    cpu_limit = 3.0

    def prepare(self) -> None:
        self.throttled = self.severity  # whoever wants a share more than the limit is stopped for that share


class ManyWorkers(Longer):
    """Each rank has 16 loader workers for its four cores; all ranks compute longer."""

    name = "too many workers"
    rules = ("Dataloader", "CPUBottleneck")
    part = "forward"
    says = "too many"
    cpu = (0.94, 1.0)
    fetch_cpu_share = 0.25

    def prepare(self) -> None:
        self.workers = 4 * CORES_PER_RANK
        self.fetch_seconds = self.workers * self.step


class WrongAffinity(LateData):
    """All processes of a rank may use one core only; a step waits for its batch."""

    name = "wrong core affinity"
    rules = ("DataStarved", "CPUBottleneck")
    says = "core"
    cpu = (0.96, 1.0)
    fetch_cpu_share = 0.24

    def prepare(self) -> None:
        super().prepare()
        self.core_count = self.ranks


class NoisyNeighbour(Longer):
    """Main threads wait for cores that another user's processes take; all ranks compute longer."""

    name = "noisy neighbour"
    rules = ("NoisyNeighbour",)
    part = "forward"
    neighbours = 0.6

    def prepare(self) -> None:
        waits = self.extra / (self.step + self.extra)  # of the time: all that makes the steps longer
        self.waits_for_cores = waits / (MAIN_THREAD + waits)


class Swapping(Longer):
    """The host swaps: steps wait, with idle GPUs, for memory that the kernel reads back from a disk."""

    name = "swapping"
    rules = ("MemoryPressure",)
    part = "forward"
    cpu = (0.1, 0.25)
    io_wait = (0.3, 0.5)
    memory = 0.98
    swap = 0.6

    def prepare(self) -> None:
        self.memory_waits = self.extra / (self.step + self.extra)

    def busy(self, rank: int, step: Step, random: Random) -> Iterator[Busy]:
        begin = step.start + step.work.data_wait + self.extra
        yield Busy(rank, begin, step.computed, random.uniform(*self.gpu_load))


class SlowRank(Fault):
    """One rank takes longer by itself, in one part of its step."""

    rules = ("Straggler",)
    place = "rank"
    fewest_ranks = 2
    part: ClassVar[str]

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = super().work(rank, number, random)
        longer = getattr(work, self.part) + (self.extra if rank == self.target else 0.0)
        return replace(work, **{self.part: longer})


class SlowCompute(SlowRank):
    """One rank computes longer."""

    name = "slow rank: compute"
    part = "backward"
    says = "excess is backward"


class SlowData(SlowRank):
    """One rank waits for its data."""

    name = "slow rank: data"
    part = "data_wait"
    says = "excess is data_wait"


class SlowHost(SlowRank):
    """One rank spends time in Python between the marked parts."""

    name = "slow rank: host"
    part = "host"
    says = "excess is host"


class SlowCollection(SlowRank):
    """One rank collects garbage."""

    name = "slow rank: garbage collection"
    part = "gc"
    says = "excess is gc"


class SlowLink(Longer):
    """All ranks communicate longer."""

    name = "slow link"
    rules = ("CommunicationBound",)
    part = "communication"
    fewest_ranks = 2


class LateCollective(Longer):
    """One collective in 25 steps is late on all ranks."""

    name = "late collective every 25 steps"
    rules = ("StepOutlier",)
    part = "communication"
    says = "excess is communication"
    every = 25
    fewest_ranks = 2


class OftenCheckpoint(Longer):
    """Every 5th step writes a checkpoint."""

    name = "checkpoints too often"
    rules = ("StepOutlier", "HostBound")
    part = "checkpoint"
    says = "checkpoint"
    every = OFTEN


class SlowCheckpoint(Longer):
    """Every 50th step writes a checkpoint."""

    name = "slow checkpoints"
    rules = ("StepOutlier", "HostBound")
    part = "checkpoint"
    says = "checkpoint"
    every = SELDOM


class Recompilation(Longer):
    """Every 25th step compiles again."""

    name = "recompilation"
    rules = ("StepOutlier",)
    part = "compile"
    says = "excess is compile"
    every = 25


class Pauses(Fault):
    """Every 50 steps all ranks pause, between steps. A pause of more than a minute is a stall."""

    name = "pauses between steps"
    rules = ("LowGPUUtilization", "TrainingStalled")
    says = "fluctuat"

    def truth(self) -> Truth:
        truth = super().truth()
        if SELDOM * self.extra <= A_MINUTE:
            return truth
        return replace(truth, rules=("TrainingStalled",), says="finished no step")

    def pause_after(self, number: int) -> float:
        return SELDOM * self.extra if number % SELDOM == SELDOM - 1 else 0.0


class SlowCopies(Longer):
    """Copies to the GPU take longer, as from memory that is not pinned."""

    name = "unpinned copies"
    rules = ("HostBound",)
    says = "copied"
    part = "host_to_device"


class SmallBatch(Longer):
    """GPUs are idle between kernels for the share that is added to a step; memory is three quarters free."""

    name = "small batch"
    rules = ("BatchSize",)
    part = "forward"
    cpu = (0.1, 0.25)
    celsius = 48.0

    def busy(self, rank: int, step: Step, random: Random) -> Iterator[Busy]:
        load = random.uniform(0.96, 1.0) / (1 + self.severity)
        yield Busy(rank, step.start, step.end, load)

    def gpu_memory(self, gpu: int, elapsed: float) -> float:
        return 0.24


class Uneven(Longer):
    """One GPU works all the time, the others only for the rest of a step, as with DataParallel."""

    name = "one GPU does more"
    rules = ("LoadBalancing",)
    part = "forward"
    fewest_ranks = 4

    def busy(self, rank: int, step: Step, random: Random) -> Iterator[Busy]:
        end = step.end if rank == self.target else step.start + (step.end - step.start) / (1 + self.severity)
        yield Busy(rank, step.start, end, random.uniform(*self.gpu_load))


class Hang(Fault):
    """Training never continues. The hang lasts for a share of the time before it, until the run is ended."""

    rules = ("CollectiveHang", "TrainingStalled")
    of = "time before"

    @property
    def after(self) -> float:
        return self.length / (1 + self.severity)

    def truth(self) -> Truth:
        return replace(super().truth(), seconds_lost=self.length - self.after)

    def hangs(self, number: int, elapsed: float) -> bool:
        return elapsed >= self.after


class LoaderHang(Hang):
    """The data loader of one rank hangs; the others wait in a collective."""

    name = "hang in data loading"
    place = "rank"
    fewest_ranks = 2

    def stuck(self, rank: int) -> tuple[str, str]:
        return ("data_wait", "") if rank == self.target else ("communication", "gradients")


class CollectiveHang(Hang):
    """All ranks wait in a collective that never ends."""

    name = "hang in a collective"
    fewest_ranks = 2

    def stuck(self, rank: int) -> tuple[str, str]:
        return "communication", "gradients"


class Mismatch(Hang):
    """One rank calls another collective than the others: all wait for ever."""

    name = "mismatched collectives"
    says = "do not match"
    fewest_ranks = 2

    def stuck(self, rank: int) -> tuple[str, str]:
        return "communication", "all_gather" if rank == self.target else "all_reduce"


class KilledRank(Hang):
    """One rank is killed in its backward pass. Its launcher does not notice, so the others wait for it."""

    name = "rank killed"
    says = "dead"
    place = "rank"
    fewest_ranks = 2

    def stuck(self, rank: int) -> tuple[str, str]:
        return ("backward", "") if rank == self.target else ("communication", "gradients")

    def strike(self, node: FailingNode, run: SimulatedRun, elapsed: float) -> None:
        if run.stalled and run.alive and not run.killed:
            kill(node, run, self.target)


class HostMemoryLeak(Fault):
    """The memory of the host grows, until the end of the run, by a share of what is free."""

    name = "host memory leak"
    rules = ("HostMemoryLeak",)
    of = "free memory"
    costs_time = False

    def at(self, elapsed: float) -> "HostMemoryLeak":
        self.memory = 0.4 + 0.58 * min(elapsed / self.length, 1.0) * self.severity
        return self


class GpuMemoryLeak(Fault):
    """The memory of one GPU grows, until the end of the run, by a share of what is free."""

    name = "GPU memory leak"
    rules = ("GPUMemoryLeak", "GPUMemoryIncrease", "GPUMemoryNearlyFull")
    place = "GPU"
    of = "free memory"
    costs_time = False

    def gpu_memory(self, gpu: int, elapsed: float) -> float:
        grown = min(elapsed / self.length, 1.0) * self.severity if gpu == self.target else 0.0
        return 0.4 + 0.58 * grown


class ThermalThrottling(Fault):
    """Heat throttles one GPU, whose rank computes longer; at 100 % always, which makes it 65 % slower."""

    name = "thermal throttling"
    rules = ("ThermalThrottling",)
    place = "GPU"
    celsius = 88.0
    most = CLOCK_MEGAHERTZ / HOT_CLOCK_MEGAHERTZ - 1

    @property
    def extra(self) -> float:
        return min(self.severity, self.most) * self.step

    def heat_throttling(self, gpu: int, elapsed: float) -> float:
        slower = self.extra / self.step
        return (
            slower / (1 + slower) / (1 - HOT_CLOCK_MEGAHERTZ / CLOCK_MEGAHERTZ) if gpu == self.target else 0.0
        )

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = super().work(rank, number, random)
        return work.slower(1 + self.extra / self.step) if rank == self.target else work


class LateBreak(Fault):
    """Something breaks for good: what follows is a share of the time before."""

    of = "time before"
    costs_time = False

    def broken(self, elapsed: float) -> bool:
        return elapsed >= self.length / (1 + self.severity)


class GpuLost(LateBreak):
    """NVML does not answer for a GPU until the end of the run."""

    name = "GPU lost"
    place = "GPU"
    rules = ("GPULost", "GPUError")

    def strike(self, node: FailingNode, run: SimulatedRun, elapsed: float) -> None:
        node.nvml.lost = {self.target} if self.broken(elapsed) else set()


class EccErrors(LateBreak):
    """A GPU has an uncorrectable memory error."""

    name = "ECC error"
    place = "GPU"
    rules = ("GPUError",)

    def strike(self, node: FailingNode, run: SimulatedRun, elapsed: float) -> None:
        node.nvml.gpus[self.target].uncorrected_errors = int(self.broken(elapsed))


class XidEvents(FailingNvml):
    """Has XID errors, each of which is counted before the simulation continues."""

    def __init__(self) -> None:
        super().__init__()
        self._coming: Queue[tuple[int, int]] = Queue()
        self._taken = False

    def report(self, gpu: int, xid: int) -> None:
        self._coming.put((gpu, xid))
        self._coming.join()

    def event_set(self) -> Queue[tuple[int, int]]:
        return self._coming

    def free_event_set(self, events: object) -> None:
        pass

    def watch_xids(self, handle: object, events: object) -> None:
        pass

    def wait_for_event(self, events: object, milliseconds: int) -> tuple[int, int]:
        """Returns the next error. Whoever waits again has counted the last one."""
        if self._taken:
            self._taken = False
            self._coming.task_done()
        try:
            event = self._coming.get(timeout=milliseconds / 1000)
        except Empty:
            raise NvmlError("nvmlEventSetWait_v2", pynvml.NVML_ERROR_TIMEOUT) from None
        self._taken = True
        return event


class XidErrors(LateBreak):
    """The driver reports an XID error of a GPU once: its system processor (GSP) does not respond."""

    name = "XID error"
    rules = ("GPUError",)
    says = f"XID {GSP_ERROR}"
    place = "GPU"

    def nvml(self) -> XidEvents:
        self._events = XidEvents()
        return self._events

    def strike(self, node: FailingNode, run: SimulatedRun, elapsed: float) -> None:
        if self.broken(elapsed) and not self.broken(elapsed - INTERVAL):
            self._events.report(self.target, GSP_ERROR)


class SilentExporter(LateBreak):
    """The exporter ends, and training continues: nobody records or publishes anything of it."""

    name = "silent exporter"
    rules = ("ExporterDown",)

    def is_silent(self, elapsed: float) -> bool:
        return self.broken(elapsed)


class IdleGpu(Fault):
    """One GPU does nothing for a share of the time before, until the run's end, which is after 36 minutes."""

    name = "idle GPU"
    rules = ("IdleGPU", "LowGPUUtilization")
    says = "not used"
    place = "GPU"
    of = "time before"
    length = 36 * 60.0
    costs_time = False

    def truth(self) -> Truth:
        return replace(super().truth(), not_alerts=("LowGPUUtilization",))

    def busy(self, rank: int, step: Step, random: Random) -> Iterator[Busy]:
        if rank != self.target or step.start < self.length / (1 + self.severity):
            yield from super().busy(rank, step, random)


class SlowStart(Fault):
    """The first step comes late: after a share of the time of training. The run ends after 44 minutes."""

    name = "slow initialization"
    rules = ("MaxInitializationTime", "Account")
    says = "first step"
    of = "time after"
    length = 44 * 60.0

    def prepare(self) -> None:
        self.setup_seconds = self.length * self.severity / (1 + self.severity)

    def truth(self) -> Truth:
        return Truth(self.rules, self.says, seconds_lost=self.setup_seconds - SETUP)


FAULTS: Sequence[type[Fault]] = (
    SlowDecoding, FewWorkers, SlowStorage, NetworkStorage, CpuLimit, ManyWorkers, WrongAffinity,
    NoisyNeighbour, SlowCompute, SlowData, SlowHost, SlowCollection, SlowLink, LateCollective,
    OftenCheckpoint, SlowCheckpoint, Recompilation, Pauses, SlowCopies, SmallBatch, Uneven, LoaderHang,
    CollectiveHang, Mismatch, GpuMemoryLeak, ThermalThrottling, GpuLost, EccErrors, IdleGpu, SlowStart,
    Swapping, HostMemoryLeak, KilledRank, XidErrors, SilentExporter,
)  # fmt: skip
