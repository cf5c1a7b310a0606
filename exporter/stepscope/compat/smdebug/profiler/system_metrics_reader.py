"""Readers of samples (smdebug.profiler.system_metrics_reader)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from stepscope.compat.smdebug.events import microseconds, system_events
from stepscope.compat.smdebug.profiler.metrics_reader_base import MetricsReaderBase


@dataclass(frozen=True)
class ProfilerSystemEvent:
    """One reading of one core, GPU or node."""

    timestamp: float  # seconds since the epoch
    value: float  # percent, or bytes per second
    name: str  # cpu0
    dimension: str  # CPUUtilization
    node_id: str
    type: str  # cpu, gpu, memory, network or i/o


class SystemMetricsReader(MetricsReaderBase):
    """Reads samples: a ProfilerSystemEvent per reading."""

    def _events(self, start_us: float, end_us: float, suffixes: Sequence[str] | None) -> list[Any]:
        rows = zip(*self._read.of(system_events, start_us, end_us).to_pydict().values(), strict=True)
        return [ProfilerSystemEvent(time_us / 1e6, *rest) for time_us, *rest in rows]

    def get_timestamp_of_latest_available_file(self) -> int:
        """Returns the time of the last sample; 0 if there is none."""
        return microseconds(pc.max(self.run.samples(columns=["time"])["time"]).as_py())


class LocalSystemMetricsReader(SystemMetricsReader):
    """Reads a run by its path or name."""


class S3SystemMetricsReader(SystemMetricsReader):
    """Reads a run at s3://, which needs the extra `remote`."""
