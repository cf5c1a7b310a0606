"""Samples over time, and what ran then (smdebug.profiler.analysis.notebook_utils.timeline_charts)."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from numbers import Integral
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stepscope.analysis import UserError
from stepscope.analysis.plots import MOST_STEPS
from stepscope.compat.smdebug.events import (
    chosen_rows,
    elapsed,
    framework_events,
    microseconds,
    part_events,
    single_events,
)
from stepscope.compat.smdebug.given import begin_of_last
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
