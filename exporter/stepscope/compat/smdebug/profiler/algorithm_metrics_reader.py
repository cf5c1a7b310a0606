"""Readers of steps (smdebug.profiler.algorithm_metrics_reader)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from stepscope.compat.smdebug.events import events_of_files, framework_events
from stepscope.compat.smdebug.profiler.metrics_reader_base import MetricsReaderBase


@dataclass(frozen=True)
class TraceEvent:
    """One step of one rank, or another event. Times are in microseconds; the first two: since the epoch."""

    start_time: int
    end_time: int
    duration: int
    event_name: str  # Step:ModeKeys.TRAIN
    event_phase: str  # its kind: of a step, the same
    event_args: dict[str, int]  # step_num; -1: not known
    node_id: str
    pid: int  # the rank


class AlgorithmMetricsReader(MetricsReaderBase):
    """Reads steps: a TraceEvent per step and rank. A filter of files adds parts of steps and operators."""

    def _events(self, start_us: float, end_us: float, suffixes: Sequence[str] | None) -> list[Any]:
        if suffixes is None:
            found = self._read.of(framework_events, start_us, end_us)
        else:
            found = events_of_files(self._read, suffixes, start_us, end_us)
        rows = zip(*found.to_pydict().values(), strict=True)
        return [
            TraceEvent(start, end, end - start, name, kind, {"step_num": step}, node, rank)
            for start, end, name, kind, step, node, rank in rows
        ]

    def get_timestamp_of_latest_available_file(self) -> int:
        """Returns the end of the last step; 0 if there is none."""
        return pc.max(self._read.of(framework_events)["end_us"]).as_py() or 0


class LocalAlgorithmMetricsReader(AlgorithmMetricsReader):
    """Reads a run by its path or name."""


class S3AlgorithmMetricsReader(AlgorithmMetricsReader):
    """Reads a run at s3://, which needs the extra `remote`."""
