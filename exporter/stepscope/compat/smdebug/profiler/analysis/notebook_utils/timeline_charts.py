"""Samples over time, and what ran then (smdebug.profiler.analysis.notebook_utils.timeline_charts)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from stepscope.compat.smdebug.events import STEP_NAMES, elapsed
from stepscope.compat.smdebug.profiler.algorithm_metrics_reader import AlgorithmMetricsReader
from stepscope.compat.smdebug.profiler.analysis.notebook_utils.chart import Chart
from stepscope.compat.smdebug.profiler.system_metrics_reader import SystemMetricsReader


class TimelineCharts(Chart):
    """The use of cores and GPUs, where a click shows what ran: `run.plot.utilization`."""

    def __init__(
        self,
        system_metrics_reader: SystemMetricsReader,
        framework_metrics_reader: AlgorithmMetricsReader,
        starttime: float = 0,
        endtime: float | None = None,
        select_dimensions: Sequence[str] = (".*",),
        select_events: Sequence[str] = (".*",),
        x: int = 1000,
        show_workers: bool = True,
    ) -> None:
        super().__init__(system_metrics_reader.run)
        self.start, self.end = elapsed(self.run, starttime), elapsed(self.run, endtime)
        self.by_node = show_workers
        self.create_plot()

    def create_plot(self) -> None:
        """Draws all GPUs and the mean of the cores, whatever was selected."""
        self.show([partial(self.run.plot.utilization, self.start, self.end, self.by_node)])

    def find_time_annotations(self, indexes: Sequence[int]) -> None:
        """Prints the seconds in steps, of all ranks, between two samples of the run."""
        start, end = self._times(indexes)
        print(f"from {start:.3f} s to {end:.3f} s of the run:")
        spent: Counter[str] = Counter()
        for step in self.run.between((start, end)).steps().to_pylist():
            spent[f"{STEP_NAMES[step['phase']]}_{step['number']}"] += step["duration_seconds"]
        for name, seconds in spent.most_common():
            print(f"{seconds:.3f} s in {name}")

    def plot_detailed_profiler_data(self, indexes: Sequence[int]) -> None:
        """Draws the steps between two samples of the run."""
        self.show([partial(self.run.plot.step_timeline, *self._times(indexes))])

    def _times(self, indexes: Sequence[int]) -> tuple[float, float]:
        """Returns seconds since the run's start of the first and the last of these samples."""
        times = self.run.samples(columns=["elapsed_seconds"])["elapsed_seconds"].to_pylist()
        return times[min(indexes)], times[min(max(indexes), len(times) - 1)]
