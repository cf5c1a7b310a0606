"""Replays the ledgers of a recorded run's processes, as the exporter read them at any moment."""

import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from stepscope.exporter.ledgers.reader import (
    LedgerHeader,
    LedgerReader,
    LedgerTotals,
    LoaderTotals,
    StepRecord,
    derived_phases,
)
from stepscope.runs.model import COMPONENTS, PHASES, RankFacts, RunFacts, Stay, Steps
from stepscope.runs.recording.writer import RANKS_SECONDS
from stepscope.training.layout import STEP_BOUNDS, SUFFIX, WAIT_BOUNDS

NO_WAITS = (0,) * (len(WAIT_BOUNDS) + 1)  # no rule reads them, nor the fetches


class Step(NamedTuple):
    """A recorded step; times are seconds since the epoch."""

    end: float
    phase: str
    start: float
    duration: float
    components: tuple[float, ...]


class ReplayedLedger(LedgerReader):
    """A ledger whose content comes from a recording, as of the moment `now`; no file is read."""

    def __init__(self, path: Path, run: RunFacts, facts: RankFacts, steps: Iterable[Step]) -> None:
        self.path, self.owner, self.inode = path, os.getuid(), (0, 0)
        self.clock_offset = 0.0
        self.header = LedgerHeader(
            run.label,
            facts.rank,
            None,
            facts.world_size,
            facts.pid,
            facts.start,
            facts.framework,
            facts.framework_version,
            name=run.name,
        )
        self.start, self.until = facts.start, end_of(facts, run.interval)
        self.now = -inf
        self._coming = deque(steps)
        self._loaders = tuple(
            LoaderTotals(kept.phase, kept.workers, kept.pin_memory, kept.prefetch_factor, NO_WAITS, 0.0, None)
            for kept in facts.loaders
        )
        self._first_step: float | None = None
        self._last_step: float | None = None
        self._counts: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._squares: dict[str, float] = {}
        self._components = [0.0] * len(COMPONENTS)
        self._stays = facts.stays
        process = facts.node, facts.rank, facts.pid, facts.start
        self._gauges = {
            each.name: each for each in run.gauges if (each.node, each.rank, each.pid, each.start) == process
        }
        self._own = self._own_squares = 0.0

    def advance(self, now: float) -> None:
        """Replays everything up to `now`."""
        if now >= self.start > self.now:
            self.path.touch()
        self.now = now
        while self._coming and self._coming[0].end <= now:
            self._count(self._coming.popleft())

    def alive(self) -> bool:
        return self.start <= self.now < self.until

    def holder(self) -> int | None:
        """Returns None: the process of a recording is not here."""
        return None

    def exception(self) -> tuple[str, str] | None:
        """Returns None: no rule reads it, and a recording has it for the run as a whole."""
        return None

    @property
    def stay(self) -> Stay | None:
        """Returns where the rank is for long, if it is."""
        now = self.now
        return next((stay for stay in self._stays if stay.start <= now <= stay.end + RANKS_SECONDS), None)

    @property
    def state(self) -> str:
        """Returns what the process of a stuck rank does."""
        return self.stay.state if self.stay else ""

    def totals(self) -> LedgerTotals:
        end = self.until if self.now >= self.until else None
        component, since, operation = "", None, ""
        if stay := self.stay:
            since, operation = stay.start, stay.operation
            component = stay.component if stay.component in COMPONENTS else ""
        around = derived_phases(self.start, self._first_step, self._last_step, end, self._seconds)
        return LedgerTotals(
            first_step_start=self._first_step,
            last_step_end=self._last_step,
            end=end,
            steps={phase: sum(counts) for phase, counts in self._counts.items()},
            step_histogram={
                phase: (tuple(counts), self._seconds[phase]) for phase, counts in self._counts.items()
            },
            step_squared_seconds=dict(self._squares),
            phase_seconds=self._seconds | around,
            component_seconds=dict(zip(COMPONENTS, self._components, strict=True)),
            loaders=self._loaders,
            steps_recorded=sum(map(sum, self._counts.values())),
            component=component,
            component_since=since,
            operation=operation,
            gauges=self._published(),
            own_seconds=self._own,
            own_squared_seconds=self._own_squares,
        )

    def _published(self) -> dict[str, float]:
        """Returns the last value of each gauge that has one by now."""
        rows = {name: bisect_right(each.times, self.now) for name, each in self._gauges.items()}
        return {name: float(self._gauges[name].values[row - 1]) for name, row in rows.items() if row}

    def new_steps(self) -> tuple[list[StepRecord], int]:
        return [], 0

    def close(self) -> None:
        """Does nothing: no file is open."""

    def _count(self, step: Step) -> None:
        if self._first_step is None:
            self._first_step = step.start
        self._last_step = max(step.end, self._last_step or step.end)
        counts = self._counts.setdefault(step.phase, [0] * (len(STEP_BOUNDS) + 1))
        counts[bisect_left(STEP_BOUNDS, step.duration)] += 1
        self._seconds[step.phase] = self._seconds.get(step.phase, 0.0) + step.duration
        self._squares[step.phase] = self._squares.get(step.phase, 0.0) + step.duration**2
        for number, seconds in enumerate(step.components):
            self._components[number] += seconds
        if step.phase == "train":
            own = max(0.0, step.duration - step.components[COMPONENTS.index("communication")])
            self._own += own
            self._own_squares += own**2


def end_of(facts: RankFacts, interval: float) -> float:
    """Returns when the exporter saw that the process ended: if killed, one sample after its last sign."""
    if facts.end is not None:
        return facts.end
    return facts.last_alive + interval if facts.last_alive is not None else inf


def replayed_ledgers(
    directory: Path, run: RunFacts, ranks: Sequence[RankFacts], steps: Sequence[Steps]
) -> dict[Path, ReplayedLedger]:
    """Returns a ledger per process of a node; each creates an empty file in `directory` when it starts."""
    ledgers = {}
    for number, facts in enumerate(ranks):
        later = [other.start for other in ranks if other.rank == facts.rank and other.start > facts.start]
        path = directory / f"{number}{SUFFIX}"
        of_rank = (chunk for chunk in steps if chunk.rank == facts.rank)
        ledgers[path] = ReplayedLedger(
            path, run, facts, _between(of_rank, facts.start, min(later, default=inf))
        )
    return ledgers


def _between(chunks: Iterable[Steps], start: float, end: float) -> list[Step]:
    """Returns the steps of one process of a rank, in the order of their ends."""
    found = [
        Step(begun + took, PHASES[phase], begun, took, tuple(components))
        for steps in chunks
        for begun, took, phase, components in zip(
            steps.starts.tolist(),
            steps.durations.tolist(),
            steps.phases.tolist(),
            steps.components.tolist(),
            strict=True,
        )
        if start <= begun < end
    ]
    return sorted(found, key=lambda step: step.end)
