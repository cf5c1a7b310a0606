"""Four ways to make training slow. Each is a thing that happens to people, made to happen on purpose."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass, replace

from .augment import LIGHT

WAYS = {
    "none": "nothing is slow: the data is there before the model asks for it",
    "augmentation": "every image goes through a heavy transform, more than the workers' cores can bear",
    "workers": "no worker processes: the training process loads each batch itself while the model waits",
    "storage": "images come from a simulated network disk that serves few reads a second",
    "stall": "every 16th step waits for a checkpoint to reach a simulated slow disk",
}

HEAVY = 25  # smoothing passes a worker


@dataclass(frozen=True)
class Conditions:
    """How data is loaded and checkpoints are kept in this run."""

    workers: int
    passes: int = LIGHT  # of smoothing when a training image is bent: how heavy the transform is
    disk: SlowDisk | None = None  # None: files are read as fast as the machine reads them
    checkpoint_every: int = 120  # steps
    checkpoint_delay: float = 0.0  # seconds that a checkpoint waits for the simulated disk


def conditions(way: str, workers: int) -> Conditions:
    """What the `--slow` switch asks for."""
    usual = Conditions(workers)
    if way == "augmentation":
        # More workers bear more, so the work grows with them: the switch slows a big machine as well.
        return replace(usual, passes=HEAVY * max(1, 2 * workers - 1))
    if way == "workers":
        return replace(usual, workers=0)
    if way == "storage":
        return replace(usual, disk=SlowDisk(reads_per_second=600))
    if way == "stall":
        return replace(usual, checkpoint_every=16, checkpoint_delay=1.5)
    return usual


class SlowDisk:
    """A simulated network disk: all processes together get so many reads a second, and sleep until theirs.

    Who waits here uses no processor time, as with a real disk; unlike with a real one the kernel does
    not count the waiting as I/O wait.
    """

    def __init__(self, reads_per_second: float) -> None:
        self.seconds_per_read = 1 / reads_per_second
        self._next_free = multiprocessing.Value("d", 0.0)  # shared with workers

    @property
    def next_free(self) -> float:
        """When the disk has served all that was asked of it so far, on time.monotonic's clock."""
        return float(self._next_free.value)

    def wait_for_read(self) -> None:
        with self._next_free.get_lock():
            start = max(self._next_free.value, time.monotonic())
            self._next_free.value = start + self.seconds_per_read
        time.sleep(max(0.0, start + self.seconds_per_read - time.monotonic()))
