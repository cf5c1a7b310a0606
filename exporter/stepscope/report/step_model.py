"""The effect of a change on a step: the formulas of right-sizing and their derivation.

A step of a rank lasts d. For a share w of it the rank waits for data. For a share u of it kernels run on its
GPU, which NVML calls utilisation. A formula returns a factor: the new time for the same work, divided by the
measured time. Shares are 0..1.
"""

import math
from dataclasses import dataclass

SOME = 0.001  # of a GPU or its memory: below this, the training does not use it


@dataclass(frozen=True)
class Factor:
    """The time for the same work after a change, as a multiple of the measured time."""

    expected: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.expected <= self.high:
            raise ValueError(f"not in order: {self}")


def faster_loading(waiting: float, times: float) -> Factor:
    """Returns the factor if batches come `times` as fast; a rank waits for `waiting` < 1 of a step.

    A step that waits lasts as long as the loader needs for a batch, d; it then needs d / times. The rest of
    the step, (1 - w) d, is unchanged, however fast the loader is. At worst something else delays the loader,
    and nothing changes.
    """
    low = 1 - waiting
    return Factor(max(low, 1 / times), low, 1.0)


def loading_in_workers(waiting: float, workers: int, hand_over: float = 0.0) -> Factor:
    """Returns the factor if `workers` make the batches that the rank made in a share `waiting` < 1.

    They need w d / workers while the rank computes for (1 - w) d: the longer of the two is the step. At worst
    nothing is gained, and handing a batch over takes `hand_over` of a step on top.
    """
    low = 1 - waiting
    return Factor(max(low, waiting / workers), low, 1.0 + hand_over)


def larger_batch(utilisation: float, times: float, loading: float = 0.0) -> Factor:
    """Returns the factor for the same number of items with a batch `times` as large.

    Expected: kernels take `times` as long, and the gaps between them, (1 - u) d per step, come once for
    `times` as many items. At best kernels take no longer, because they did not fill the GPU. At worst gaps
    grow with the batch and nothing is gained. Loaders that were busy for a share `loading` of the time
    cannot deliver faster than 1 / loading.
    """
    low = min(max(1 / times, loading), 1.0)
    return Factor(max(utilisation + (1 - utilisation) / times, low), low, 1.0)


def fewer_devices(utilisation: float, fraction: float, waits_for_data: bool) -> Factor:
    """Returns the factor if `fraction` (at most 1) of the GPUs run all kernels, one after the other.

    Kernels of a step then take u d / fraction, and the rest of it (1 - u) d. At best the two overlap, which
    is expected if GPUs wait for data that would come no slower. At worst they add up, which is expected
    otherwise.
    """
    kernels = utilisation / fraction
    low = max(1.0, kernels)
    high = max(1 - utilisation + kernels, low)
    return Factor(low if waits_for_data else high, low, high)


def fewer_cores(utilisation: float, fraction: float) -> Factor:
    """Returns the factor for `fraction` (at most 1) of the cores; `utilisation` is the mean of all cores.

    Expected: nothing changes, as they are enough for 99 % of the samples. At worst the cores did all work in
    bursts on all of them, while everything else waited: these bursts take 1 / fraction as long.
    """
    return Factor(1.0, 1.0, 1 + utilisation * (1 / fraction - 1))


def enough_of(current: int, use: float, well_used: float) -> int:
    """Returns the smallest divisor of `current` devices whose utilisation stays at most `well_used`.

    `use` is the utilisation 0..1 of the busiest device now. Work that `current` devices share
    evenly can be shared evenly by a divisor. Returns `current` itself if the devices are well used.
    """
    needed = current * use / well_used
    return next((n for n in range(1, current) if current % n == 0 and n >= needed), current)


def cores_enough(cores: int, use: float, well_used: float, least: int) -> int:
    """Returns the smallest number of cores, `least` or more, whose utilisation stays at most `well_used`.

    `use` is the 99th percentile of the utilisation 0..1 of all cores.
    """
    return min(max(math.ceil(cores * use / well_used), least, 1), cores)


def batch_times(utilisation: float, memory: float, well_used: float, fill: float) -> int:
    """Returns the factor of the batch size that makes the GPU well used, or that still fits; 1 if none does.

    The utilisation with a batch n times as large is n u / (1 - u + n u). It equals `well_used` for
    n = well_used (1 - u) / (u (1 - well_used)). Memory in use grows at most n times, and stays below `fill`.
    """
    if min(utilisation, memory) < SOME:
        return 1
    needed = well_used * (1 - utilisation) / (utilisation * (1 - well_used))
    return max(1, min(math.ceil(needed), math.floor(fill / memory)))
