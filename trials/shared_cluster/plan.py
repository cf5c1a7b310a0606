"""What a seed decides: the nodes, the runs of the users on them, their faults, and what else happens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

from stepscope.demo.scenario import GPUS
from stepscope.training.launch import Launch

from trials.shared_cluster.faults import (
    FAULTS,
    MINUTE,
    CpuBound,
    Episode,
    Fault,
    FewWorkers,
    Hot,
    Job,
    Leak,
    StartsSlowly,
    Starved,
    Strength,
)

START = 1_700_000_160  # seconds since the epoch, by Prometheus's clock; a multiple of every group's interval
SECONDS = 6000.0
SCRAPE_INTERVALS = (15, 60, 5, 30)  # of the seeds, in turn
USERS = ("ana", "ben", "cleo", "dan", "eva", "finn")
FIRST_UID = 20_001
NAMES = ("train", "finetune", "vit", "gpt")  # fewer than runs: many have equal names
HEALTHY_AT_FIRST = 17 * MINUTE  # of a run before its fault
KINDS = 11  # of faults per seed: the other runs stay healthy
DOWN = 87 * MINUTE, 95 * MINUTE  # when an exporter is down: the faults are over
MEMORY_OF_ERRORS = 60 * MINUTE  # GPUError stays for an hour: an error does not end
NEAR_SHARE = 0.5  # of the faults lie near their threshold
DIVIDED_NODE, DIVIDED_GPU, MIG_DEVICES = 2, 6, 2
FIRST_MIG = GPUS  # its MIG devices are numbered after all GPUs of the node


@dataclass(frozen=True)
class Part:
    """The part of a run on a node, by the node's number."""

    node: int
    ranks: Sequence[int]
    gpus: Sequence[int]
    cores: Sequence[int]


@dataclass
class PlannedRun:
    """A launch, in seconds since the start of the simulation."""

    number: int
    name: str
    uid: int
    job: Job
    parts: Sequence[Part]
    begin: float
    end: float
    killed: bool = False
    cpu_limit: float | None = None  # cores, of its pod on each node
    restarts_at: float = inf  # all processes, by their launcher: another attempt of the same run

    @property
    def label(self) -> str:
        """Returns the value of its label `run`."""
        return Launch(self.name, self.launch).run

    @property
    def launch(self) -> str:
        return f"launch-{self.number:04}"

    @property
    def first_pid(self) -> int:
        return 4001 + 100 * self.number


@dataclass(frozen=True)
class Planted:
    """A fault or a near miss of a run, in seconds since the start of the simulation.

    The rule must name it with these labels; `run` is the number of the planned run.
    """

    rule: str
    strength: Strength
    run: int | None
    labels: Mapping[str, str]
    may: frozenset[str]
    begin: float
    end: float


@dataclass
class PlannedNode:
    """A node; its clock is `skew` seconds ahead of Prometheus's and is set by `step` at `steps_at`."""

    cluster: str
    instance: str
    skew: float
    step: float = 0.0
    steps_at: float = inf
    restarts_at: float = inf  # the exporter, in a moment
    unscraped: tuple[float, float] = (inf, inf)  # scrapes fail
    down: tuple[float, float] = (inf, inf)  # the exporter does not run
    lost: tuple[float, float] = (inf, inf)  # a GPU gives no answer,
    faulty_at: float = inf  # and another one has a memory error
    gpus: tuple[int, int] = (0, 0)  # which
    divided: int | None = None  # a GPU into MIG_DEVICES


@dataclass
class Plan:
    """A cluster of one seed."""

    seed: int
    seconds: float
    scrape_interval: int
    nodes: list[PlannedNode]
    runs: list[PlannedRun] = field(default_factory=list)
    planted: list[Planted] = field(default_factory=list)


# The layout: per run the parts (node, first GPU, GPUs, first core, cores). Runs with the same place follow
# each other: the later one is a rerun.
_LAYOUT: Sequence[Sequence[tuple[int, int, int, int, int]]] = (
    [(0, 0, 2, 0, 8)],
    [(0, 2, 2, 8, 8)],
    [(0, 4, 2, 16, 8), (1, 4, 2, 16, 8)],
    [(0, 6, 1, 24, 4)],
    [(0, 7, 1, 28, 4)],
    [(1, 0, 4, 0, 16)],
    [(1, 6, 1, 24, 4)],
    [(1, 7, 1, 28, 4)],
    [(2, 0, 4, 0, 16)],
    [(2, 4, 2, 16, 8)],
    [(2, FIRST_MIG, 1, 24, 4)],
    [(2, FIRST_MIG + 1, 1, 28, 4)],
    [(3, 0, 2, 0, 8)],
    [(3, 2, 2, 8, 8)],
    [(3, 4, 2, 16, 8)],
    [(3, 6, 1, 24, 4)],
)
_RERUNS = (3, 9, 12, 15)  # runs that end early, and are launched again under the same name
_PODS = (3, 6, 10, 15)  # runs with a CPU limit
_RESTARTED = 14  # a run whose launcher restarts it


