"""Histograms of steps (smdebug.profiler.analysis.notebook_utils.step_histogram)."""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow.compute as pc

from stepscope.compat.smdebug.events import PARTS, STEP_NAMES, elapsed
from stepscope.compat.smdebug.given import matches, several
from stepscope.compat.smdebug.not_served import not_served
from stepscope.compat.smdebug.profiler.algorithm_metrics_reader import AlgorithmMetricsReader
from stepscope.compat.smdebug.profiler.analysis.notebook_utils.chart import Chart


class StepHistogram(Chart):
    """How many steps took how long: `run.plot.step_histogram`."""

    def __init__(self, metrics_reader: AlgorithmMetricsReader, width: int = 500) -> None:
        super().__init__(metrics_reader.run)

    def plot(
        self,
        starttime: float = 0,
        endtime: float | None = None,
        select_metrics: Sequence[str] = ("Step:ModeKeys",),
        show_workers: bool = True,
    ) -> None:
        """Draws the steps, or the parts of steps, of each phase that one of the regular expressions matches.

        There is an outline per rank, or without workers one of all.
        """
        self.by_rank = show_workers
        self.start, self.end = elapsed(self.run, starttime), elapsed(self.run, endtime)
        found = {
            metric: [drawn for name, drawn in self._known() if matches(metric, name)]
            for metric in several(select_metrics)
        }
        self.chosen = list(dict.fromkeys(each for drawn in found.values() for each in drawn))
        missing = [metric for metric, drawn in found.items() if not drawn]
        error = not_served(f"a histogram of {missing}", "the run has none; see run.steps(), run.events()")
        if not self.chosen:
            raise error
        if missing:
            print(error)
        self.create_plot()

    def create_plot(self) -> None:
        """Draws what `plot` has chosen."""
        histogram, shown = self.run.plot.step_histogram, (self.start, self.end, self.by_rank)
        self.show(partial(histogram, phase, *shown, value) for phase, value in self.chosen)

    def _known(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yields the name of each metric that the run has, with its phase and column of Run.steps."""
        steps = self.run.steps()
        there = [phase for phase in STEP_NAMES if phase in set(steps["phase"].to_pylist())]
        yield from ((STEP_NAMES[phase], (phase, "duration_seconds")) for phase in there)
        for component, (name, _) in PARTS.items():
            column = f"{component}_seconds"
            timed = set(steps.filter(pc.field(column) > 0)["phase"].to_pylist())
            yield from ((name, (phase, column)) for phase in there if phase in timed)
