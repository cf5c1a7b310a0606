"""The cases: a fault at each place, on each rank, in both sizes; and runs in which nobody may be accused."""

from dataclasses import dataclass
from itertools import count
from random import Random

# Where the script delays a rank, and the component that must be named.
COMPONENTS = {
    "data": "data_wait",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "gc": "gc",
    "checkpoint": "checkpoint",
    "host before": "host",
    "host after": "host",
}
TRAINER = "HF Trainer"  # Hugging Face's, with DistributedDataParallel
LIGHTNING = "Lightning"  # with its DDPStrategy
SINGLE = "one process"  # with DistributedDataParallel, too
ALONE = "plain loop"  # in one process, without torch.distributed
OTHERS = (TRAINER, LIGHTNING, SINGLE, ALONE)  # scripts with their own table
RANKS = {"DDP": 4, "FSDP1": 2, "FSDP2": 2, TRAINER: 2, LIGHTNING: 2, SINGLE: 1, ALONE: 1}
IN_ONE_PROCESS = ("data", "gc", "checkpoint")  # the rest of a step could be as slow without a fault
IN_MATRIX = ("DDP", "FSDP2")  # scripts with every fault
VARIANTS = (  # and other loops
    *(("DDP", name) for name in ("no_sync", "static_graph", "find_unused_parameters", "checkpointing")),
    *(("DDP", "spawn"), ("DDP", "optimizers"), ("FSDP1", ""), ("FSDP2", "checkpointing")),
)
SIZES = (0.2, 0.05)  # seconds
WAYS = ("wait", "compute")
WITH_WORKERS = (
    100  # steps: the start of workers makes the first step of an epoch long, and the mean uncertain
)
CALM = 150  # steps without a fault, of some 25 ms: too few are not judged
FAST = 1500  # steps of a few milliseconds: several seconds
LONG = 600  # steps, of the runs whose alerts are looked at
PACE = 0.01  # seconds of a healthy pass, forward or backward
MOST_HIDDEN = 0.06  # seconds of a step, also where others use the cores
HIDDEN = 0.015  # seconds per batch, which two workers prepare within a step
HEALTHY_RUNS = 100
SLOW_NETWORKS = 4
HEALTHY_OTHERS = 10  # of each script without the full matrix


@dataclass(frozen=True)
class Case:
    """One run, and what its report must say."""

    kind: str  # "fault", "hidden", "healthy" or "slow network"
    script: str  # one of RANKS
    seed: int
    place: str = ""
    rank: int = -1
    seconds: float = 0.0
    way: str = "wait"
    workers: int = 0
    pace: float = PACE
    variant: str = ""
    steps: int = 60
    alerts: bool = False  # it lasts long enough for alerts of Prometheus

    @property
    def name(self) -> str:
        """Returns it in words; equal for equal cases."""
        words = [self.kind, " ".join(filter(None, (self.script, self.variant)))]
        if self.place:
            words += [self.place_in_words, f"{1000 * self.seconds:.0f} ms", self.way, f"rank {self.rank}"]
        else:
            words += [f"{self.workers} workers", f"pace {1000 * self.pace:.0f} ms", f"seed {self.seed}"]
        if self.alerts:
            words.append("with alerts")
        return ", ".join(words)

    @property
    def place_in_words(self) -> str:
        """Returns the place, with the number of workers if it is the data."""
        return f"{self.place} ({self.workers} workers)" if self.place == "data" else self.place

    @property
    def expected(self) -> tuple[int, str] | None:
        """Returns the rank and component that must be named; None: nobody may be."""
        return (self.rank, COMPONENTS[self.place]) if self.kind == "fault" else None

    @property
    def planted(self) -> str:
        """Returns the environment variable of the script."""
        seconds = self.seconds
        if self.kind == "fault" and self.workers:  # prefetching hides as much as a step takes
            seconds = self.workers * (seconds + MOST_HIDDEN)
        return f"{self.place or 'nowhere'}:{self.rank}:{seconds}:{self.way}"

    @property
    def words(self) -> list[str]:
        """Returns the arguments of the script."""
        return [
            *(["--fsdp", self.script[-1]] if self.script.startswith("FSDP") else []),
            *(["--width", "2048"] if self.kind == "slow network" else []),
            *(["--variant", self.variant] if self.variant else []),
            *("--steps", str(self.steps), "--workers", str(self.workers)),
            *("--pace", str(self.pace), "--seed", str(self.seed)),
        ]


