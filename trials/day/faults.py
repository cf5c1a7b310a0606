"""The faults that can be planted in jobs of a day, and how they are found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Literal

from trials.day.jobs import HOUR, MINUTE, Day, Job, PlantedFault
from trials.day.notifications import Alert, Notification
from trials.day.score import Result

CATALOGUE = ("planted fault", "what happens", "rules that name it", "symptoms")
HEALTHY_AT_FIRST = 30 * MINUTE  # of a job before its fault
LATEST = 30 * MINUTE  # after its begin, or after `Fault.known`, that a fault may be found
Place = Literal["gpu", "rank", "instance"]
TRAINING = ("fine-tuning", "training with generation", "pre-training")


@dataclass(frozen=True)
class Fault:
    """A kind of fault: rules that name it, rules of its symptoms, and what the alert must name."""

    name: str
    happens: str
    rules: frozenset[str]
    symptoms: frozenset[str] = frozenset()
    place: Place = "instance"
    kinds: Sequence[str] = TRAINING
    least_ranks: int = 1
    lasts: float = 40 * MINUTE  # inf: until the end of the job
    known: float = 0.0  # age of a run in seconds before which its rules wait: caches look the same


IDLE = frozenset({"LowGPUUtilization", "BatchSize", "IdleGPU", "LoadBalancing"})
FAULTS = (
    Fault(
        "slow rank",
        "rank 0 takes 1.5 times as long, and the others wait for it",
        frozenset({"Straggler"}),
        IDLE | {"CommunicationBound"},
        "rank",
        least_ranks=4,
    ),
    Fault("starved loader", "steps wait for data for 45 % of their time", frozenset({"DataStarved"}), IDLE),
    Fault(
        "hang",
        "rank 0 leaves a collective, until the user stops the job",
        frozenset({"CollectiveHang"}),
        IDLE | {"TrainingStalled"},
        least_ranks=2,
        lasts=inf,
    ),
    Fault(
        "idle GPU",
        "the user of a notebook is away for an hour",
        frozenset({"IdleGPU"}),
        place="gpu",
        kinds=("notebook",),
        lasts=60 * MINUTE,
    ),
    Fault(
        "hot GPU",
        "heat throttles the GPU of rank 0 for 40 % of the time",
        frozenset({"ThermalThrottling"}),
        IDLE,
        "gpu",
    ),
    Fault(
        "GPU memory leak",
        "the memory of a GPU grows by 0.45 points per minute",
        frozenset({"GPUMemoryLeak", "GPUMemoryNearlyFull", "GPUMemoryIncrease"}),
        place="gpu",
        known=HOUR,
    ),
    Fault(
        "host memory leak",
        "memory of the host grows by 1.2 points per minute",
        frozenset({"HostMemoryLeak"}),
        frozenset({"MemoryPressure"}),
    ),
    Fault(
        "GPU memory error",
        "the GPU of rank 0 has two uncorrected ECC errors",
        frozenset({"GPUError"}),
        frozenset({"RunFailed"}),
        "gpu",
        lasts=10 * MINUTE,
    ),
    Fault(
        "lost GPU",
        "the GPU of rank 0 does not answer",
        frozenset({"GPULost"}),
        frozenset({"RunFailed"}),
        "gpu",
        lasts=20 * MINUTE,
    ),
    Fault(
        "noisy neighbour",
        "others use 60 % of the cores: main threads wait for 40 % of their time, steps for data",
        frozenset({"NoisyNeighbour"}),
        IDLE | {"DataStarved"},
    ),
    Fault(
        "CPU limit",
        "it stops the job for 30 % of what it grants, and steps wait for data",
        frozenset({"CPUThrottled"}),
        IDLE | {"DataStarved"},
    ),
    Fault(
        "slow storage",
        "steps wait for data for 65 % of their time, and cores for I/O",
        frozenset({"IOBottleneck", "DataStarved"}),
        IDLE,
    ),
)


def described() -> list[tuple[str, ...]]:
    """Returns the faults as rows of the page."""
    return [
        (
            fault.name,
            fault.happens,
            *(", ".join(sorted(each)) or "none" for each in (fault.rules, fault.symptoms)),
        )
        for fault in FAULTS
    ]


def plant(day: Day) -> Day:
    """Plants each fault in a job of the day that is long enough, and returns the day."""
    random = Random(f"faults {day.seed}")
    taken: set[int] = set()
    for fault in FAULTS:
        jobs = [
            job
            for job in day.jobs
            if _fits(fault, job)
            and job.number not in taken
            and all(day.nodes[node].devices == "gpus" for node in job.parts)
        ]
        if not jobs:
            continue
        job = random.choice(jobs)
        taken.add(job.number)
        length = job.end - job.begin
        lasts = min(fault.lasts, 0.5 * length)
        begin = job.begin + random.uniform(min(HEALTHY_AT_FIRST, 0.4 * length), 0.5 * length)
        job.fault = PlantedFault(fault.name, begin, job.end if fault.lasts == inf else begin + lasts)
        if fault.name == "hang":
            job.ended = "signal SIGTERM"  # by its user
    return day


def planted(day: Day) -> list[tuple[Fault, Job, PlantedFault]]:
    """Returns the faults of a day."""
    kinds = {fault.name: fault for fault in FAULTS}
    return [(kinds[job.fault.name], job, job.fault) for job in day.jobs if job.fault is not None]


def _fits(fault: Fault, job: Job) -> bool:
    length = job.end - job.begin
    return (
        job.kind.name in fault.kinds
        and job.ranks >= fault.least_ranks
        and length >= 2 * max(HEALTHY_AT_FIRST, min(fault.lasts, 40 * MINUTE))
        and len(job.parts) == 1
    )


HEAD = (
    "seed",
    "planted fault",
    "found by",
    "delay (min)",
    "clearing (min)",
    "notified after (min)",
    "symptom first",
)


@dataclass(frozen=True)
class Found:
    """How a planted fault was found. Times are seconds; None: it was not."""

    name: str
    rule: str | None
    delay: float | None
    clearing: float | None
    told: float | None  # after its begin
    symptom: str | None  # a symptom's rule of which somebody heard before

    @property
    def holds(self) -> bool:
        return self.rule is not None and self.symptom is None

    def row(self, seed: int) -> tuple[str, ...]:
        times = (f"{seconds / MINUTE:.1f}" if seconds is not None else "-" for seconds in self._times)
        return (str(seed), self.name, self.rule or "**missed**", *times, self.symptom or "no")

    @property
    def _times(self) -> tuple[float | None, float | None, float | None]:
        return self.delay, self.clearing, self.told


def search(result: Result) -> list[Found]:
    """Returns how each planted fault of the day was found."""
    return [_found(result, *each) for each in planted(result.day)]


def _found(result: Result, fault: Fault, job: Job, own: PlantedFault) -> Found:
    alerts, notifications = result.alerts, result.notifications
    ((node, gpus),) = job.parts.items()
    labels = {"instance": result.day.nodes[node].name, "run": job.run}

    def concerns(alert: Alert) -> bool:
        return own.begin <= alert.begin <= own.end + LATEST and all(
            alert.labels.get(name, value) == value for name, value in labels.items() if value
        )

    def names(alert: Alert) -> bool:
        wanted = {"gpu": str(gpus[0]), "rank": "0"}.get(fault.place)
        return alert.labels["rule"] in fault.rules and (
            wanted is None or alert.labels.get(fault.place) == wanted
        )

    latest = max(own.begin, job.begin + fault.known) + LATEST
    right = [alert for alert in alerts if concerns(alert) and names(alert) and alert.begin <= latest]
    if not right:
        return Found(fault.name, None, None, None, None, _first_symptom(fault, concerns, notifications, inf))
    first = min(right, key=lambda alert: alert.begin)
    told = [each.time for each in notifications if any(alert in right for alert in each.firing)]
    heard = min(told, default=None)
    return Found(
        fault.name,
        first.labels["rule"],
        first.begin - own.begin,
        max(alert.end for alert in right) - own.end,
        heard - own.begin if heard is not None else None,
        _first_symptom(fault, concerns, notifications, heard if heard is not None else inf),
    )


def _first_symptom(
    fault: Fault, concerns: Callable[[Alert], bool], notifications: Sequence[Notification], before: float
) -> str | None:
    """Returns the rule of a symptom of which somebody heard before that time."""
    for each in notifications:
        if each.time < before:
            for alert in each.firing:
                if alert.labels["rule"] in fault.symptoms and concerns(alert):
                    return alert.labels["rule"]
    return None
