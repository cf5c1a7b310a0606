"""Statistics of data frames (smdebug.profiler.analysis.utils.pandas_data_analysis)."""

from collections.abc import Sequence
from enum import Enum
from importlib import import_module
from typing import Any

from stepscope.compat.smdebug.given import several
from stepscope.compat.smdebug.not_served import say_unknown
from stepscope.runs.debugger.system import CPU, GPU

_QUANTILES = (0.5, 0.95, 0.99)


class StatsBy(Enum):
    """Groups of steps: all three are the same, because every event here is a step."""

    TRAINING_PHASE = "training_phase"
    FRAMEWORK_METRICS = "framework_metric"
    PROCESS = "process"


class Resource(Enum):
    """Groups of readings, by their type."""

    CPU = "cpu"
    GPU = "gpu"
    IO = "i/o"
    NETWORK = "network"
    MEMORY = "memory"


class PandasFrameAnalysis:
    """Statistics of the frames of PandasFrame: `system_df` of samples, `framework_df` of steps."""

    def __init__(self, system_df: Any, framework_df: Any) -> None:
        self.sys_metrics_df = system_df
        self.framework_metrics_df = framework_df

    def get_job_statistics(self) -> dict[str, Any]:
        """Returns when the job and its loop began and ended, and microseconds and percent of its parts."""
        samples, steps = self.sys_metrics_df, self.framework_metrics_df
        begin, end = samples["timestamp_us"].min(), samples["timestamp_us"].max()
        first, last = steps["start_time_us"].min(), steps["end_time_us"].max()
        parts = {
            "initialization": first - begin,
            "training_loop": last - first,
            "finalization": max(end - last, 0),
        }
        return {
            "start_time": samples["timestamp"].min(),
            "end_time": samples["timestamp"].max(),
            "job_duration": end - begin,
            "training_loop_start": steps["start_time"].min(),
            "training_loop_end": steps["end_time"].max(),
            "training_loop_duration": parts["training_loop"],
            "initialization": parts["initialization"],
            "finalization": parts["finalization"],
            **{f"{name}_%": 100 * spent / (end - begin) for name, spent in parts.items()},
        }

    def get_step_statistics(self, by: StatsBy = StatsBy.TRAINING_PHASE) -> Any:
        """Returns microseconds per phase; a step lasts from its first rank's start to its last one's end.

        Numbers begin at 0 again in each attempt of a restarted run.
        """
        frame = self.framework_metrics_df.sort_values("start_time_us", kind="stable")
        numbers = frame.groupby(["framework_metric", "nodeID", "process"])["step"]
        attempt = numbers.transform(lambda steps: (steps.diff() < 0).cumsum())
        steps = frame.assign(attempt=attempt).groupby(["framework_metric", "attempt", "step"])
        took = steps["end_time_us"].max() - steps["start_time_us"].min()
        return _statistics(took.groupby("framework_metric"), [StatsBy(by).value], "duration_{}_us")

    def get_utilization_stats(
        self,
        resource: Resource | Sequence[Resource] | None = None,
        by: StatsBy | None = None,
        phase: str | Sequence[str] | None = None,
    ) -> Any:
        """Returns percent, or bytes per second, per resource and node. I/O wait counts for no resource.

        By StatsBy.TRAINING_PHASE also per interval of `get_training_phase_intervals(phase)`.
        """
        samples = self.sys_metrics_df
        samples = samples[samples["dimension"].isin([CPU, GPU]) | ~samples["type"].isin(["cpu", "gpu"])]
        samples = samples[samples["type"].isin(_types(resource, tuple(Resource)))]
        columns = {"type": "Resource", "nodeID": "nodeID"}
        if by is not None and StatsBy(by) is StatsBy.TRAINING_PHASE:
            samples = samples.assign(phase=None)
            for each in self.get_training_phase_intervals(phase).to_dict("records"):
                within = samples["timestamp_us"].between(each["start_time_us"], each["end_time_us"])
                samples.loc[within, "phase"] = each["phase"]
            columns = {"type": "Resource", "phase": "Training_phase", "nodeID": "nodeID"}
        groups = samples.groupby(list(columns))["value"]
        return _statistics(groups, list(columns.values()), "utilization_{}")

    def get_training_phase_intervals(self, phase: str | Sequence[str] | None = None) -> Any:
        """Returns a row per stretch of steps of these phases, and before, between and after them.

        Its columns are start_time_us, end_time_us and phase: Step:ModeKeys.TRAIN, "Before ...". By default
        of all phases. Without such steps, the frame has no rows.
        """
        steps, samples = self.framework_metrics_df.sort_values("start_time_us"), self.sys_metrics_df
        if phase is not None:
            wanted = several(phase)
            say_unknown(wanted, steps["framework_metric"].unique(), "phase")
            steps = steps[steps["framework_metric"].isin(wanted)]
        rows: list[tuple[float, float, str]] = []
        if len(steps):
            rows.append((samples["timestamp_us"].min(), steps["start_time_us"].min() - 1, "Before "))
        columns = ("start_time_us", "end_time_us", "framework_metric")
        for start, end, name in zip(*(steps[column] for column in columns), strict=True):
            before, last, running = rows[-1]
            if running == name:
                rows[-1] = (before, max(last, end), name)
            elif running == "Before ":
                rows[-1:] = [(before, last, running + name), (start, end, name)]
            else:
                between = "Between " + " and ".join(sorted([running, name]))
                rows += [(last + 1, start - 1, between), (start, end, name)]
        if rows:
            _, last, running = rows[-1]
            rows.append((last + 1, samples["timestamp_us"].max(), f"After {running}"))
        return import_module("pandas").DataFrame(rows, columns=["start_time_us", "end_time_us", "phase"])

    def get_device_usage_stats(
        self,
        device: Resource | Sequence[Resource] | None = None,
        utilization_ranges: Sequence[tuple[float, float]] | None = None,
    ) -> Any:
        """Returns how many readings of cores or GPUs were in each range of percent: the first that fits."""
        ranges = utilization_ranges or [(90, 100), (10, 90), (0, 10)]
        samples = self.sys_metrics_df
        samples = samples[samples["dimension"].isin([CPU, GPU])]
        samples = samples[samples["type"].isin(_types(device, (Resource.CPU, Resource.GPU)))]
        rows: list[list[Any]] = []
        for place, values in samples.groupby(["type", "nodeID"])["value"]:
            fits = [next((each for each in ranges if each[0] <= x <= each[1]), None) for x in values]
            rows.append([*place, *map(fits.count, sorted(ranges))])
        return import_module("pandas").DataFrame(rows, columns=["type", "nodeID", *sorted(ranges)])


def _types(given: Resource | Sequence[Resource] | None, every: Sequence[Resource]) -> list[str]:
    chosen = every if given is None else [given] if isinstance(given, (Resource, str)) else given
    return [Resource(resource).value for resource in chosen]


def _statistics(groups: Any, keys: list[str], name: str) -> Any:
    """Returns a row per group, with the `keys` as first columns, and a column per statistic."""
    values = {key: getattr(groups, key)() for key in ("mean", "min", "max")}
    values |= {f"p{100 * quantile:.0f}": groups.quantile(quantile) for quantile in _QUANTILES}
    frame = import_module("pandas").DataFrame({name.format(key): each for key, each in values.items()})
    frame.index.names = keys
    return frame.reset_index()
