"""The analysis of data loaders (smdebug.profiler.analysis.utils.pytorch_dataloader_analysis)."""

from collections.abc import Sequence
from typing import Any

from stepscope.compat.smdebug.profiler import LocalAlgorithmMetricsReader, LocalSystemMetricsReader
from stepscope.compat.smdebug.profiler.analysis.notebook_utils.timeline_charts import TimelineCharts
from stepscope.compat.smdebug.profiler.analysis.utils.profiler_data_to_pandas import PandasFrame

LONG = 2.0  # an outlier takes at least this many times the median


class PT_dataloader_analysis:  # noqa: N801  # smdebug's name
    """Settings of the loaders, fetches of their workers, and waits of the steps for their batches.

    Methods print what they find. Those on waits return the outliers, a data frame, or None without any.
    """

    def __init__(self, pandas_frame: PandasFrame) -> None:
        self.pd_data_frame = pandas_frame
        self.loaders = pandas_frame.run.loaders().to_pylist()
        self.dataIter_metric = pandas_frame.get_all_dataloader_metrics()

    def analyze_dataloaderIter_initialization(self) -> None:  # noqa: N802
        """Prints the settings of each loader."""
        for each in self.loaders:
            shown = ("phase", "workers", "pin_memory", "prefetch_factor", "batch_size")
            print(f"rank {each['rank']}: " + ", ".join(f"{name} {each[name]}" for name in shown))
        if not self.loaders:
            print("No data loader was seen.")

    def analyze_dataloaderWorkers(self) -> None:  # noqa: N802
        """Prints how long the workers of each loader fetched; single fetches are not recorded."""
        timed = [each for each in self.loaders if each["fetches"]]
        for each in timed:
            mean = each["fetch_seconds"] / each["fetches"]
            workers = f"{each['workers']} workers of rank {each['rank']}"
            print(f"{workers}: {each['fetches']} fetches, {mean:.4g} s each")
        if not timed:
            print("No fetch of a worker was timed.")

    def analyze_dataloader_getnext(self) -> Any:
        """Prints how long steps waited for their batches."""
        waits, took = self.dataIter_metric, self.dataIter_metric["duration_us"]
        print(f"{len(waits)} waits, median {took.median()}, longest {took.max()} us")
        return _outliers(waits, "duration_us", ["start_time", "end_time", "duration_us"])

    def analyze_batchtime(self) -> Any:
        """Prints the time from one wait to the next of each rank, as far as steps waited at all."""
        waits = self.dataIter_metric.sort_values(["nodeID", "pid", "start_time_us"])
        by_rank = waits.groupby(["nodeID", "pid"])
        waits = waits.assign(
            BatchTime_in_seconds=by_rank["start_time_us"].diff() / 1e6,
            previous_batch_start=by_rank["start_time"].shift(),
        )
        print(f"median time of a batch: {waits['BatchTime_in_seconds'].median()} s")
        columns = ["previous_batch_start", "start_time", "BatchTime_in_seconds"]
        return _outliers(waits, "BatchTime_in_seconds", columns)

    def plot_the_window(
        self,
        start_timestamp: float,
        end_timestamp: float,
        select_events: Sequence[str] = (".*",),
        select_dimensions: Sequence[str] = (".*",),
    ) -> TimelineCharts:
        """Draws the use of cores and GPUs between two times, microseconds since the epoch."""
        path = self.pd_data_frame.run.source
        readers = LocalSystemMetricsReader(path), LocalAlgorithmMetricsReader(path)
        return TimelineCharts(*readers, start_timestamp, end_timestamp, select_dimensions, select_events)


def _outliers(rows: Any, column: str, columns: list[str]) -> Any:
    """Returns the rows far above the median, the largest first; None if there are none."""
    found = rows[rows[column] >= LONG * rows[column].median()].sort_values(column, ascending=False)
    return found[columns].reset_index(drop=True) if len(found) else None
