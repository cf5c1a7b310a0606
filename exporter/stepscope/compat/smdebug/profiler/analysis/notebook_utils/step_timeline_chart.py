"""Steps over time (smdebug.profiler.analysis.notebook_utils.step_timeline_chart)."""

from functools import partial

from stepscope.compat.smdebug.given import begin_of_last
from stepscope.compat.smdebug.profiler.algorithm_metrics_reader import AlgorithmMetricsReader
from stepscope.compat.smdebug.profiler.analysis.notebook_utils.chart import Chart


class StepTimelineChart(Chart):
    """When the steps of all ranks ran: `run.plot.step_timeline`."""

    def __init__(self, metrics_reader: AlgorithmMetricsReader, width: int = 1000) -> None:
        super().__init__(metrics_reader.run)
        self.width = width
        self.create_plot()

    def create_plot(self) -> None:
        """Draws the last `width` steps."""
        starts = self.run.steps()["elapsed_seconds"].to_pylist()
        start = begin_of_last(self.width, "width", starts)
        self.show([partial(self.run.plot.step_timeline, start)])
