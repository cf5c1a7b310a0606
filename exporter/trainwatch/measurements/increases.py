"""Computes the increases of a counter from its readings."""

from __future__ import annotations

import numpy as np

from trainwatch.measurements.state import State
from trainwatch.runs.model import Times


class Last(State):
    """The last reading of a counter, or NaN before the first one."""

    def __init__(self) -> None:
        self.value = np.nan


def increases(readings: Times, last: Last, *, after_reset: bool) -> Times:
    """Returns the increase of each reading since the one before; 0 for the very first one.

    A counter that is smaller than before was reset to 0. Its reading then counts with `after_reset`, and
    nothing counts without it. No reading may be NaN.
    """
    if not len(readings):
        return readings
    added: Times = np.diff(readings, prepend=last.value)
    fallen = added < 0
    added[fallen] = readings[fallen] if after_reset else 0.0
    last.value = float(readings[-1])
    return np.nan_to_num(added, nan=0.0)
