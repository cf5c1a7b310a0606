"""Defines the state that is kept while a run is read, and the small states that measurements share."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepscope.runs.model import Times

# The ends of scans in a block of rows: `scans[i]` rows of the block (0 or more) belong to scan i or to an
# earlier one. Most blocks contain the ends of several scans, some contain none.
Scans = NDArray[np.intp]

Numbers = NDArray[np.floating[Any]]

S = TypeVar("S", bound="State")


class State:
    """A state whose attributes are numbers, strings, states, lists and dicts of these, functions, and arrays.

    Arrays are replaced, never changed in place, so `copy` can share them: it is cheap at any moment.
    """

    def copy(self: S) -> S:
        """Returns an independent copy."""
        twin = type(self).__new__(type(self))
        twin.__dict__ = {name: _copied(value) for name, value in self.__dict__.items()}
        return twin


def _copied(value: Any) -> Any:
    if isinstance(value, State):
        return value.copy()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value


class HighestSinceScan(State):
    """The highest reading of each of several columns since the scan before."""

    def __init__(self) -> None:
        self.so_far: Numbers | None = None  # (columns,) since the last scan

    def add(self, values: Numbers, scans: Scans) -> Numbers:
        """Adds (n, columns) readings, which may have more columns than before.

        Returns (scans, columns) the highest reading that each scan finds, NaN where there was none.
        """
        before = np.full_like(values, np.nan, shape=values.shape[1])
        if self.so_far is not None:
            before[: len(self.so_far)] = self.so_far
        rows = np.concatenate((before[None], values))
        starts, ends = np.append(0, scans + 1), np.append(scans + 1, len(rows))
        highest: Numbers = np.full_like(values, np.nan, shape=(len(starts), values.shape[1]))
        highest[starts < ends] = np.fmax.reduceat(rows, starts[starts < ends], axis=0)
        self.so_far = highest[-1]
        return highest[:-1]


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
