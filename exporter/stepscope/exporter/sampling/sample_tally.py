"""Counts the samples of one run: counting is cheap, and the answer is exact at every threshold."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import isnan, nan
from typing import Any

from stepscope.exporter.sampling.families import HistogramValue
from stepscope.exporter.sampling.sample import RunSample, Sample

# Utilisation in steps of 0.02, so every default threshold is a bound (0.1, 0.5, 0.7, 0.9).
BOUNDS = tuple(step / 50 for step in range(1, 51))
GRID = tuple(step / 10 for step in range(1, 10))
CAUSES = ("cpu", "io")
# A run that keeps less than this of a core busy (or waits for I/O for less of the time) is no cause itself.
LEAST_USE = 0.1

_CELLS = len(GRID) + 1
# A ratio that equals a threshold must not miss it by the last bit of a sum or a difference (1 - 0.3 is
# not 0.7). The evaluation's float32 samples also have 7 digits.
_DIGITS = 7


class Histogram:
    """The number of samples in each bucket; a sample on a bound belongs to the bucket below it (`le`)."""

    def __init__(self) -> None:
        self.counts = array("Q", bytes(8 * (len(BOUNDS) + 1)))
        self.sum = 0.0

    def add(self, value: float) -> None:
        if not isnan(value):
            self.counts[bisect_left(BOUNDS, round(value, _DIGITS))] += 1
            self.sum += value

    def value(self) -> HistogramValue:
        return HistogramValue(self.counts.tolist(), self.sum)


class StarvedGrid:
    """Counts of samples by the grid steps of their busiest core and their idlest GPU.

    A cell (i, j) has samples whose cause was above exactly the first i thresholds. Their GPU was below all
    except the first j. So one addition per sample answers all 81 pairs of thresholds.
    """

    def __init__(self) -> None:
        self.cells = array("Q", bytes(8 * _CELLS * _CELLS))

    def add(self, cause: float, gpu: float) -> None:
        above = bisect_left(GRID, round(cause, _DIGITS))  # thresholds that the cause is strictly above
        not_below = bisect_right(GRID, round(gpu, _DIGITS))  # thresholds that the GPU is not below
        self.cells[above * _CELLS + not_below] += 1

    def counts(self) -> list[list[int]]:
        """Returns [i][j]: samples with the cause strictly above GRID[i], the GPU strictly below GRID[j]."""
        rows = [self.cells[row * _CELLS : (row + 1) * _CELLS].tolist() for row in range(_CELLS)]
        totals = [0] * _CELLS
        counts: list[list[int]] = []
        for row in reversed(rows[1:]):
            totals = [total + cell for total, cell in zip(totals, row, strict=True)]
            counts.append(list(accumulate(totals[:-1])))
        return counts[::-1]


class LowCounts:
    """Counts of samples by the grid step of their idlest GPU."""

    def __init__(self) -> None:
        self.cells = array("Q", bytes(8 * _CELLS))

    def add(self, gpu: float) -> None:
        self.cells[bisect_right(GRID, round(gpu, _DIGITS))] += 1

    def counts(self) -> list[int]:
        """Returns [j]: samples with some GPU strictly below GRID[j]."""
        return list(accumulate(self.cells[:-1]))


class SampleTally:
    """All sample counters of one run on this node."""

    def __init__(self) -> None:
        self.samples = 0
        self.cpu = Histogram()
        self.io_wait = Histogram()
        self.gpu: dict[str, Histogram] = {}
        self.gpu_memory: dict[str, Histogram] = {}
        self.starved = {cause: StarvedGrid() for cause in CAUSES}
        self.low = LowCounts()

    def add(self, sample: Sample, uses: RunSample) -> None:
        """Counts one sample of what the run uses. Missing values, as of a lost GPU, are not counted."""
        self.samples += 1
        host = uses.host
        cpu_max, cpu_mean = _max_and_mean(host.of_own(sample.cpus, sample.cpu_utilization_ratio))
        io_max, io_mean = _max_and_mean(host.of_own(sample.cpus, sample.cpu_io_wait_ratio))
        self.cpu.add(cpu_mean)
        self.io_wait.add(io_mean)
        own = {gpu: reading for gpu, reading in sample.gpus.items() if gpu in uses.gpus}
        for gpu, reading in own.items():
            if gpu not in self.gpu:  # its first reading
                self.gpu[gpu], self.gpu_memory[gpu] = Histogram(), Histogram()
            self.gpu[gpu].add(reading.utilization_ratio)
            used, total = reading.memory_used_bytes, reading.memory_total_bytes
            self.gpu_memory[gpu].add(used / total if total > 0 else nan)
        known = [gpu.utilization_ratio for gpu in own.values() if not isnan(gpu.utilization_ratio)]
        if not known:
            return
        idlest = min(known)
        self.low.add(idlest)
        busiest = _by_the_run(cpu_max, host.cpu_cores), _by_the_run(io_max, host.io_waiting_ratio)
        for cause, value in zip(CAUSES, busiest, strict=True):
            if not isnan(value):
                self.starved[cause].add(value, idlest)

    def to_bytes(self) -> bytes:
        """Returns all counts, in the order of `_parts`; `from_bytes` needs the same GPUs to read them."""
        sums = array("d", [histogram.sum for histogram in self._histograms()])
        counts = b"".join(part.tobytes() for part in self._parts())
        return array("Q", [self.samples]).tobytes() + sums.tobytes() + counts

    @classmethod
    def from_bytes(cls, content: bytes, gpus: Iterable[str]) -> "SampleTally":
        """Returns the tally that `to_bytes` wrote. Raises ValueError if the length does not fit the GPUs."""
        tally = cls()
        for gpu in gpus:
            tally.gpu[gpu], tally.gpu_memory[gpu] = Histogram(), Histogram()
        if len(content) != len(tally.to_bytes()):
            raise ValueError("its length does not fit its GPUs")
        words = memoryview(content)
        tally.samples = words[:8].cast("Q")[0]
        offset = 8
        for histogram in tally._histograms():
            histogram.sum = words[offset : offset + 8].cast("d")[0]
            offset += 8
        for part in tally._parts():
            length = len(part) * part.itemsize
            part[:] = array("Q", content[offset : offset + length])
            offset += length
        return tally

    def _histograms(self) -> list[Histogram]:
        return [self.cpu, self.io_wait, *self.gpu.values(), *self.gpu_memory.values()]

    def _parts(self) -> "list[array[Any]]":
        """Lists every array of counts, in the order of the state file."""
        grids = [self.starved[cause].cells for cause in CAUSES]
        return [self.low.cells, *grids, *(histogram.counts for histogram in self._histograms())]


def _by_the_run(highest: float, own: float) -> float:
    """Returns the highest reading of a core, but at most what the run itself does if that is next to nothing.

    A core may be busy, or wait for I/O, for others.
    """
    return min(highest, own) if own < LEAST_USE else highest


def _max_and_mean(values: Sequence[float]) -> tuple[float, float]:
    total = sum(values)
    if isnan(total):
        return _max_and_mean([value for value in values if not isnan(value)])
    return (max(values), total / len(values)) if values else (nan, nan)
