"""The training job and the charts of notebooks: those of `run.plot` (smdebug's analysis.notebook_utils)."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from importlib import import_module
from numbers import Integral
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stepscope import analysis
from stepscope.analysis import Run, UserError
from stepscope.analysis.plots import MOST_STEPS, ROWS
from stepscope.common.status import Status
from stepscope.compat.smdebug.events import (
    PARTS,
    STEP_NAMES,
    chosen_rows,
    elapsed,
    framework_events,
    microseconds,
    part_events,
    single_events,
)
from stepscope.compat.smdebug.given import begin_of_last, matches, not_served, several
from stepscope.compat.smdebug.readers import (
    AlgorithmMetricsReader,
    S3AlgorithmMetricsReader,
    S3SystemMetricsReader,
    SystemMetricsReader,
)
from stepscope.report.verdict import status_of_run

# The part of ProfilingParameters that a kind of profile window is, and what else it says.
_CONFIGS: dict[str | None, tuple[str, dict[str, str]]] = {
    "operators": ("DetailedProfilingConfig", {}),
    "python": ("PythonProfilingConfig", {"ProfilerName": "cprofile"}),
}

ENDED = {Status.FAILED: "Failed", Status.STOPPED: "Stopped"}  # SageMaker's words


class TrainingJob:
    """A run by its name, as in `stepscope report NAME`, or by its path. Raises UserError if there is none."""

    def __init__(self, training_job_name: str, region: str | None = None) -> None:
        run = analysis.open(training_job_name)
        self.name = training_job_name
        self.profiler_s3_output_path = run.source  # which every class here accepts as its path
        self.profiler_config: dict[str, Any] = {
            "ProfilingIntervalInMilliseconds": round(1000 * run.interval),
            "ProfilingParameters": _parameters(run),
        }
        self.system_metrics_reader: S3SystemMetricsReader | None = None
        self.framework_metrics_reader: S3AlgorithmMetricsReader | None = None

    def get_sm_client(self, *_: Any, **__: Any) -> Any:
        """Raises NotImplementedError: nothing here is at AWS."""
        raise not_served("get_sm_client()", 'use boto3.client("sagemaker")')

    def wait_for_sys_profiling_data_to_be_available(self) -> None:
        """Waits for samples. Raises UserError if the run ends without."""
        reader = self.system_metrics_reader = S3SystemMetricsReader(self.profiler_s3_output_path)
        reader.run.wait_for_data()

    def wait_for_framework_profiling_data_to_be_available(self) -> None:
        """Waits for steps. Raises UserError if the run ends without."""
        reader = self.framework_metrics_reader = S3AlgorithmMetricsReader(self.profiler_s3_output_path)
        reader.run.wait_for_data("steps")

    def get_systems_metrics_reader(self) -> S3SystemMetricsReader | None:
        """Returns the reader of samples; None before they were waited for."""
        return self.system_metrics_reader

    def get_framework_metrics_reader(self) -> S3AlgorithmMetricsReader | None:
        """Returns the reader of steps; None before they were waited for."""
        return self.framework_metrics_reader

    def describe_training_job(self) -> dict[str, Any]:
        """Returns what is known of the fields of SageMaker's answer: name, state, times, interval."""
        run = analysis.open(self.profiler_s3_output_path)
        start, took, end = run.start, run.duration, {}
        if run.finished and start is not None and took is not None:
            end = {"TrainingEndTime": start + timedelta(seconds=took)}
        status = status_of_run(run._evaluated.analysis)
        ended = ENDED.get(status, "Completed" if run.finished else None)
        return {
            "TrainingJobName": self.name,
            "TrainingJobStatus": ended or "InProgress",
            "SecondaryStatus": ended or "Training",
            "TrainingStartTime": start,
            "ProfilerConfig": self.profiler_config,
            **end,
        }

    def get_config_and_profiler_s3_output_path(self) -> tuple[dict[str, Any], str]:
        """Returns the interval of samples with the steps of profile windows, and the run's path."""
        return self.profiler_config, self.profiler_s3_output_path


def _parameters(run: analysis.Run) -> dict[str, str]:
    """Returns the steps of the first profile window of each kind, as SageMaker's SDK has them: in JSON."""
    found: dict[str, str] = {}
    for row in run.windows().filter(pc.field("last").is_valid()).to_pylist():
        if row["kind"] in _CONFIGS:
            part, more = _CONFIGS[row["kind"]]
            steps = {"StartStep": row["first"], "NumSteps": row["last"] - row["first"] + 1}
            found.setdefault(part, json.dumps(steps | more))
    return found


