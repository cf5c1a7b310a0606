"""Histograms of samples (smdebug.profiler.analysis.notebook_utils.metrics_histogram)."""

from collections.abc import Sequence
from functools import partial

from stepscope.analysis.plots import ROWS
from stepscope.compat.smdebug.events import chosen_rows, elapsed
from stepscope.compat.smdebug.not_served import not_served
from stepscope.compat.smdebug.profiler.analysis.notebook_utils.chart import Chart
from stepscope.compat.smdebug.profiler.system_metrics_reader import SystemMetricsReader


class MetricsHistogram(Chart):
    """How often cores, GPUs and memory were used how much: `run.plot.histogram`."""

    def __init__(self, metrics_reader: SystemMetricsReader) -> None:
        super().__init__(metrics_reader.run)

    def plot(
        self,
        starttime: float = 0,
        endtime: float | None = None,
        select_dimensions: Sequence[str] = (".*",),
        select_events: Sequence[str] = (".*",),
        show_workers: bool = True,
    ) -> None:
        """Draws ratios: a node's mean for "total", and each device selected. Rates have no histogram."""
        self.start, self.end = elapsed(self.run, starttime), elapsed(self.run, endtime)
        self.by_node = show_workers
        rows = chosen_rows(self.run, select_dimensions, select_events)
        self.rows = [row for row in rows if not ROWS[row.partition("/")[0]][1].endswith("per_second")]
        if not self.rows:
            raise not_served(f"a histogram of {list(select_dimensions)}", "use run.plot.heatmap()")
        self.create_plot()

    def create_plot(self) -> None:
        """Draws the histograms chosen by `plot`."""
        histogram = partial(self.run.plot.histogram, start=self.start, end=self.end, by_node=self.by_node)
        only: dict[str, list[str]] = {}  # devices by row; none: all
        for row in self.rows:
            kind, _, number = row.partition("/")
            only.setdefault(kind, []).extend([number] if number else [])
        self.show(partial(histogram, *ROWS[kind][:2], only=numbers or None) for kind, numbers in only.items())
