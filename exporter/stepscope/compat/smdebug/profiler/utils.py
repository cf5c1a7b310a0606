"""Units of time (smdebug.profiler.utils)."""

from datetime import UTC, datetime
from enum import Enum

from stepscope.analysis import UserError
from stepscope.compat.smdebug.given import number

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
