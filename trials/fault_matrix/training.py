"""The training runs in which faults are planted, and what is true about a run before it starts."""

from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from stepscope.demo.runs import SimulatedRun
from stepscope.demo.scenario import Scenario, Work, compute

from trials.simulated_node import FailingNode, FailingNvml

SECONDS = 12 * 60.0  # of a run
SETUP = 12.0  # until the first step
CORES_PER_RANK = 4
DATA_WAIT = 0.002


@dataclass(frozen=True)
class Workload:
    """A training script, by the shape of its steps."""

    name: str
    ranks: int
    seconds: float  # per step
    communication: float  # as a share of it


WORKLOADS = (
    Workload("single GPU", 1, 0.3, 0.0),
    Workload("data-parallel", 4, 0.36, 0.04),
    Workload("sharded", 4, 0.6, 0.25),
    Workload("long steps", 2, 2.5, 0.1),
)


@dataclass(frozen=True)
class Truth:
    """What is wrong with a run. It is written before the run starts."""

    rules: tuple[str, ...]  # each of which names the cause; none: nothing is wrong, or no rule can name it
    says: str = ""  # words that the finding must have, if the rule knows several causes
    place: str = ""  # "rank 2" or "GPU 2"; empty: the whole run
    seconds_lost: float | None = None  # None: it costs no time, or nobody can know how much
    not_alerts: tuple[str, ...] = ()  # of the rules, those whose alerts do not say the cause


class Training(Scenario):
    """A run of a workload without a fault."""

    name = "healthy"
    fewest_ranks: ClassVar[int] = 1
    length: ClassVar[float] = SECONDS
    cpu_limit: ClassVar[float | None] = None  # cores per rank

    def __init__(self, workload: Workload, severity: float, seed: int) -> None:
        self.workload = workload
        self.severity = severity  # share of a step, unless the fault's docstring says otherwise
        self.ranks = workload.ranks
        self.core_count = CORES_PER_RANK * workload.ranks
        self.workers = CORES_PER_RANK
        self.setup_seconds = SETUP
        self.fetch_seconds = CORES_PER_RANK * workload.seconds / 2
        self.target = Random(f"{self.name} {seed}").randrange(
            workload.ranks
        )  # the rank or GPU with the fault
        self.prepare()

    def prepare(self) -> None:
        """Sets what depends on the workload and the severity."""

    @property
    def step(self) -> float:
        """Returns the seconds of a healthy step."""
        return self.workload.seconds

    @property
    def extra(self) -> float:
        """Returns the seconds that the fault adds to a step, on average."""
        return self.severity * self.step

    def truth(self) -> Truth:
        """Returns what is wrong: nothing."""
        return Truth(())

    def nvml(self) -> FailingNvml:
        """Returns the driver of the run's node."""
        return FailingNvml()

    def strike(self, node: FailingNode, run: SimulatedRun, elapsed: float) -> None:
        """Breaks a GPU or kills a process, if that is the fault, `elapsed` seconds after the run's start."""

    def is_silent(self, elapsed: float) -> bool:
        """Returns whether the exporter has ended by then."""
        return False

    def work(self, rank: int, number: int, random: Random) -> Work:
        share = self.workload.communication
        work = compute(self.step * (1 - share), random, data_wait=DATA_WAIT)
        return replace(work, communication=share * self.step)


def lost(training: Training, extra: float) -> float:
    """Returns the seconds of a run that are lost if each step takes `extra` seconds longer."""
    return (training.length - training.setup_seconds) * extra / (training.step + extra)
