"""The merged timeline (smdebug.profiler.analysis.utils.merge_timelines)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from stepscope import analysis
from stepscope.compat.smdebug.events import elapsed, times_of_steps
from stepscope.compat.smdebug.not_served import not_served
from stepscope.report.merged_timeline import NAME


class MergeUnit(Enum):
    """The unit of `start` and `end`."""

    TIME = "time"
    STEP = "step"


class MergedTimeline:
    """Steps, operators and samples as one trace for ui.perfetto.dev: `run.write_timeline`."""

    def __init__(
        self,
        path: str,
        file_suffix_filter: Sequence[str] | None = None,
        output_directory: str | None = None,
    ) -> None:
        if file_suffix_filter is not None:
            raise not_served(
                "file_suffix_filter", "the timeline has everything; hide rows in ui.perfetto.dev"
            )
        self.run = analysis.open(path)
        self.out_dir = output_directory or self.run.source

    def merge_timeline(
        self,
        start: float,
        end: float,
        unit: MergeUnit | str = MergeUnit.TIME,
        sys_metrics_filter: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes what happened between two times (microseconds since the epoch) or steps; prints the path."""
        if MergeUnit(unit) is MergeUnit.STEP:
            start, end = times_of_steps(self.run, int(start), int(end))
        times = elapsed(self.run, start), elapsed(self.run, end)
        print(self.run.write_timeline(Path(self.out_dir) / NAME, *times))
