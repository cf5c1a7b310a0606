"""Samples and steps as data frames (smdebug.profiler.analysis.utils.profiler_data_to_pandas)."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stepscope import analysis
from stepscope.analysis import UserError
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
from stepscope.compat.smdebug.given import matches, several
from stepscope.compat.smdebug.not_served import not_served, say_unknown
from stepscope.compat.smdebug.profiler.utils import WORDS, us_since_epoch_to_human_readable_time

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
