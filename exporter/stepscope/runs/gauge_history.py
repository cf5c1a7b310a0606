"""The values of a gauge of the training over time, thinned so that those of a long run fit in memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST = 4096  # values per gauge and process
FINEST = 1.0  # seconds, the first resolution: a recording has at most one value per second


@dataclass(frozen=True, eq=False)
class GaugeHistory:
    """The n values of a gauge that one process published, in time order.

    A value holds until the next one; one that was published again is not repeated.
    """

    node: str
    rank: int
    pid: int
    start: float  # of the process, since the epoch
    name: str
    times: NDArray[np.float64]  # (n,) when the value was first seen, since the epoch
    values: NDArray[np.float64]  # (n,) NaN and infinity included

    @property
    def last(self) -> float:
        return float(self.values[-1])


class GrowingHistory:
    """The values of a gauge so far: all of them, or the last one in each period of equal length.

    Which are left does not depend on how many are added at once.
    """

    def __init__(self) -> None:
        self.times = self.values = np.empty(0)
        self._period = 0.0  # seconds; 0: all are kept

    def add(self, times: Sequence[float], values: Sequence[float]) -> None:
        """Adds later values."""
        self.times = np.concatenate((self.times, times))
        self.values = np.concatenate((self.values, values))
        self._thin()
        while len(self.times) > MOST:
            self._period = max(2 * self._period, FINEST)
            self._thin()

    def _thin(self) -> None:
        if self._period and len(self.times):
            last = np.append(np.diff(np.floor(self.times / self._period)) != 0, True)
            self.times, self.values = self.times[last], self.values[last]