def make_plan(seed: int) -> Plan:
    """Returns the cluster of a seed."""
    random, seconds = Random(f"shared cluster {seed}"), SECONDS
    nodes = [
        PlannedNode(cluster, instance, random.uniform(-90, 90))
        for cluster in ("alpha", "beta")
        for instance in ("gpu-1", "gpu-2")
    ]
    nodes[1].steps_at, nodes[1].step = random.uniform(0.3, 0.6) * seconds, random.choice((-3600.0, 3600.0))
    nodes[2].restarts_at = random.uniform(0.3, 0.6) * seconds
    gap = random.uniform(0.3, 0.6) * seconds
    nodes[3].unscraped = gap, gap + MINUTE
    plan = Plan(seed, seconds, SCRAPE_INTERVALS[seed % len(SCRAPE_INTERVALS)], nodes)
    for layout in _LAYOUT:
        _add_run(plan, layout, random.uniform(0, 5) * MINUTE, seconds + MINUTE)
    for number in _PODS:
        plan.runs[number].cpu_limit = float(plan.runs[number].job.core_count - 1)
    plan.runs[_RESTARTED].restarts_at = random.uniform(10, 20) * MINUTE
    _plant_faults(plan, random, seconds)
    _break_gpus(plan, random)
    for number in _RERUNS:
        _rerun(plan, plan.runs[number], random, seconds)
    nodes[0].down = DOWN
    nodes[DIVIDED_NODE].divided = DIVIDED_GPU
    down = {"cluster": nodes[0].cluster, "instance": nodes[0].instance}
    plan.planted.append(Planted("ExporterDown", "clear", None, down, frozenset(), *DOWN))
    return plan


def make_short_plan() -> Plan:
    """Returns one cluster of two nodes for half an hour, with some clear faults, for the tests."""
    random, seconds = Random("short"), 30 * MINUTE
    nodes = [PlannedNode("alpha", instance, skew) for instance, skew in (("gpu-1", -80.0), ("gpu-2", 85.0))]
    plan = Plan(0, seconds, 60, nodes)
    for layout in _LAYOUT[:8]:
        _add_run(plan, layout, 0.0, seconds + MINUTE)
    for run, kind in zip(plan.runs, (FewWorkers, Starved, Hot, CpuBound), strict=False):
        _plant(plan, run, kind, "clear", random, seconds)
    return plan


def _add_run(
    plan: Plan, layout: Sequence[tuple[int, int, int, int, int]], begin: float, end: float
) -> PlannedRun:
    parts, rank = [], 0
    for node, gpu, gpus, core, cores in layout:
        parts.append(Part(node, range(rank, rank + gpus), range(gpu, gpu + gpus), range(core, core + cores)))
        rank += gpus
    number = len(plan.runs)
    cores_per_rank = layout[0][4] // layout[0][2]
    job = Job(rank, layout[0][4], cores_per_rank)
    uid = FIRST_UID + number % len(USERS)
    run = PlannedRun(number, NAMES[number % len(NAMES)], uid, job, parts, begin, end)
    plan.runs.append(run)
    return run


def _plant_faults(plan: Plan, random: Random, seconds: float) -> None:
    """Gives most runs a fault or a near miss; the others stay healthy."""
    free = [run for run in plan.runs if run.number != _RESTARTED]
    random.shuffle(free)
    for kind in sorted(
        random.sample(FAULTS, KINDS), key=lambda kind: (-kind.needs_ranks, not kind.needs_limit)
    ):
        fitting = (
            run
            for run in free
            if run.job.ranks >= kind.needs_ranks and not (kind.needs_load and _has_mig(run))
        )
        run = next((run for run in fitting if run.cpu_limit or not kind.needs_limit), None)
        if run is None:
            continue
        free.remove(run)
        strength: Strength = "miss" if random.random() < 0.25 else "clear"
        if strength == "clear" and random.random() < NEAR_SHARE:
            strength = "near"
        _plant(plan, run, kind, strength, random, seconds)


