"""Samples and steps as data frames, and statistics of these (smdebug.profiler.analysis.utils)."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stepscope import analysis
from stepscope.analysis import UserError
from stepscope.compat.smdebug.charts import TimelineCharts
from stepscope.compat.smdebug.events import (
    FRAMEWORK,
    STEP_NAMES,
    SYSTEM,
    WAIT,
    WAIT_KIND,
    Events,
    framework_events,
    microseconds,
    part_events,
    selected_events,
    system_events,
    times_of_steps,
    wait_events,
)
from stepscope.compat.smdebug.given import matches, not_served, say_unknown, several
from stepscope.compat.smdebug.readers import (
    WORDS,
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
    us_since_epoch_to_human_readable_time,
)
from stepscope.runs.debugger.system import CPU, GPU

Intervals = Sequence[tuple[int, int]]  # begin and end, microseconds since the epoch


class PandasFrame:
    """The data frames of a run, which need pandas. Columns are Debugger's, and so are numbers: percent.

    With `use_in_memory_cache`, the run is read once for each kind of events. `scan_interval` has no effect.
    """

    def __init__(
        self, path: str, use_in_memory_cache: bool = False, scan_interval: int = 5_000_000_000
    ) -> None:
        self.run = analysis.open(path)
        self._events = Events(self.run, use_in_memory_cache)
        self.start_time = microseconds(self.run.start)
        self._cached: tuple[pa.Table, pa.Table] = (SYSTEM.empty_table(), FRAMEWORK.empty_table())

    def get_all_system_metrics(self, selected_system_metrics: Sequence[str] = ()) -> Any:
        """Returns a row per reading. The selection is of names: cpu0, gpu1, MemoryUsedPercent."""
        return self._system(_named(self._events.of(system_events), selected_system_metrics))

    def get_all_framework_metrics(self, selected_framework_metrics: Sequence[str] = ()) -> Any:
        """Returns a row per step and rank, or per event with a selected name or kind.

        Names are Step:ModeKeys.TRAIN, Forward-node, DataLoaderIter, cpu_functions, aten::conv2d, ...
        """
        return self._framework(selected_events(self._events, selected_framework_metrics))

    def get_all_dataloader_metrics(self, selected_framework_metrics: Sequence[str] = ()) -> Any:
        """Returns a row per wait for a batch, with duration_us. The selection is of regular expressions."""
        names = several(selected_framework_metrics)
        if names and not any(matches(f"^(?:{name})", each) for name in names for each in (WAIT, WAIT_KIND)):
            raise not_served(f"metrics of data loaders {names}", "use run.loaders()")
        frame = self._framework(self._events.of(wait_events))
        return frame.assign(duration_us=frame["end_time_us"] - frame["start_time_us"])

    def convert_datetime_to_timestamp(self, timestamp: datetime | str) -> int:
        """Returns microseconds since the epoch of a time in UTC, or of a time in words of a frame."""
        try:
            moment = timestamp if isinstance(timestamp, datetime) else datetime.strptime(timestamp, WORDS)
        except (TypeError, ValueError):
            raise UserError(
                f"{timestamp!r}: is not a time; give a datetime, or words as a frame has"
            ) from None
        return microseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))

    def get_framework_metrics_by_timesteps(
        self,
        timestep_list: Sequence[datetime | str] = (),
        selected_framework_metrics: Sequence[str] = (),
    ) -> tuple[dict[str, float], dict[str, int], dict[str, int]]:
        """Returns what ran at these times: kinds as shares, and microseconds of parts and of steps."""
        times = list(map(self.convert_datetime_to_timestamp, timestep_list))
        parts, steps = self._meanwhile([(time, time) for time in times], selected_framework_metrics)
        return _shares(_spent(parts, "kind")), _spent(parts), _spent(steps)

    def get_framework_metrics_by_begin_and_end_timesteps(
        self,
        begin_timestep_list: Sequence[datetime | str],
        end_timestep_list: Sequence[datetime | str],
        selected_framework_metrics: Sequence[str] = (),
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Returns the parts of steps in these intervals by kind and by name, as shares of the largest."""
        given = list(begin_timestep_list), list(end_timestep_list)
        if len(given[0]) != len(given[1]):
            raise UserError(f"{len(given[0])} times begin and {len(given[1])} end: give as many of both")
        ends = (map(self.convert_datetime_to_timestamp, each) for each in given)
        parts, _ = self._meanwhile(list(zip(*ends, strict=True)), selected_framework_metrics)
        return _shares(_spent(parts, "kind")), _shares(_spent(parts))

    def get_profiler_data_by_time(
        self,
        start_time_us: float,
        end_time_us: float,
        cache_metrics: bool = False,
        selected_framework_metrics: Sequence[str] = (),
        selected_system_metrics: Sequence[str] = (),
        get_framework_metrics: bool = True,
        get_system_metrics: bool = True,
    ) -> tuple[Any, Any]:
        """Returns the readings and the steps between two times; empty frames of what is not wanted.

        With `cache_metrics`, the frames begin with those of earlier calls.
        """
        readings, steps = SYSTEM.empty_table(), FRAMEWORK.empty_table()
        if get_system_metrics:
            of_time = self._events.of(system_events, start_time_us, end_time_us)
            readings = _named(of_time, selected_system_metrics)
        if get_framework_metrics:
            steps = selected_events(self._events, selected_framework_metrics, start_time_us, end_time_us)
        if cache_metrics:
            earlier = zip(self._cached, (readings, steps), strict=True)
            readings, steps = self._cached = tuple(map(pa.concat_tables, earlier))
        return self._system(readings), self._framework(steps)

    def get_profiler_data_by_step(
        self, start_step: int, end_step: int, cache_metrics: bool = False
    ) -> tuple[Any, Any]:
        """Returns the readings and the steps from one training step to another one, both included."""
        return self.get_profiler_data_by_time(*times_of_steps(self.run, start_step, end_step), cache_metrics)

    def _meanwhile(self, intervals: Intervals, names: Sequence[str]) -> tuple[pa.Table, pa.Table]:
        """Returns the parts of steps and others, and the steps, that overlap one of the intervals.

        An event is there as often as it overlaps one.
        """
        steps, parts = self._events.of(framework_events), self._events.of(part_events)
        if names:
            every = selected_events(self._events, names)
            is_step = pc.field("kind").isin(list(STEP_NAMES.values()))
            steps, parts = every.filter(is_step), every.filter(~is_step)
        return _overlapping(parts, intervals), _overlapping(steps, intervals)

    def _system(self, table: pa.Table) -> Any:
        columns = ["timestamp_us", "value", "system_metric", "dimension", "nodeID", "type"]
        frame = table.rename_columns(columns).to_pandas()
        frame.insert(0, "timestamp", _words(table["time_us"]))
        frame["timestamp_us"] -= self.start_time
        return frame

    def _framework(self, table: pa.Table) -> Any:
        columns = ["start_time_us", "end_time_us", "framework_metric", "process", "step", "nodeID", "pid"]
        frame = table.rename_columns(columns).to_pandas()
        for place, name in enumerate(("start", "end")):
            frame.insert(place, f"{name}_time", _words(table[f"{name}_us"]))
            frame[f"{name}_time_us"] -= self.start_time
        return frame.assign(bytes=-1, tid=0)


