"""The heatmap of samples (smdebug.profiler.analysis.notebook_utils.heatmap)."""

from collections.abc import Sequence
from typing import Any

from stepscope.compat.smdebug.events import chosen_rows, elapsed
from stepscope.compat.smdebug.profiler.analysis.notebook_utils.chart import Chart
from stepscope.compat.smdebug.profiler.system_metrics_reader import SystemMetricsReader


class Heatmap(Chart):
    """The use of each core and GPU over time: `run.plot.heatmap`."""

    def __init__(
        self,
        metrics_reader: SystemMetricsReader,
        select_metrics: Sequence[str] = (),
        starttime: float = 0,
        endtime: float | None = None,
        select_dimensions: Sequence[str] = (".*CPU", ".*GPU"),
        select_events: Sequence[str] = (".*",),
        plot_height: int = 350,
        show_workers: bool = True,
    ) -> None:
        super().__init__(metrics_reader.run)
        self.rows = chosen_rows(self.run, select_dimensions, select_events)
        self.start, self.end = elapsed(self.run, starttime), elapsed(self.run, endtime)
        self.plot_height, self.by_node = plot_height, show_workers
        self.create_plot()

    def create_plot(self) -> None:
        """Draws a row per core, GPU and node of the selected dimensions, and their means ("total").

        Without workers, it draws those of all nodes together.
        """
        self.show([self._heatmap])

    def _heatmap(self) -> Any:
        drawn = self.run.plot.heatmap(self.rows, self.start, self.end, self.by_node)
        return drawn.properties(height=self.plot_height)