def _plant(
    plan: Plan, run: PlannedRun, kind: type[Fault], strength: Strength, random: Random, seconds: float
) -> None:
    fault = kind(run.job, strength, random.randrange(run.job.ranks))
    at_first = min(HEALTHY_AT_FIRST, seconds / 6)
    begin, end = at_first + random.uniform(0, 5) * MINUTE, 0.0
    if isinstance(fault, StartsSlowly):
        run.job.setup_seconds = fault.of(35, 22, 17) * MINUTE
        begin, end = 0.0, run.job.setup_seconds
    elif isinstance(fault, FewWorkers):
        part = run.parts[0]
        run.job.workers = fault.workers = max(
            1, round(fault.of(0.4, 0.62, 0.78) * len(part.cores) / len(part.gpus))
        )
        share = run.job.workers * len(part.gpus) / len(part.cores)
        strength = "clear" if share < 0.6 else "near" if share < 0.7 else "miss"
        begin, end = 0.0, seconds
        run.job.episodes.append(Episode(fault, begin, end))
    else:
        end = begin + fault.lasts
        if isinstance(fault, Leak):
            fault.began = begin
        run.job.episodes.append(Episode(fault, begin, end))
    for labels in _expected(plan, run, fault):
        planted = Planted(
            kind.rule,
            strength,
            run.number,
            labels,
            fault.also_if_missed if strength == "miss" else fault.may,
            run.begin + begin,
            min(run.begin + end, run.end),
        )
        plan.planted.append(planted)


def _expected(plan: Plan, run: PlannedRun, fault: Fault) -> Sequence[dict[str, str]]:
    """Returns the labels of the expected alert; one per node of the run unless the fault is at one place."""
    wanted = fault.labels()
    found = []
    for part in run.parts:
        node = plan.nodes[part.node]
        labels = {"cluster": node.cluster, "instance": node.instance}
        own = next(iter(wanted.values()), None)
        if own is not None and own not in part.ranks:
            continue
        if "gpu" in wanted and own is not None:
            labels["gpu"] = _gpu_label(part.gpus[list(part.ranks).index(own)])
        elif own is not None:
            labels["rank"] = str(own)
        found.append(labels)
    return found


def _has_mig(run: PlannedRun) -> bool:
    return any(gpu >= FIRST_MIG for part in run.parts for gpu in part.gpus)


def _gpu_label(gpu: int) -> str:
    return str(gpu) if gpu < FIRST_MIG else f"{DIVIDED_GPU}:{gpu - FIRST_MIG}"


def _break_gpus(plan: Plan, random: Random) -> None:
    """Breaks GPUs of two runs without another fault: one has a memory error, one is lost for a while."""
    planted = {each.run for each in plan.planted}
    healthy = [
        run for run in plan.runs if run.number not in planted and len(run.parts) == 1 and not _has_mig(run)
    ]
    for run, rule in zip(random.sample(healthy, min(2, len(healthy))), ("GPUError", "GPULost"), strict=False):
        node, gpu = plan.nodes[run.parts[0].node], run.parts[0].gpus[0]
        labels = {"cluster": node.cluster, "instance": node.instance, "gpu": str(gpu)}
        begin = HEALTHY_AT_FIRST + random.uniform(0, 20) * MINUTE
        end = begin + 10 * MINUTE
        if rule == "GPUError":
            node.faulty_at, node.gpus = begin, (node.gpus[0], gpu)
            end = begin + MEMORY_OF_ERRORS
        else:
            node.lost, node.gpus = (begin, end), (gpu, node.gpus[1])
        may = frozenset({"LowGPUUtilization", "GPUError", "StepscopeGPULost"})
        plan.planted.append(Planted(rule, "clear", run.number, labels, may, begin, end))


def _rerun(plan: Plan, first: PlannedRun, random: Random, seconds: float) -> None:
    """Launches a run again under its name, healthy, after it ended in good order or was killed."""
    last = max((planted.end for planted in plan.planted if planted.run == first.number), default=0.0)
    begin = min(max(last + 10 * MINUTE, 0.6 * seconds), seconds - 20 * MINUTE)
    first.end = begin - random.uniform(0.5, 3) * MINUTE
    plan.planted = [
        replace(each, end=min(each.end, first.end)) if each.run == first.number else each
        for each in plan.planted
    ]
    first.killed = random.random() < 0.5
    job = Job(first.job.ranks, first.job.core_count, first.job.core_count // len(first.parts[0].gpus))
    plan.runs.append(
        PlannedRun(
            len(plan.runs),
            first.name,
            first.uid,
            job,
            first.parts,
            begin,
            seconds + MINUTE,
            cpu_limit=first.cpu_limit,
        )
    )