class Chart(ABC):
    """A chart of a run, which `update_data` draws again."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.charts: list[Any] = []  # of Altair, as drawn last

    @abstractmethod
    def create_plot(self) -> None:
        """Draws it."""

    def update_data(self, current_timestamp: float) -> None:
        """Reads the run again and draws what there is by now, up to its end."""
        self.run.refresh()
        self.create_plot()

    def clear(self) -> None:
        """Forgets what was drawn."""
        self.charts = []

    def show(self, makers: Iterable[Callable[[], Any]]) -> None:
        """Shows each chart that has data, and prints why others have none. Raises UserError if all do."""
        self.charts, missing = [], []
        for make in makers:
            try:
                self.charts.append(make())
            except UserError as error:
                missing.append(error)
        if not self.charts:
            raise missing[0]
        print(*missing, sep="\n", end="\n" if missing else "")
        for chart in self.charts:
            import_module("IPython.display").display(chart)


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
        """Draws the steps, or the parts of steps, of each phase that one of the regular expressions matches.

        There is an outline per rank, or without workers one of all.
        """
        self.by_rank = show_workers
        self.start, self.end = elapsed(self.run, starttime), elapsed(self.run, endtime)
        found = {
            metric: [drawn for name, drawn in self._known() if matches(metric, name)]
            for metric in several(select_metrics)
        }
        self.chosen = list(dict.fromkeys(each for drawn in found.values() for each in drawn))
        missing = [metric for metric, drawn in found.items() if not drawn]
        error = not_served(f"a histogram of {missing}", "the run has none; see run.steps(), run.events()")
        if not self.chosen:
            raise error
        if missing:
            print(error)
        self.create_plot()

    def create_plot(self) -> None:
        """Draws what `plot` has chosen."""
        histogram, shown = self.run.plot.step_histogram, (self.start, self.end, self.by_rank)
        self.show(partial(histogram, phase, *shown, value) for phase, value in self.chosen)

    def _known(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yields the name of each metric that the run has, with its phase and column of Run.steps."""
        steps = self.run.steps()
        there = [phase for phase in STEP_NAMES if phase in set(steps["phase"].to_pylist())]
        yield from ((STEP_NAMES[phase], (phase, "duration_seconds")) for phase in there)
        for component, (name, _) in PARTS.items():
            column = f"{component}_seconds"
            timed = set(steps.filter(pc.field(column) > 0)["phase"].to_pylist())
            yield from ((name, (phase, column)) for phase in there if phase in timed)


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
        self.by_node, self.x = show_workers, x
        self.rows = chosen_rows(self.run, select_dimensions, select_events)
        self.create_plot()

    def create_plot(self) -> None:
        """Draws the last `x` samples of what was selected."""
        times = self.run.samples(start=self.start, end=self.end, columns=["elapsed_seconds"])
        every = sorted(set(times["elapsed_seconds"].to_pylist()))
        latest = begin_of_last(self.x, "x", every)
        start = self.start if latest is None else latest
        self.show([partial(self.run.plot.utilization, start, self.end, self.by_node, self.rows)])

    def find_time_annotations(self, indexes: Sequence[int]) -> None:
        """Prints the seconds of steps, their parts and other events, of all ranks, between two samples."""
        start, end = self._times(indexes)
        print(f"from {start:.3f} s to {end:.3f} s of the run:")
        spent: Counter[str] = Counter()
        for event in self._events(start, end).to_pylist():
            number = f"_{event['step']}" if event["step"] >= 0 else ""
            spent[event["name"] + number] += event["end_us"] - event["start_us"]
        for name, took in spent.most_common():
            print(f"{took / 1e6:.3f} s in {name}")

    def plot_detailed_profiler_data(self, indexes: Sequence[int]) -> None:
        """Draws the steps, their parts and other events between two samples: a row per kind."""
        self.show([partial(self._detailed, *self._times(indexes))])

    def _detailed(self, start: float, end: float) -> Any:
        events = self._events(start, end)
        events = events.append_column("took", pc.subtract(events["end_us"], events["start_us"]))
        longest = events.sort_by([("took", "descending")]).slice(0, MOST_STEPS)
        begin = microseconds(self.run.start)
        rows = [
            {**event, **{f"{at}_seconds": (event[f"{at}_us"] - begin) / 1e6 for at in ("start", "end")}}
            for event in longest.to_pylist()
        ]
        if not rows:
            raise UserError(f"no event is known from {start:.3f} s to {end:.3f} s of the run")
        if len(rows) < len(events):
            print(f"The chart has the {len(rows)} longest of {len(events)} events.")
        alt = import_module("altair")
        chart = alt.Chart(alt.Data(values=rows)).mark_bar(stroke="white", strokeWidth=0.3)
        x = alt.X("start_seconds:Q", title="seconds since the run's start", scale=alt.Scale(zero=False))
        shown = ["name:N", "step:Q", "rank:N", "start_seconds:Q", "end_seconds:Q"]
        encoded = chart.encode(x=x, x2="end_seconds:Q", y="kind:N", color="kind:N", tooltip=shown)
        return encoded.properties(width=700).interactive(bind_y=False)

    def _events(self, start: float, end: float) -> pa.Table:
        begin = microseconds(self.run.start)
        times = begin + start * 1e6, begin + end * 1e6
        steps, parts = framework_events(self.run, *times), part_events(self.run, *times)
        singles = single_events(self.run, *times).select(steps.column_names)
        return pa.concat_tables([steps, parts, singles])

    def _times(self, indexes: Sequence[int]) -> tuple[float, float]:
        """Returns seconds since the run's start of the first and the last of these samples."""
        times = self.run.samples(columns=["elapsed_seconds"])["elapsed_seconds"].to_pylist()
        given = list(indexes or ())
        known = given and all(isinstance(each, Integral) for each in given)
        if not known or not 0 <= min(given) < len(times):
            raise UserError(f"indexes={indexes!r}: give numbers of samples, from 0 to {len(times) - 1}")
        return times[min(given)], times[min(max(given), len(times) - 1)]
