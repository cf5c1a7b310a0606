"""What a counter counted, from its readings."""

from __future__ import annotations

import numpy as np

from trainwatch.measurements.state import State
from trainwatch.runs.model import Times


class Last(State):
    """The last reading of a counter, or NaN before the first one."""

    def __init__(self) -> None:
        self.value = np.nan


def increases(readings: Times, last: Last, *, anew: bool) -> Times:
    """What each reading adds to the one before; 0 for the first one of all, which only says where it begins.

    A counter that is smaller than before has begun anew, at 0: with `anew` it then counted what it says,
    without it nothing is taken for counted. No reading may be NaN.
    """
    if not len(readings):
        return readings
    added: Times = np.diff(readings, prepend=last.value)
    fallen = added < 0
    added[fallen] = readings[fallen] if anew else 0.0
    last.value = float(readings[-1])
    return np.nan_to_num(added, nan=0.0)