def _named(table: pa.Table, given: Sequence[str]) -> pa.Table:
    if names := several(given):
        say_unknown(names, pc.unique(table["name"]).to_pylist(), "system metric")
    return table.filter(pc.field("name").isin(names)) if names else table


def _overlapping(events: pa.Table, intervals: Intervals) -> pa.Table:
    """Returns the events that run in each interval. One that ends or begins at its end does not."""
    found = []
    for begin, end in intervals:
        until = max(end, begin + 1)
        found.append(events.filter((pc.field("start_us") < until) & (pc.field("end_us") > begin)))
    return pa.concat_tables([FRAMEWORK.empty_table(), *found])


def _spent(events: pa.Table, by: str = "name") -> dict[str, int]:
    """Returns the microseconds of the events by name, or by kind."""
    spent: Counter[str] = Counter()
    for row in events.to_pylist():
        spent[row[by]] += row["end_us"] - row["start_us"]
    return dict(spent)


def _shares(found: dict[str, int]) -> dict[str, float]:
    most = max(found.values(), default=0) or 1  # 0: they took less than a microsecond
    return {name: spent / most for name, spent in found.items()}


def _words(times: pa.ChunkedArray) -> list[str]:
    return [us_since_epoch_to_human_readable_time(time) for time in times.to_pylist()]


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
