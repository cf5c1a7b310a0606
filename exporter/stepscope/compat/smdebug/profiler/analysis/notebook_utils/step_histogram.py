"""Histograms of steps (smdebug.profiler.analysis.notebook_utils.step_histogram)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from stepscope.compat.smdebug.events import STEP_NAMES, elapsed
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
        """Draws the steps of each phase that one of the regular expressions matches.

        There is an outline per rank, or without workers one of all.
        """
        self.by_rank = show_workers
        self.start, self.end = elapsed(self.run, starttime), elapsed(self.run, endtime)
        there = set(self.run.steps()["phase"].to_pylist())
        found = {
            metric: [
                phase for phase, name in STEP_NAMES.items() if phase in there and re.search(metric, name)
            ]
            for metric in select_metrics
        }
        self.phases = sorted({phase for phases in found.values() for phase in phases})
        missing = [metric for metric, phases in found.items() if not phases]
        error = not_served(f"a histogram of {missing}", "use run.components() and run.operators()")
        if not self.phases:
            raise error
        if missing:
            print(error)
        self.create_plot()

    def create_plot(self) -> None:
        """Draws the phases chosen by `plot`."""
        histogram, shown = self.run.plot.step_histogram, (self.start, self.end, self.by_rank)
        self.show(partial(histogram, phase, *shown) for phase in self.phases)
