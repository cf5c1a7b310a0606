"""Views of live windows: what was counted since a moment, as the difference of two measurements."""

from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.state import State
from stepscope.runs.model import Times

V_co = TypeVar("V_co", covariant=True)
Moments = NDArray[Any]  # (scans, ...) numbers, or (scans,) objects that can be subtracted

# Seconds: scans end at whole multiples of the scan interval, which times since the epoch do not hold exactly.
ROUNDING = 1e-3


class Cumulative(Protocol[V_co]):
    """A view of what was counted since the run began; it can be made from differences of its moments."""

    def moments(self) -> Moments:
        """Returns what was counted until each scan."""

    def of(self, moments: Moments) -> V_co:
        """Returns the view that has these moments."""


@runtime_checkable
class InThirds(Protocol):
    """A view that compares the thirds of its window."""

    def compare_thirds(self, last: Moments, two: Moments) -> None:
        """Takes what was counted in the last third, and in the last two."""


class LiveWindow(State, Generic[V_co]):
    """The moments of one subject in the last `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.times: Times = np.empty(0)
        self.past: Moments | None = None

    def views(self, view: Cumulative[V_co], times: Times) -> V_co:
        """Returns the view of the window that ends at each scan.

        It begins with the last scan at or before its start. A younger run is all in it. A view that compares
        the thirds of its window is given the last one and the last two.
        """
        new = view.moments()
        past = new if self.past is None else np.concatenate((_like(new, self.past), new))
        self.times = np.concatenate((self.times, times))
        found = view.of(self._gained(new, past, times, self.seconds))
        if isinstance(found, InThirds):
            found.compare_thirds(
                *(self._gained(new, past, times, thirds * self.seconds / 3) for thirds in (1, 2))
            )
        first = int(self._starts(times[-1:], self.seconds).clip(0).sum())  # 0 without times
        self.times, self.past = self.times[first:], past[first:]
        return found

    def _gained(self, new: Moments, past: Moments, times: Times, seconds: float) -> Moments:
        starts = self._starts(times, seconds)
        cut = starts >= 0
        gained: Moments = new.copy()
        gained[cut] = new[cut] - past[starts[cut]]
        return gained

    def _starts(self, times: Times, seconds: float) -> NDArray[np.intp]:
        """Returns the numbers of the last moments `seconds` or more before each time, -1 where none is."""
        starts: NDArray[np.intp] = np.searchsorted(self.times, times - seconds + ROUNDING, side="right") - 1
        return starts


def _like(new: Moments, past: Moments) -> Moments:
    """Returns the moments with the columns of `new`: 0 for devices that are counted since then."""
    if past.shape[1:] == new.shape[1:]:
        return past
    grown = [(0, 0), *((0, many - few) for many, few in zip(new.shape[1:], past.shape[1:], strict=True))]
    return np.pad(past, grown)
