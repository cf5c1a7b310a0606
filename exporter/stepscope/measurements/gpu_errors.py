"""The errors that the driver reported of each GPU, by XID, and whether it reached the GPU."""

from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.common.xids import XIDS, Xid, xid
from stepscope.measurements.measure import ByGpu, GpuMeasurement, Measure
from stepscope.measurements.state import Last, Scans, increases
from stepscope.runs.model import Floats, NodeSamples, Times

# Among the numbers of XID errors these stand for:
ECC = 0  # memory errors that ECC could not correct
UNKNOWN = -1  # an XID error of which only the count is known
LOST = -2  # the driver did not reach the GPU for longer than LOST_SECONDS
LOST_SECONDS = 120.0  # as the alert GPULost
_DESCRIBED = {
    ECC: Xid("memory errors that ECC could not correct", XIDS[48].remedy),
    LOST: Xid(
        "the driver no longer reached it",
        "Look for XID numbers in the machine's kernel log (dmesg). " + XIDS[79].remedy,
    ),
}


class ErrorCounts(NamedTuple):
    """A GPU's own errors: all of them in one array, or in an array for each kind that is counted apart.

    `known`: where any counter of errors was read.
    """

    known: NDArray[np.bool_]
    errors: tuple[Times, ...]

    def moments(self) -> Times:
        """Returns (scans, kinds) numbers; see Cumulative."""
        return np.column_stack(self.errors)

    def of(self, moments: Times) -> "ErrorCounts":
        return ErrorCounts(self.known, tuple(moments.T))


class ErrorsOfGpu(GpuMeasurement[ErrorCounts]):
    """The errors of one GPU since its first reading."""

    def __init__(self) -> None:
        self.last_xids, self.last_ecc = Last(), Last()
        self.lost_since: float | None = None
        self.readings = 0
        self.own = 0  # errors that are not the program's
        self.errors: dict[int, int] = {}  # by XID
        self.first: dict[int, float] = {}  # when each came first

    def observe(self, samples: NodeSamples, column: int, scans: Scans) -> ErrorCounts:
        xids, ecc = samples.gpu_xid_errors[:, column], samples.gpu_ecc_uncorrected_errors[:, column]
        there = ~(np.isnan(xids) & np.isnan(ecc))
        readings = self.readings + np.concatenate(([0], np.cumsum(there)))
        numbers = np.nan_to_num(samples.gpu_last_xid[:, column], nan=UNKNOWN)
        events = [(row, int(numbers[row]), more) for row, more in _new(xids, self.last_xids)]
        events += [(row, ECC, more) for row, more in _new(ecc, self.last_ecc)]
        events += [(row, LOST, 1) for row in self._losses(samples.times, samples.gpu_lost[:, column])]
        own = np.zeros(len(samples), np.int64)
        for row, number, more in events:
            self.errors[number] = self.errors.get(number, 0) + more
            self.first.setdefault(number, float(samples.times[row]))
            if not described(number).of_the_program:
                own[row] += more
        until = self.own + np.concatenate(([0], np.cumsum(own)))
        self.readings, self.own = int(readings[-1]), int(until[-1])
        found = until[scans].astype(float)
        return ErrorCounts((readings[scans] > 0) | (found > 0), (found,))

    def _losses(self, times: Times, lost: Floats | Times) -> list[int]:
        """Returns the rows in which the GPU had been out of reach for LOST_SECONDS, once for each loss."""
        rows: list[int] = []
        if self.lost_since is None and not (lost == 1).any():
            return rows
        for row in np.flatnonzero(~np.isnan(lost)).tolist():
            if lost[row] != 1:
                self.lost_since = None
            elif self.lost_since is None:
                self.lost_since = float(times[row])
            elif times[row] - self.lost_since >= LOST_SECONDS:
                rows.append(row)
                self.lost_since = inf  # counted
        return rows

    @property
    def own_numbers(self) -> list[int]:
        """Returns the numbers of the GPU's own errors, first come first: others mostly follow from it."""
        own = (number for number in self.errors if not described(number).of_the_program)
        return sorted(own, key=lambda number: (self.first[number], number))


GPU_ERRORS = Measure(ByGpu[ErrorCounts, ErrorsOfGpu], ErrorsOfGpu)


def described(number: int) -> Xid:
    """Returns what an error means, and whose it is."""
    return _DESCRIBED.get(number) or xid(number)


def _new(counter: Times, last: Last) -> list[tuple[int, int]]:
    """Returns the rows in which a counter counted, and how much."""
    rows = np.flatnonzero(~np.isnan(counter))
    added = increases(counter[rows], last, after_reset=True)
    return [(int(row), int(more)) for row, more in zip(rows, added, strict=True) if more]
