"""Samples and steps as data frames (smdebug.profiler.analysis.utils.profiler_data_to_pandas)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from stepscope import analysis
from stepscope.compat.smdebug.events import (
    FRAMEWORK,
    SYSTEM,
    framework_events,
    microseconds,
    system_events,
    times_of_steps,
)
from stepscope.compat.smdebug.not_served import Instead, not_served
from stepscope.compat.smdebug.profiler.utils import us_since_epoch_to_human_readable_time


class PandasFrame(Instead):
    """The data frames of a run, which need pandas. Columns are Debugger's, and so are numbers: percent."""

    INSTEAD: ClassVar[dict[str, str]] = {
        "get_framework_metrics_by_timesteps": "use run.at(time).steps()",
        "get_framework_metrics_by_begin_and_end_timesteps": "use run.between((start, end)).steps()",
        "get_all_dataloader_metrics": "use run.loaders()",
    }

    def __init__(
        self, path: str, use_in_memory_cache: bool = False, scan_interval: int = 5_000_000_000
    ) -> None:
        self.run = analysis.open(path)
        self.start_time = microseconds(self.run.start)

    def get_all_system_metrics(self, selected_system_metrics: Sequence[str] = ()) -> Any:
        """Returns a row per reading. The selection is of names: cpu0, gpu1, MemoryUsedPercent."""
        return self._system(system_events(self.run), selected_system_metrics)

    def get_all_framework_metrics(self, selected_framework_metrics: Sequence[str] = ()) -> Any:
        """Returns a row per step and rank. The selection is of names: Step:ModeKeys.TRAIN."""
        return self._framework(framework_events(self.run), selected_framework_metrics)

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
        """Returns the readings and the steps between two times; empty frames of what is not wanted."""
        if cache_metrics:
            raise not_served("cache_metrics=True", "concatenate the frames with pandas.concat")
        readings, steps = SYSTEM.empty_table(), FRAMEWORK.empty_table()
        if get_system_metrics:
            readings = system_events(self.run, start_time_us, end_time_us)
        if get_framework_metrics:
            steps = framework_events(self.run, start_time_us, end_time_us)
        return (
            self._system(readings, selected_system_metrics),
            self._framework(steps, selected_framework_metrics),
        )

    def get_profiler_data_by_step(
        self, start_step: int, end_step: int, cache_metrics: bool = False
    ) -> tuple[Any, Any]:
        """Returns the readings and the steps from one training step to another one, both included."""
        return self.get_profiler_data_by_time(*times_of_steps(self.run, start_step, end_step), cache_metrics)

    def _system(self, table: pa.Table, names: Sequence[str]) -> Any:
        if names:
            table = table.filter(pc.field("name").isin(list(names)))
        columns = ["timestamp_us", "value", "system_metric", "dimension", "nodeID", "type"]
        frame = table.rename_columns(columns).to_pandas()
        frame.insert(0, "timestamp", _words(table["time_us"]))
        frame["timestamp_us"] -= self.start_time
        return frame

    def _framework(self, table: pa.Table, names: Sequence[str]) -> Any:
        if names:
            table = table.filter(pc.field("name").isin(list(names)))
            if not len(table) and not any(name.startswith("Step:") for name in names):
                raise not_served(f"framework metrics {list(names)}", "use run.components(), run.operators()")
        columns = ["start_time_us", "end_time_us", "framework_metric", "step", "nodeID", "pid"]
        frame = table.rename_columns(columns).to_pandas()
        for place, name in enumerate(("start", "end")):
            frame.insert(place, f"{name}_time", _words(table[f"{name}_us"]))
            frame[f"{name}_time_us"] -= self.start_time
        return frame.assign(process=frame["framework_metric"], bytes=-1, tid=0)


def _words(times: pa.ChunkedArray) -> list[str]:
    return [us_since_epoch_to_human_readable_time(time) for time in times.to_pylist()]
