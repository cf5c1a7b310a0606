"""Base class of the readers of samples and of steps (smdebug.profiler.metrics_reader_base)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from stepscope import analysis
from stepscope.compat.smdebug.events import Events, microseconds, times_of_steps
from stepscope.compat.smdebug.not_served import say_unknown
from stepscope.compat.smdebug.profiler.utils import TimeUnits, convert_utc_timestamp_to_microseconds


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
