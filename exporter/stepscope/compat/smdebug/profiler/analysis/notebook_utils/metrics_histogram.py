"""Histograms of samples (smdebug.profiler.analysis.notebook_utils.metrics_histogram)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from stepscope.analysis.plots import ROWS
from stepscope.compat.smdebug.events import chosen_rows, elapsed
from stepscope.compat.smdebug.not_served import not_served
from stepscope.compat.smdebug.profiler.analysis.notebook_utils.chart import Chart
from stepscope.compat.smdebug.profiler.system_metrics_reader import SystemMetricsReader

MEANS = {"cpu": "cpu_utilization_ratio", "io_wait": "cpu_io_wait_ratio", "gpu": "gpu_utilization_ratio"}


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
        """Draws ratios: a node's mean for "total", otherwise each device. Rates have no histogram."""
        self.start, self.end = elapsed(self.run, starttime), elapsed(self.run, endtime)
        self.by_node = show_workers
        rows = [row for row in chosen_rows(select_dimensions) if not ROWS[row][1].endswith("per_second")]
        if not rows:
            raise not_served(f"a histogram of {list(select_dimensions)}", "use run.plot.heatmap()")
        totals = [re.search(each, "total") is not None for each in select_events]
        means = {("node", MEANS[row]): None for row in rows if row in MEANS and any(totals)}
        own = {ROWS[row][:2]: None for row in rows if row not in MEANS or select_events != ["total"]}
        self.chosen = [*means, *own]
        self.create_plot()

    def create_plot(self) -> None:
        """Draws the histograms chosen by `plot`."""
        histogram = partial(self.run.plot.histogram, start=self.start, end=self.end, by_node=self.by_node)
        self.show(partial(histogram, device, value) for device, value in self.chosen)
