"""Four ways to make training slow. Each one is a common problem, reproduced on purpose."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass, replace

from .augment import LIGHT

WAYS = {
    "none": "nothing is slow: the data is ready before the model requests it",
    "augmentation": "every image goes through a transform that is too heavy for the workers' cores",
    "workers": "no worker processes: the training process loads each batch itself while the model waits",
    "storage": "images come from a simulated network disk that serves few reads per second",
    "stall": "every 16th step waits for a checkpoint to reach a simulated slow disk",
}

HEAVY = 25  # smoothing passes per worker


@dataclass(frozen=True)
class Conditions:
    """Settings of a run: how it loads data and writes checkpoints."""

    workers: int
    passes: int = LIGHT  # smoothing passes per warped training image: how heavy the transform is
    disk: SlowDisk | None = None  # None: files are read at the speed of the machine
    checkpoint_every: int = 120  # steps
    checkpoint_delay: float = 0.0  # seconds for which a checkpoint waits for the simulated disk


def conditions(way: str, workers: int) -> Conditions:
    """Returns the conditions for a value of `--slow`."""
    usual = Conditions(workers)
    if way == "augmentation":
        # The work grows with the number of workers, so that it slows down a large machine as well.
        return replace(usual, passes=HEAVY * max(1, 2 * workers - 1))
    if way == "workers":
        return replace(usual, workers=0)
    if way == "storage":
        return replace(usual, disk=SlowDisk(reads_per_second=600))
    if way == "stall":
        return replace(usual, checkpoint_every=16, checkpoint_delay=1.5)
    return usual


class SlowDisk:
    """A simulated network disk with a limit on reads per second over all processes.

    A process sleeps until its read. As with a real disk, waiting uses no processor time. Unlike with a
    local disk, the kernel does not count it as I/O wait.
    """

    def __init__(self, reads_per_second: float) -> None:
        self.seconds_per_read = 1 / reads_per_second
        self._next_free = multiprocessing.Value("d", 0.0)  # shared with workers

    @property
    def next_free(self) -> float:
        """Returns when the disk will have served all requests so far, in seconds of time.monotonic."""
        return float(self._next_free.value)

    def wait_for_read(self) -> None:
        with self._next_free.get_lock():
            start = max(self._next_free.value, time.monotonic())
            self._next_free.value = start + self.seconds_per_read
        time.sleep(max(0.0, start + self.seconds_per_read - time.monotonic()))
