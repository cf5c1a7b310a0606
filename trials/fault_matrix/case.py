"""The cases: each fault in each severity, and healthy runs, per seed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random

from trials.fault_matrix.faults import FAULTS, SEVERITIES
from trials.fault_matrix.healthy import HEALTHY
from trials.fault_matrix.training import WORKLOADS, Training, Workload

KINDS = {kind.name: kind for kind in (*FAULTS, *HEALTHY)}
LONGEST_INTERVAL = 240  # seconds between evaluations of a group of rules
MORE_SEEDS = 30  # healthy runs of the same shape and workload have seeds that differ by this


@dataclass(frozen=True)
class Case:
    """One run."""

    kind: str  # of fault, or of healthy run
    severity: float  # 0: healthy
    workload: str
    seed: int

    @property
    def name(self) -> str:
        """Returns it in words; equal for equal cases."""
        severity = f"{100 * self.severity:.0f} %" if self.severity else "healthy"
        return f"{self.kind}, {severity}, {self.workload}, seed {self.seed}"

    @property
    def phase(self) -> int:
        """Returns by how many seconds the run begins later than an evaluation of all rules, as runs do."""
        return Random(self.name).randrange(LONGEST_INTERVAL)

    def training(self) -> Training:
        """Returns the run, with its truth."""
        workload = next(each for each in WORKLOADS if each.name == self.workload)
        return KINDS[self.kind](workload, self.severity, self.seed)


def cases(seeds: Iterable[int], severities: Sequence[float] = SEVERITIES) -> list[Case]:
    """Returns the matrix of some seeds, with at least as many healthy runs as faulty ones.

    The seed decides the workload, in turn.
    """
    found = []
    for seed in seeds:
        for number, kind in enumerate(FAULTS):
            for place, severity in enumerate(severities):
                workload = _workload(kind, seed + number + place)
                found.append(Case(kind.name, severity, workload.name, seed))
        for number, shape in enumerate(HEALTHY):
            for repeated in range(ceil(len(FAULTS) * len(severities) / len(HEALTHY))):
                workload = _workload(shape, seed + number + repeated)
                other = MORE_SEEDS * (repeated // len(WORKLOADS))
                found.append(Case(shape.name, 0.0, workload.name, seed + other))
    return found


def _workload(kind: type[Training], number: int) -> Workload:
    fitting = [each for each in WORKLOADS if each.ranks >= kind.fewest_ranks]
    return fitting[number % len(fitting)]
