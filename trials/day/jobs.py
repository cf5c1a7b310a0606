"""What users run on the cluster in a day: the mix of jobs, and where the scheduler places them.

The mix is that of a shared cluster of a research group. No number is taken from a rule's threshold.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Literal

from stepscope.training.launch import Launch

MINUTE, HOUR = 60.0, 3600.0
DAY = 24 * HOUR
NODES, GPUS, USERS = 20, 8, 40
CORES_PER_GPU = 12
TUNING = range(1, 101)  # seeds with which rules and this trial may be changed
HELD_BACK = (304, 305, 306)  # and those with which nothing was ever changed

Devices = Literal["gpus", "mig", "none"]
Pool = Literal["large", "shared", "short", "interactive", "serving"]
# Of 20 nodes, the first 8 are for large jobs, and so on.
POOLS: Mapping[Pool, int] = {"large": 8, "shared": 7, "short": 2, "interactive": 2, "serving": 1}

# More nodes, whose GPUs are not counted: two have none, and one has four, each divided into two MIG devices.
OTHERS: Sequence[Devices] = ("none", "none", "mig")

Range = tuple[float, float]  # uniform, unless noted otherwise
NEVER = (inf, inf)


@dataclass(frozen=True)
class Kind:
    """A kind of job. Times are seconds; `every` and `lasts` belong to each other."""

    name: str
    count: int  # in a day on 20 nodes
    pool: Pool
    gpus: Sequence[int]  # one of these
    duration: Range
    step: Range | None = None  # None: it does not use Stepscope
    phase: Literal["train", "eval", "predict"] = "train"
    load: Range = (0.85, 0.99)  # mean GPU utilisation of a job while it computes
    data_wait: Range = (0.002, 0.04)  # share of each step
    communication: Range = (0.05, 0.3)  # share of each step of jobs with several ranks
    startup: Range = (20.0, 180.0)  # until the first step
    checkpoint_every: Range = NEVER
    checkpoint_lasts: Range = (0.0, 0.0)
    validation_every: Range = NEVER
    validation_lasts: Range = (0.0, 0.0)
    generation_every: Range = NEVER  # text is generated, between steps and without a DataLoader
    generation_lasts: Range = (0.0, 0.0)
    failing: float = 0.0  # share of the jobs that end with an exception of their own


KINDS: Sequence[Kind] = (
    Kind("pre-training", 4, "large", (16,), (DAY, DAY), (0.6, 4.0), load=(0.93, 0.99),
         startup=(2 * MINUTE, 8 * MINUTE),
         checkpoint_every=(15 * MINUTE, HOUR), checkpoint_lasts=(12.0, 75.0),
         validation_every=(30 * MINUTE, 2 * HOUR), validation_lasts=(30.0, 150.0)),
    Kind("fine-tuning", 160, "shared", (1, 1, 1, 2, 2, 4, 8), (20 * MINUTE, 3 * HOUR), (0.15, 1.5),
         load=(0.78, 0.98), checkpoint_every=(10 * MINUTE, 30 * MINUTE), checkpoint_lasts=(5.0, 40.0),
         validation_every=(10 * MINUTE, 40 * MINUTE), validation_lasts=(15.0, 120.0), failing=0.04),
    Kind("steps of 90 s", 3, "shared", (8,), (5 * HOUR, 9 * HOUR), (75.0, 100.0), load=(0.95, 0.99),
         startup=(2 * MINUTE, 5 * MINUTE), checkpoint_every=(HOUR, HOUR), checkpoint_lasts=(20.0, 75.0)),
    Kind("training with generation", 8, "shared", (4,), (2 * HOUR, 5 * HOUR), (1.0, 6.0),
         checkpoint_every=(30 * MINUTE, HOUR), checkpoint_lasts=(10.0, 60.0),
         generation_every=(4 * MINUTE, 10 * MINUTE), generation_lasts=(40.0, 110.0)),
    Kind("evaluation", 90, "shared", (1, 1, 2), (5 * MINUTE, 40 * MINUTE), (0.1, 2.0), "eval",
         load=(0.6, 0.97), data_wait=(0.01, 0.1), communication=(0.0, 0.05)),
    Kind("text generation", 40, "shared", (1, 1, 2), (20 * MINUTE, 2 * HOUR), (2.0, 20.0), "predict",
         load=(0.8, 0.97), data_wait=(0.0, 0.01), communication=(0.0, 0.05)),
    Kind("short job", 1250, "short", (1, 1, 1, 1, 2), (1 * MINUTE, 8 * MINUTE), (0.05, 1.0), load=(0.3, 0.97),
         data_wait=(0.002, 0.1), startup=(8.0, 60.0), failing=0.12),
    Kind("notebook", 40, "interactive", (1,), (HOUR, 6 * HOUR), load=(0.3, 0.95)),
    Kind("inference server", 6, "serving", (1, 1, 2), (DAY, DAY), load=(0.2, 0.7)),
)  # fmt: skip


# On nodes without GPUs, four at once.
ON_CORES = Kind("training on cores", 90, "shared", (1,), (10 * MINUTE, 3 * HOUR), (0.1, 3.0),
    data_wait=(0.01, 0.1), checkpoint_every=(10 * MINUTE, 30 * MINUTE), checkpoint_lasts=(1.0, 10.0),
    validation_every=(10 * MINUTE, 40 * MINUTE), validation_lasts=(15.0, 120.0), failing=0.04)  # fmt: skip
ON_DEVICES: Mapping[Devices, tuple[int, Sequence[str]]] = {  # how many jobs at once, and of which kinds
    "none": (4, (ON_CORES.name,)),
    "mig": (8, ("notebook", "evaluation", "fine-tuning")),
}

MIX = ("kind of job", "a day", "GPUs", "length", "step", "checkpoint", "validation", "generation", "fail")


def described() -> list[tuple[str, ...]]:
    """Returns the mix as rows of the page."""
    return [
        (
            kind.name,
            f"{kind.count:,}",
            ", ".join(map(str, sorted(set(kind.gpus)))),
            "whole day" if kind.duration[0] >= DAY else _span(kind.duration),
            _span(kind.step) if kind.step else "without Stepscope",
            *(
                f"{_span(lasts)} every {_span(every)}" if every != NEVER else "-"
                for every, lasts in (
                    (kind.checkpoint_every, kind.checkpoint_lasts),
                    (kind.validation_every, kind.validation_lasts),
                    (kind.generation_every, kind.generation_lasts),
                )
            ),
            f"{kind.failing:.0%}".replace("%", " %") if kind.failing else "-",
        )
        for kind in (*KINDS, ON_CORES)
    ]


def _span(seconds: Range) -> str:
    unit, name = (
        (HOUR, "h") if seconds[1] >= 2 * HOUR else (MINUTE, "min") if seconds[1] > 200 else (1.0, "s")
    )
    low, high = (f"{each / unit:.3g}" for each in seconds)
    return f"{low} {name}" if low == high else f"{low} to {high} {name}"


@dataclass(frozen=True)
class PlantedFault:
    """A fault of a job, in seconds since the start of the day."""

    name: str
    begin: float
    end: float


@dataclass
class Job:
    """A job on its node or nodes, in seconds since the start of the day."""

    number: int
    kind: Kind
    user: str
    begin: float
    end: float
    parts: Mapping[int, Sequence[int]]  # the GPUs by node
    seed: str
    ended: str = "finished"  # as `run_ended_info` has it
    fault: PlantedFault | None = None

    @property
    def run(self) -> str:
        """Returns the value of its label `run`; "" without Stepscope."""
        return Launch(self.kind.name.replace(" ", "-"), self.seed).run if self.kind.step else ""

    @property
    def ranks(self) -> int:
        return sum(map(len, self.parts.values()))

    def random(self, purpose: str) -> Random:
        """Returns its own random numbers, the same on each of its nodes."""
        return Random(f"{self.seed} {purpose}")


@dataclass
class Node:
    """A node, and what happens to its exporter; moments are seconds since the start of the day."""

    name: str
    skew: float  # seconds by which its clock is ahead
    restarts: Sequence[float]  # of its exporter
    unscraped: Sequence[tuple[float, float]]  # scrapes fail
    devices: Devices = "gpus"
    unknown: tuple[float, float] = NEVER  # Prometheus has no such target, or is off
    without_driver: tuple[float, float] = NEVER  # NVML does not answer
    lost: tuple[float, float] = NEVER  # nor does any GPU
    smaller: float = inf  # from then on, the last GPU is gone
    upgraded: bool = False  # its exporter has another version after each restart
    lean: float = inf  # from then on, it has the lean profile of metrics


@dataclass
class Day:
    """A cluster for some hours."""

    seed: int
    seconds: float
    interval: int  # between scrapes
    nodes: Sequence[Node]
    jobs: Sequence[Job]

    @property
    def gpu_days(self) -> float:
        return sum(node.devices == "gpus" for node in self.nodes) * GPUS * self.seconds / DAY


def make_day(seed: int, interval: int = 15, seconds: float = DAY, nodes: int = NODES) -> Day:
    """Returns the jobs and the nodes of a seed. At least 4 nodes, so that every pool has one."""
    random = Random(f"day {seed}")
    share = seconds / DAY * nodes / NODES
    jobs: list[Job] = []
    free = {node: [0.0] * GPUS for node in range(nodes)}  # when each GPU becomes free
    wanted = [
        (_arrival(kind, random, seconds), kind)
        for kind in KINDS
        for _ in range(_count(kind.count * share, random))
    ]
    for arrival, kind in sorted(wanted, key=lambda each: (each[0], each[1].name)):
        length = random.uniform(*kind.duration) if kind.duration[0] < DAY else inf
        pool = pools(nodes)[kind.pool]
        count = min(random.choice(kind.gpus), GPUS * len(pool))
        begin, parts = _place(free, pool, count, arrival, random)
        end = min(begin + length, seconds)
        if end - begin < MINUTE:
            continue
        for node, gpus in parts.items():
            for gpu in gpus:
                free[node][gpu] = end + 5.0
        number = len(jobs)
        job = Job(
            number, kind, f"user{random.randrange(USERS):02}", begin, end, parts, f"day {seed} job {number}"
        )
        job.ended = _ended(job, random, seconds)
        jobs.append(job)
    named = [_node(number, random, seconds) for number in range(nodes)]
    random = Random(f"day {seed}, other nodes")
    for number, devices in enumerate(OTHERS, nodes):
        named.append(replace(_node(number, random, seconds), devices=devices))
        jobs += _jobs_of(number, devices, len(jobs), seed, random, seconds)
    return Day(seed, seconds, interval, named, jobs)


def _ended(job: Job, random: Random, seconds: float) -> str:
    if random.random() < job.kind.failing:
        return "exit status 1"
    # Not launched by `stepscope run`.
    return "ended without saying so" if random.random() < 0.3 or job.end == seconds else job.ended


def _jobs_of(
    node: int, devices: Devices, number: int, seed: int, random: Random, seconds: float
) -> Iterator[Job]:
    """Yields the jobs of a node of `OTHERS`, one after another on each device."""
    places, names = ON_DEVICES[devices]
    kinds = [kind for kind in (*KINDS, ON_CORES) if kind.name in names]
    for place in range(places):
        begin = random.uniform(0, HOUR)
        while begin < seconds - MINUTE:
            kind = random.choice(kinds)
            end = min(begin + random.uniform(*kind.duration), seconds)
            user = f"user{random.randrange(USERS):02}"
            job = Job(number, kind, user, begin, end, {node: [place]}, f"day {seed} job {number}")
            job.ended = _ended(job, random, seconds)
            yield job
            number += 1
            begin = end + random.uniform(MINUTE, HOUR)


def _count(expected: float, random: Random) -> int:
    """Returns a whole number of jobs, at least one of each kind."""
    return max(1, int(expected + random.random() * (expected % 1 > 0)))


def _arrival(kind: Kind, random: Random, seconds: float) -> float:
    if kind.duration[0] >= DAY:
        return random.uniform(0, 10 * MINUTE)
    if kind.name == "notebook":  # by day
        return random.triangular(0, seconds, 0.4 * seconds)
    return random.uniform(0, seconds)


def pools(nodes: int) -> dict[Pool, range]:
    """Returns the nodes of each pool."""
    sizes = {pool: max(1, size * nodes // NODES) for pool, size in POOLS.items()}
    if nodes < len(sizes):  # servers and notebooks share the last one
        sizes["serving"] = 0
    sizes["shared"] += nodes - sum(sizes.values())
    found: dict[Pool, range] = {}
    first = 0
    for pool, size in sizes.items():
        found[pool] = range(first, first + size)
        first += size
    return {pool: own or found["interactive"] for pool, own in found.items()}


def _place(
    free: Mapping[int, Sequence[float]], pool: range, count: int, arrival: float, random: Random
) -> tuple[float, dict[int, list[int]]]:
    """Returns when a job can begin, and on which GPUs: whole nodes, or those of one node."""
    if count > GPUS:
        groups = [pool[first : first + count // GPUS] for first in range(0, len(pool), count // GPUS)]
        groups = [group for group in groups if len(group) == count // GPUS]
        begin, first = min((max(arrival, *(max(free[node]) for node in group)), group[0]) for group in groups)
        group = next(group for group in groups if group[0] == first)
        return begin, {node: list(range(GPUS)) for node in group}
    options = []
    for node in pool:
        earliest = sorted(range(GPUS), key=lambda gpu: (free[node][gpu], gpu))[:count]
        options.append(
            (max(arrival, *(free[node][gpu] for gpu in earliest)), random.random(), node, earliest)
        )
    begin, _, node, gpus = min(options)
    return begin, {node: sorted(gpus)}


def _node(number: int, random: Random, seconds: float) -> Node:
    """Returns a node: its clock is wrong by seconds, and a third of the exporters restart or miss scrapes."""
    skew = random.gauss(0, 1.5) if random.random() < 0.8 else random.uniform(-60, 60)
    restarts = [random.uniform(0, seconds)] if random.random() < 0.3 else []
    unscraped = []
    for _ in range(random.choice((0, 0, 1, 2, 4))):
        begin = random.uniform(0, seconds)
        unscraped.append((begin, begin + random.choice((20.0, 20.0, 45.0, 75.0, 150.0))))
    return Node(f"gpu-{number + 1:02}", skew, restarts, unscraped)
