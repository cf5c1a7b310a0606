"""One of the two runs of a comparison: its analysis, and the data that only a comparison needs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.common.errors import UserError
from stepscope.compare.step_series import StepSeries
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import SCAN_INTERVAL, evaluate
from stepscope.evaluation.settings import Settings
from stepscope.measurements.usage import NodeUsage, UsageRow, usage_rows
from stepscope.runs.model import PHASES, NodeSamples, PythonWindow, RankFacts, RunFacts, Source, Steps

NO_SCAN = np.empty(0, np.intp)


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
                self._keep_steps(chunk)
            yield chunk

    def _keep_steps(self, steps: Steps) -> None:
        for index in np.unique(steps.phases):
            rows = steps.phases == index
            series = self.steps.setdefault((steps.node, steps.rank, PHASES[index]), StepSeries())
            series.add(steps.durations[rows], steps.components[rows])
