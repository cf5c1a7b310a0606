"""One of the two runs of a comparison: its analysis, and the data that only a comparison needs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.common.errors import UserError
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import SCAN_INTERVAL, evaluate
from stepscope.evaluation.settings import Settings
from stepscope.measurements.usage import NodeUsage, UsageRow, usage_rows
from stepscope.runs.model import (
    COMPONENTS,
    PHASES,
    NodeSamples,
    PythonWindow,
    RankFacts,
    RunFacts,
    Source,
    Steps,
    Times,
)

NO_SCAN = np.empty(0, np.intp)
STRETCH = 64  # consecutive steps that are kept or dropped together, so that kept steps stay consecutive
STRETCHES_KEPT = 1024  # 65,536 steps: 512 KiB per rank


class StepSeries:
    """Steps of one rank in one phase: exact counts and sums, and the durations of stretches of steps.

    A long run keeps every second stretch, then every fourth, and so on: an unbiased sample in which
    consecutive steps stay consecutive.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.component_seconds: Times = np.zeros(len(COMPONENTS))
        self.every = 1  # keeps one of this number of stretches
        self._stretches: list[Times] = []
        self._open: Times = np.empty(0)
        self._next = 0  # the number of the stretch that is open

    def add(self, durations: Times, components: Times) -> None:
        """Adds the next steps: durations (n,) and components (n, len(COMPONENTS)), in seconds."""
        self.count += len(durations)
        self.seconds += float(durations.sum())
        self.component_seconds = self.component_seconds + components.sum(axis=0)
        pending = np.concatenate((self._open, durations))
        whole = len(pending) // STRETCH * STRETCH
        for start in range(0, whole, STRETCH):
            self._keep(pending[start : start + STRETCH])
        self._open = pending[whole:].copy()

    def kept(self, every: int = 1) -> Times:
        """Returns the kept durations; with `every` (a power of two), of one in `every` stretches."""
        step = max(1, every // self.every)
        stretches = self._stretches[::step]
        unfinished = self._next % max(every, self.every) == 0
        return np.concatenate([*stretches, self._open if unfinished else np.empty(0)])

    def _keep(self, stretch: Times) -> None:
        if self._next % self.every == 0:
            self._stretches.append(stretch.copy())
            if len(self._stretches) > STRETCHES_KEPT:
                self._stretches = self._stretches[::2]
                self.every *= 2
        self._next += 1


def mean_over_ranks(ranks: Sequence[StepSeries]) -> Times:
    """Returns the durations of the run's steps, each the mean over its ranks. Empty without steps.

    Ranks that train together wait for each other, so a step takes about the same time on all of them.
    """
    every = max((rank.every for rank in ranks), default=1)
    series = [rank.kept(every) for rank in ranks]
    length = max(map(len, series), default=0)
    sums, counts = np.zeros(length), np.zeros(length)
    for durations in series:
        sums[: len(durations)] += durations
        counts[: len(durations)] += 1
    return sums / counts


@dataclass(frozen=True)
class ComparedRun:
    place: str  # the SOURCE that the user gave, without a password
    analysis: Analysis
    usage: list[UsageRow]  # over the samples of all nodes together; `node` is empty
    ranks: tuple[RankFacts, ...]  # one per process: a rank may have had several
    steps: dict[str, list[StepSeries]]  # by phase, one per rank
    price: float | None = None  # dollars per hour of one node
    workload: float | None = None  # items that the run processed, as the user gave them


def read_run(
    place: str,
    source: Source,
    price: float | None = None,
    settings: Settings | None = None,
    scan_interval: float = SCAN_INTERVAL,
    progress: Callable[[int], None] | None = None,
    workload: float | None = None,
) -> ComparedRun:
    """Evaluates a run as `stepscope report` does, in one pass. Raises UserError like its source."""
    tap = _Tap(source)
    analysis = evaluate(tap, settings, scan_interval, progress)
    steps: dict[str, list[StepSeries]] = {}
    for (_, _, phase), series in sorted(tap.steps.items()):
        steps.setdefault(phase, []).append(series)
    return ComparedRun(place, analysis, usage_rows({"": tap.usage}), tap.facts.ranks, steps, price, workload)


class _Tap(Source):
    """Passes a source through, and keeps the data that the analysis of one run does not have."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.judged_whole = source.judged_whole
        self.usage = NodeUsage()  # of all nodes as if they were one
        self.steps: dict[tuple[str, int, str], StepSeries] = {}  # by node, rank and phase

    @property
    def facts(self) -> RunFacts:
        return self._source.facts

    def traces(self) -> Source | None:
        return self._source.traces()

    def python_windows(self) -> Iterator[PythonWindow | UserError]:
        return self._source.python_windows()

    def read(self) -> Iterator[NodeSamples | Steps]:
        for chunk in self._source.read():
            if isinstance(chunk, NodeSamples):
                self.usage.observe(chunk, NO_SCAN)
            else:
                for index in np.unique(chunk.phases):
                    rows = chunk.phases == index
                    series = self.steps.setdefault((chunk.node, chunk.rank, PHASES[index]), StepSeries())
                    series.add(chunk.durations[rows], chunk.components[rows])
            yield chunk
