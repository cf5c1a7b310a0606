"""Measures the times from step to step of each rank: the median, and the longest."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.exporter.ledgers.ages import HOST as HOST
from stepscope.measurements.measure import Measurement, Views
from stepscope.measurements.sketch import SizeSketch
from stepscope.measurements.state import Scans, State
from stepscope.runs.model import COMPONENTS, PHASES, RankFacts, Span, Stay, Steps, Times

# Time that a step spent in these components is not a pause.
KNOWN_PLACES = ("checkpoint", "compile")
KNOWN_WORK = [COMPONENTS.index(component) for component in KNOWN_PLACES]
SET_BACK = 30.0  # seconds by which a clock was set back at least: looks at a process are less apart
LONGEST_KEPT = 1000  # pauses of a rank
TIMES_LONGER = 2.0  # than the longest earlier stay of its kind, one is still as usual


class Pause(NamedTuple):
    """A time without steps from `start` (seconds since the epoch), without an `end` while it lasts."""

    start: float
    seconds: float  # so far, without known work
    end: float | None


class Standstills(NamedTuple):
    """Times without steps, each with the usual time between steps and the number of steps."""

    seconds: Times
    usual: Times
    steps: Times
    explained: NDArray[np.bool_]  # by work that the run is known to do
    in_script: NDArray[np.bool_]  # in code of the script, outside all components, for not too long
    long_in_script: NDArray[np.bool_]  # and for longer


class Pauses(State):
    """The times between steps of one rank; long ones are kept one by one."""

    def __init__(self, longer_than: float) -> None:
        self.longer_than = longer_than
        self.times = SizeSketch()
        self.last_end = np.nan
        self.last_numbers: dict[int, int] = {}  # by phase
        self.longest: Times = np.empty((0, 3))  # start, end, seconds of known work in it

    def add(self, steps: Steps) -> None:
        before = np.concatenate(([self.last_end], steps.ends[:-1]))
        between = np.maximum(steps.ends - before, 0)
        between[self._lost_before(steps)] = np.nan  # the durations of lost steps are unknown
        self.times.add(between)
        work = steps.components[:, KNOWN_WORK].sum(axis=1)
        with np.errstate(invalid="ignore"):
            long = between - work > self.longer_than
        self.longest = np.concatenate((self.longest, np.column_stack((before, steps.ends, work))[long]))
        if len(self.longest) > LONGEST_KEPT:
            order = np.argsort(self.longest[:, 0] - self.longest[:, 1], kind="stable")[:LONGEST_KEPT]
            self.longest = self.longest[np.sort(order)]
        self.last_end = float(steps.ends[-1])

    def _lost_before(self, steps: Steps) -> NDArray[np.bool_]:
        """Returns where a step follows others of its phase that were counted but not recorded."""
        lost = np.zeros(len(steps), bool)
        for phase in range(len(PHASES)):
            places = np.flatnonzero(steps.phases == phase)
            if len(places):
                numbers = steps.numbers[places]
                first = self.last_numbers.get(phase, int(numbers[0]) - 1)
                lost[places] = np.diff(numbers, prepend=first) > 1
                self.last_numbers[phase] = int(numbers[-1])
        return lost

    @property
    def usual(self) -> float:
        """Returns the median time from step to step."""
        return self.times.percentile(50)

    def pauses(self, processes: Sequence[RankFacts], failed: bool) -> list[Pause]:
        """Returns the longest pauses that ended, then the current one, of 0 seconds if training has ended.

        `processes` are those of the rank, oldest first; `failed` is whether the run failed.
        """
        starts = [process.start for process in processes]
        found = [
            Pause(start, end - start - work, end)
            for start, end, work in self.longest.tolist()
            # Between two processes of a rank, no process could have made a step.
            if not any(start < begun < end for begun in starts)
        ]
        last_end, until = self.last_end, None
        if processes:
            last_end = max(last_end, processes[-1].last_step_end or -np.inf)
            until = _lived_until(processes[-1], failed) if processes[-1].start < last_end else None
            if until is not None and was_set_back(processes[-1]):
                last_end = min([until, *(stay.start for stay in processes[-1].stays[-1:])])
        return [*found, Pause(last_end, 0.0 if until is None else until - last_end, None)]


def was_set_back(process: RankFacts) -> bool:
    """Returns whether a process was last seen long before its last step: the clock was set back since.

    Its steps keep the clock of its start. It has not finished a step while it stayed in one place.
    """
    seen, last = process.last_alive, process.last_step_end
    return seen is not None and last is not None and seen < last - SET_BACK


def _lived_until(process: RankFacts, failed: bool) -> float | None:
    """Returns the last moment at which the process lived and should have trained; None if it had finished.

    A process that ends cleanly has other work after its last step. A process of a failed run was usually
    stalled until it was killed.
    """
    if process.end is None:
        return process.last_alive
    return process.end if failed else None


class NodePauses(Measurement[None]):
    """The times between steps of the ranks of a node; keeps those of more than `longer_than` seconds."""

    def __init__(self, longer_than: float) -> None:
        self.longer_than = longer_than
        self.ranks: dict[int, Pauses] = {}

    def observe_steps(self, steps: Steps, scans: Scans) -> Views[None]:
        if len(steps):
            self.ranks.setdefault(steps.rank, Pauses(self.longer_than)).add(steps)
        return ()


def stays_as_before(ranks: Sequence[RankFacts], known: float) -> list[Stay]:
    """Returns the stays of ranks in one place that lasted no longer than they may.

    A checkpoint or a compilation may take `known` seconds; it, and code of the script, TIMES_LONGER than the
    longest before.
    """
    found = []
    for rank in ranks:
        longest: dict[str, float] = {}
        for stay in rank.stays:
            lasted, before = stay.end - stay.start, longest.get(stay.component, 0.0)
            is_known = stay.component in KNOWN_PLACES
            if (is_known and lasted <= known) or (
                (is_known or stay.component == HOST) and lasted <= TIMES_LONGER * before
            ):
                found.append(stay)
            longest[stay.component] = max(before, lasted)
    return found


def lasting_in_script(ranks: Sequence[RankFacts], longest: float) -> list[Stay]:
    """Returns open stays in code of the script of `longest` seconds at most, such as text generation."""
    last = (max(rank.stays, key=lambda stay: stay.end) for rank in ranks if rank.stays and rank.end is None)
    return [stay for stay in last if stay.component == HOST and stay.end - stay.start <= longest]


def explained(pause: Pause, stays: Sequence[Stay]) -> float:
    """Returns the most seconds of a pause that one stay explains.

    Known work in the step that ended a pause is no part of it already.
    """
    until = pause.start + pause.seconds if pause.end is None else pause.end
    return max(
        (
            max(0.0, min(stay.end, until) - max(stay.start, pause.start))
            for stay in stays
            if pause.end is None or stay.component == HOST
        ),
        default=0.0,
    )


def unobserved(pause: Pause, captures: Sequence[Span]) -> float:
    """Returns the seconds of a pause that are in no capture of its rank; 0 if the run is no trace.

    Nobody knows what happened between two captures.
    """
    if pause.end is None or not captures:
        return 0.0
    seen = sum(max(min(each.end, pause.end) - max(each.start, pause.start), 0.0) for each in captures)
    return max(pause.end - pause.start - seen, 0.0)


def by_rank(nodes: Mapping[str, NodePauses]) -> dict[tuple[str, int], Pauses]:
    """Returns the pauses of all ranks by node and rank."""
    return {(name, rank): pauses for name, node in nodes.items() for rank, pauses in node.ranks.items()}
