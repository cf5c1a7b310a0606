"""What a change would do to a step: formulas of right-sizing, each with how it comes about.

A step of a rank lasts d. For a share w of it the rank waits for data; for a share u of it kernels run on
its GPU (what NVML calls utilisation). What a formula gives is a factor: the new time for the same work,
divided by the time measured. Shares are 0..1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SOME = 0.001  # of a GPU or its memory: what is used less is not used by the training


@dataclass(frozen=True)
class Factor:
    """The time that the same work takes after a change, as a multiple of the time it took."""

    expected: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.expected <= self.high:
            raise ValueError(f"not in order: {self}")


def faster_loading(waiting: float, times: float) -> Factor:
    """Batches come `times` as fast to ranks that wait for them for a share `waiting` < 1 of a step.

    A step that waits lasts as long as the loader needs for a batch, d; it then needs d / times. What is no
    waiting, (1 - w) d, stays: no loading, however fast, makes the step shorter. At worst the loader is
    held up by something else and nothing changes.
    """
    low = 1 - waiting
    return Factor(max(low, 1 / times), low, 1.0)


def loading_in_workers(waiting: float, workers: int) -> Factor:
    """Batches that the rank itself made, for a share `waiting` < 1 of a step, are made by `workers`.

    They need w d / workers while the rank computes for (1 - w) d: the longer of the two is the step.
    """
    low = 1 - waiting
    return Factor(max(low, waiting / workers), low, 1.0)


def larger_batch(utilisation: float, times: float, loading: float = 0.0) -> Factor:
    """A batch `times` as large; the factor is that of the time for the same number of items.

    Expected: kernels take `times` as long, u d each, and the gaps between them, (1 - u) d a step, come once
    for `times` as many items. At best kernels take no longer at all (they did not fill the GPU), at worst
    gaps grow with the batch and nothing is won. Loaders that were busy for a share `loading` of the time
    cannot deliver faster than 1 / loading.
    """
    low = min(max(1 / times, loading), 1.0)
    return Factor(max(utilisation + (1 - utilisation) / times, low), low, 1.0)


def fewer_devices(utilisation: float, fraction: float, waits_for_data: bool) -> Factor:
    """`fraction` (at most 1) of the GPUs do the kernels of all, one after the other.

    Kernels of a step then take u d / fraction, and the rest of it (1 - u) d. At best the rest happens
    meanwhile, which is what is expected where GPUs wait for data that would come no slower; at worst, and
    expected everywhere else, the two add up.
    """
    kernels = utilisation / fraction
    low = max(1.0, kernels)
    high = max(1 - utilisation + kernels, low)
    return Factor(low if waits_for_data else high, low, high)


def fewer_cores(utilisation: float, fraction: float) -> Factor:
    """`fraction` (at most 1) of the cores; `utilisation` is the mean of all cores.

    Expected: nothing changes, as they are enough for 99 % of the samples. At worst all work of the cores
    was done in bursts on all of them, while all else waited: these bursts take 1 / fraction as long.
    """
    return Factor(1.0, 1.0, 1 + utilisation * (1 / fraction - 1))


def enough_of(current: int, use: float, well_used: float) -> int:
    """The least divisor of `current` devices that, doing the work of all, is used at most `well_used`.

    `use` is the share 0..1 for which the busiest is used now. A divisor, since work that is dealt out
    evenly to `current` can be dealt out evenly to it. `current` itself where they are well used.
    """
    needed = current * use / well_used
    return next((n for n in range(1, current) if current % n == 0 and n >= needed), current)


def cores_enough(cores: int, use: float, well_used: float, least: int) -> int:
    """The least number of cores, `least` or more, that would be used at most `well_used`.

    `use` is the share 0..1 of all cores that was used but for 1 % of the samples.
    """
    return min(max(math.ceil(cores * use / well_used), least, 1), cores)


def batch_times(utilisation: float, memory: float, well_used: float, fill: float) -> int:
    """How many times as large a batch the GPU needs to be well used, or fits: the less of the two; 1: none.

    The utilisation with a batch n times as large is n u / (1 - u + n u), which is `well_used` at
    n = well_used (1 - u) / (u (1 - well_used)). Memory in use grows at most n times, and stays below `fill`.
    """
    if min(utilisation, memory) < SOME:
        return 1
    needed = well_used * (1 - utilisation) / (utilisation * (1 - well_used))
    return max(1, min(math.ceil(needed), math.floor(fill / memory)))
