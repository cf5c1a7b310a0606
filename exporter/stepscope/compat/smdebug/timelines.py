"""The merged timeline (smdebug.profiler.analysis.utils.merge_timelines)."""

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from stepscope import analysis
from stepscope.compat.smdebug.events import elapsed, files_of, times_of_steps
from stepscope.compat.smdebug.given import number
from stepscope.report.merged_timeline import KINDS, NAME, OPERATORS, SAMPLES, STEPS

LOW = 0.85  # of the library: a utilisation below it is low
LOW_GPU: Mapping[str, Any] = {"lowgpu": ()}


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
        self.run = analysis.open(path)
        self.files = None if file_suffix_filter is None else files_of(file_suffix_filter)
        self.out_dir = output_directory or self.run.source
        if output_directory:
            Path(output_directory).mkdir(parents=True, exist_ok=True)

    def merge_timeline(
        self,
        start: float,
        end: float,
        unit: MergeUnit | str = MergeUnit.TIME,
        sys_metrics_filter: Mapping[str, Any] | None = LOW_GPU,
    ) -> None:
        """Writes what happened between two times (microseconds since the epoch) or steps; prints the path.

        With a filter of files, there are no findings. Any filter of system metrics adds samples, and a row
        per GPU with the times in which it was used less than 85 %.
        """
        if MergeUnit(unit) is MergeUnit.STEP:
            start, end = times_of_steps(self.run, number(start, "start"), number(end, "end"))
        times = elapsed(self.run, start), elapsed(self.run, end)
        below = LOW if sys_metrics_filter else None
        print(self.run.write_timeline(Path(self.out_dir) / NAME, *times, self._kinds(below), below))

    def _kinds(self, below: float | None) -> set[str]:
        """Returns the parts of the timeline that are in the chosen files, and samples if they are wanted."""
        kinds = set(KINDS) - {SAMPLES}
        if self.files is not None:
            of_files = ((STEPS, {"python"}), (OPERATORS, {"trace"}))
            kinds = {kind for kind, files in of_files if files & self.files}
        return kinds if below is None else kinds | {SAMPLES}
