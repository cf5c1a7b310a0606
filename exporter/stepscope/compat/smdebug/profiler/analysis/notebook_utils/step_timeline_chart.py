"""Steps over time (smdebug.profiler.analysis.notebook_utils.step_timeline_chart)."""

from __future__ import annotations

from stepscope.compat.smdebug.profiler.algorithm_metrics_reader import AlgorithmMetricsReader
from stepscope.compat.smdebug.profiler.analysis.notebook_utils.chart import Chart


class StepTimelineChart(Chart):
    """When the steps of all ranks ran: `run.plot.step_timeline`."""

    def __init__(self, metrics_reader: AlgorithmMetricsReader, width: int = 1000) -> None:
        super().__init__(metrics_reader.run)
        self.create_plot()

    def create_plot(self) -> None:
        """Draws the steps of the whole run."""
        self.show([self.run.plot.step_timeline])
