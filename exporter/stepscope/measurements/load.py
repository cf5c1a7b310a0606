"""Measures the distribution of each GPU's utilisation, and the distances between two distributions."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.measurements.measure import Measure, Measurement, Views
from stepscope.measurements.state import Scans
from stepscope.runs.model import Floats, NodeSamples

# Bins of 2 points: 0 to 2 %, above 2 to 4 %, ..., above 98 to 100 %; those of the sample counters.
BINS = 50
# Readings are known to 0.01 points: that distinguishes float32's 0.58 from values above 58 %.
PARTS = 10_000
# Shares that differ by less are the same: they are quotients of whole numbers.
DIGITS = 12

Counts = NDArray[np.int64]


class Distances(NamedTuple):
    """Kolmogorov-Smirnov distances, 0 to 1: the widest gap between two cumulative distributions.

    They are compared at every 10 % of utilisation: GPUs of 96 and 98 % are not uneven.
    """

    distances: NDArray[np.float64]  # (scans, pairs)
    readings: NDArray[np.float64]  # (scans, pairs) of the GPU of the pair that has fewer
    new: NDArray[np.bool_] | None = None  # scans with a new reading; None for all
    counts: Counts = np.zeros((0, 0, BINS), np.int64)  # (scans, GPUs, BINS)

    @classmethod
    def between(cls, counts: Counts, new: NDArray[np.bool_] | None = None) -> "Distances":
        """Compares the GPUs at each scan; `counts` is (scans, GPUs, BINS)."""
        readings = counts.sum(axis=2)
        one, other = np.triu_indices(counts.shape[1], 1)
        fewer = np.minimum(readings[:, one], readings[:, other]).astype(float)
        return cls(distances_between(counts), fewer, new, counts)

    def moments(self) -> Counts:
        """Returns the counts; see Cumulative."""
        return self.counts

    def of(self, moments: Counts) -> "Distances":
        return self.between(moments)


class NodeLoad(Measurement[Distances]):
    """Counts of each GPU's readings in bins of 2 points, (GPUs, BINS)."""

    def __init__(self) -> None:
        self.counts: Counts = np.zeros((0, BINS), np.int64)
        self.at_last_scan = 0  # readings so far, of all GPUs

    def observe(self, samples: NodeSamples, scans: Scans) -> Views[Distances]:
        grown = samples.gpu.shape[1] - len(self.counts)
        if grown > 0:
            self.counts = np.pad(self.counts, ((0, grown), (0, 0)))
        until = self.counts + np.cumsum(_counts_between(samples.gpu, scans), axis=0)
        self.counts = until[-1]
        readings = until[:-1].sum(axis=(1, 2))
        new = np.diff(readings, prepend=self.at_last_scan) > 0
        if len(readings):
            self.at_last_scan = int(readings[-1])
        return [("", Distances.between(until[:-1], new))]

    @property
    def readings(self) -> NDArray[np.int64]:
        """Returns (GPUs,) how often each was read."""
        return np.asarray(self.counts.sum(axis=1))


LOAD = Measure(NodeLoad)


def distances_between(counts: Counts) -> NDArray[np.float64]:
    """Returns (..., pairs) the distance of each pair of GPUs of `counts` (..., GPUs, BINS)."""
    tenths = counts.reshape(*counts.shape[:-1], 10, BINS // 10).sum(axis=-1)
    shares = np.cumsum(tenths, axis=-1) / np.maximum(tenths.sum(axis=-1, keepdims=True), 1)
    one, other = np.triu_indices(counts.shape[-2], 1)
    gaps = np.abs(shares[..., one, :] - shares[..., other, :]).max(axis=-1, initial=0.0)
    distances: NDArray[np.float64] = np.round(gaps, DIGITS)
    return distances


def _counts_between(readings: Floats, scans: Scans) -> Counts:
    """Returns (scans + 1, GPUs, BINS): the readings up to each scan since the one before, and the rest.

    `readings` is (n, GPUs), NaN where missing.
    """
    rows, gpus = readings.shape
    there = ~np.isnan(readings)
    parts = np.rint(PARTS * np.where(there, readings, 0)).astype(np.int64)
    bins = np.clip(-(-parts * BINS // PARTS) - 1, 0, BINS - 1)  # rounded up: a bound belongs to the bin below
    segments = np.searchsorted(scans, np.arange(rows), side="right")
    places = (segments[:, None] * gpus + np.arange(gpus)) * BINS + bins
    counts = np.bincount(places[there], minlength=(len(scans) + 1) * gpus * BINS)
    return counts.reshape(len(scans) + 1, gpus, BINS)
