"""Readers of samples and of steps (smdebug.profiler and its modules *_reader*, utils)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pyarrow.compute as pc

from stepscope import analysis
from stepscope.analysis import UserError
from stepscope.compat.smdebug.events import (
    Events,
    events_of_files,
    framework_events,
    microseconds,
    system_events,
    times_of_steps,
)
from stepscope.compat.smdebug.given import number, say_unknown

WORDS = "%Y-%m-%dT%H:%M:%S:%f"  # of a time in UTC in Debugger's data frames


class TimeUnits(Enum):
    """The unit of a time since the epoch."""

    SECONDS = 1
    MILLISECONDS = 2
    MICROSECONDS = 3
    NANOSECONDS = 4


_MICROSECONDS = {
    TimeUnits.SECONDS: 1e6,
    TimeUnits.MILLISECONDS: 1e3,
    TimeUnits.MICROSECONDS: 1.0,
    TimeUnits.NANOSECONDS: 1e-3,
}


def convert_utc_timestamp_to_microseconds(
    timestamp: float, unit: TimeUnits = TimeUnits.MICROSECONDS
) -> float:
    """Returns a time in microseconds."""
    if not isinstance(unit, TimeUnits):
        raise UserError(f"unit={unit!r}: choose one of {', '.join(map(str, TimeUnits))}")
    microseconds: float = number(timestamp, "time") * _MICROSECONDS[unit]
    return microseconds


def us_since_epoch_to_human_readable_time(us_since_epoch: float) -> str:
    """Returns a time in UTC, as Debugger's data frames have it."""
    return datetime.fromtimestamp(us_since_epoch / 1e6, UTC).strftime(WORDS)


class MetricsReaderBase(ABC):
    """Reads the events of a run, which is `run`. Raises UserError if there is no run at `path`.

    With `use_in_memory_cache`, it reads them once, until `refresh_event_file_list`.
    """

    def __init__(self, path: str, use_in_memory_cache: bool = False) -> None:
        self.run = analysis.open(path)
        self._read = Events(self.run, use_in_memory_cache)

    @abstractmethod
    def _events(self, start_us: float, end_us: float, suffixes: Sequence[str] | None) -> list[Any]: ...

    @abstractmethod
    def get_timestamp_of_latest_available_file(self) -> int:
        """Returns until when there are events; 0 if there are none."""

    def get_timestamp_of_first_available_file(self) -> int:
        """Returns when the run began; 0 if unknown."""
        return microseconds(self.run.start)

    def refresh_event_file_list(self) -> None:
        """Reads the run again: later events include what was recorded meanwhile."""
        self._read.refresh()

    def get_events(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,
        file_suffix_filter: Sequence[str] | None = None,
    ) -> list[Any]:
        """Returns the events between two times, in order of time. `event_type` (of samples): cpu, gpu, ...

        `file_suffix_filter`: only those that Debugger writes into such files: pythontimeline.json, ...
        """
        start, end = (convert_utc_timestamp_to_microseconds(time, unit) for time in (start_time, end_time))
        events = self._events(start, end, file_suffix_filter)
        if event_type is None:
            return events
        types = [getattr(event, "type", "step") for event in events]
        say_unknown([event_type], dict.fromkeys(types), "type of events")
        return [event for event, known in zip(events, types, strict=True) if known == event_type]

    def get_events_by_step(
        self,
        start_step: int,
        end_step: int,
        event_type: str | None = None,
        file_suffix_filter: Sequence[str] | None = None,
    ) -> list[Any]:
        """Returns the events from one training step to another one, both included."""
        times = times_of_steps(self.run, start_step, end_step)
        return self.get_events(*times, TimeUnits.MICROSECONDS, event_type, file_suffix_filter)


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