def matrix(seed: int) -> list[Case]:
    """Returns every fault. Each place and size is tried with a sleeping and with a computing rank."""
    places = [("data", 0), ("data", 2), *((place, 0) for place in COMPONENTS if place != "data")]
    number = count(seed)
    return [
        Case(
            *("fault", script, seed, place, rank, seconds, WAYS[next(number) % len(WAYS)], workers),
            steps=WITH_WORKERS if workers else Case.steps,
        )
        for script in IN_MATRIX
        for place, workers in places
        for seconds in SIZES
        for rank in range(RANKS[script])
    ]


def long(seed: int) -> list[Case]:
    """Returns runs that are long enough for alerts."""
    return [
        Case("fault", "DDP", seed, "forward", 1, SIZES[1], "wait", steps=LONG, alerts=True),
        Case("fault", "DDP", seed, "data", 3, SIZES[1], "wait", workers=2, steps=LONG, alerts=True),
        Case("fault", "FSDP2", seed, "host after", 0, SIZES[1], "compute", steps=LONG, alerts=True),
        Case("healthy", "DDP", seed, steps=LONG, alerts=True),
        Case("healthy", "FSDP2", seed, steps=LONG, alerts=True),
    ]


def variants(seed: int) -> list[Case]:
    """Returns other loops: one fault that the variant could hide, one healthy run."""
    cases = []
    for number, (script, variant) in enumerate(VARIANTS):
        place, workers = ("data", 2) if variant == "spawn" else ("backward", 0)
        fault = (place, number % RANKS[script], SIZES[1], WAYS[number % len(WAYS)], workers)
        cases += [
            Case("fault", script, seed, *fault, variant=variant, steps=WITH_WORKERS),
            Case("healthy", script, seed, workers=workers, variant=variant, steps=CALM),
        ]
    return cases


def others(seed: int) -> list[Case]:
    """Returns faults in both sizes, and healthy runs: with trainers of two frameworks, and in one process."""
    places = {script: IN_ONE_PROCESS if RANKS[script] == 1 else tuple(COMPONENTS) for script in OTHERS}
    faults = [
        Case(
            "fault", script, seed, place, (index + size) % RANKS[script], SIZES[size], WAYS[index % len(WAYS)]
        )
        for script in places
        for index, place in enumerate(places[script])
        for size in range(len(SIZES))
    ]
    calm = [Case("healthy", script, seed + n, steps=CALM) for script in places for n in range(HEALTHY_OTHERS)]
    return [*faults, *calm]


def hidden(seed: int) -> list[Case]:
    """Returns delays in the workers of one rank's loader that prefetching hides."""
    return [
        Case("hidden", script, seed, "data", rank, HIDDEN, "wait", workers=2, steps=CALM)
        for script in IN_MATRIX
        for rank in range(RANKS[script])
    ]


def healthy(seed: int, runs: int) -> list[Case]:
    """Returns runs without a fault: with and without workers, with and without a pace."""
    return [
        Case(
            "healthy",
            ("DDP", "FSDP2")[number % 2],
            1000 * seed + number,
            workers=(0, 2)[number // 2 % 2],
            pace=(PACE, 0.0)[number // 4 % 2],
            steps=(CALM, FAST)[number // 4 % 2],
        )
        for number in range(runs)
    ]


def slow_networks(seed: int) -> list[Case]:
    """Returns healthy runs that wait for a slow network."""
    return [Case("slow network", "DDP", seed + number) for number in range(SLOW_NETWORKS)]


def full(seed: int) -> list[Case]:
    """Returns all cases, shuffled: an interrupted trial has tried some of each."""
    cases = [
        *matrix(seed),
        *variants(seed),
        *long(seed),
        *hidden(seed),
        *healthy(seed, HEALTHY_RUNS),
        *slow_networks(seed),
        *others(seed),
    ]
    Random(seed).shuffle(cases)
    return cases


def some(seed: int) -> list[Case]:
    """Returns each place of each script once, and a few cases in which nobody may be accused."""
    random = Random(seed)
    faults: dict[tuple[str, str], list[Case]] = {}
    for case in matrix(seed):
        faults.setdefault((case.script, case.place_in_words), []).append(case)
    others = [*long(seed)[:1], *hidden(seed)[-1:], *healthy(seed, 4), *slow_networks(seed)[:1]]
    return [*map(random.choice, faults.values()), *others]


def short(seed: int) -> list[Case]:
    """Returns what `make test` tries: four faults and two healthy runs."""
    of = {(case.script, case.place_in_words, case.rank, case.seconds): case for case in matrix(seed)}
    faults = [
        of["DDP", "backward", 2, 0.05],
        of["DDP", "data (0 workers)", 3, 0.2],
        of["FSDP2", "forward", 1, 0.05],
        of["FSDP2", "host after", 0, 0.05],
    ]
    return [*faults, *healthy(seed, 2)]
