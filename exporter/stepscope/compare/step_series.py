"""The durations and components of a rank's steps in the order of time, in bounded memory."""

from collections.abc import Sequence

import numpy as np

from stepscope.runs.model import COMPONENTS, Times

STRETCH = 64  # consecutive steps that are kept or dropped together, so that kept steps stay consecutive
STRETCHES_KEPT = 1024  # 65,536 steps: 512 KiB per rank


class StepSeries:
    """Steps of one rank in one phase: exact counts and sums, and the durations of stretches of steps.

    A long run keeps every second stretch, then every fourth, and so on: an unbiased sample in which
    consecutive steps stay consecutive.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.component_seconds: Times = np.zeros(len(COMPONENTS))
        self.every = 1  # keeps one of this number of stretches
        self._stretches: list[Times] = []
        self._open: Times = np.empty(0)
        self._next = 0  # the number of the stretch that is open

    def add(self, durations: Times, components: Times) -> None:
        """Adds the next steps: durations (n,) and components (n, len(COMPONENTS)), in seconds."""
        self.count += len(durations)
        self.seconds += float(durations.sum())
        self.component_seconds = self.component_seconds + components.sum(axis=0)
        pending = np.concatenate((self._open, durations))
        whole = len(pending) // STRETCH * STRETCH
        for start in range(0, whole, STRETCH):
            self._keep(pending[start : start + STRETCH])
        self._open = pending[whole:].copy()

    def kept(self, every: int = 1) -> Times:
        """Returns the kept durations; with `every` (a power of two), of one in `every` stretches."""
        step = max(1, every // self.every)
        stretches = self._stretches[::step]
        unfinished = self._next % max(every, self.every) == 0
        return np.concatenate([*stretches, self._open if unfinished else np.empty(0)])

    def _keep(self, stretch: Times) -> None:
        if self._next % self.every == 0:
            self._stretches.append(stretch.copy())
            if len(self._stretches) > STRETCHES_KEPT:
                self._stretches = self._stretches[::2]
                self.every *= 2
        self._next += 1


def mean_over_ranks(ranks: Sequence[StepSeries]) -> Times:
    """Returns the durations of the run's steps, each the mean over its ranks. Empty without steps.

    Ranks that train together wait for each other, so a step takes about the same time on all of them.
    """
    every = max((rank.every for rank in ranks), default=1)
    series = [rank.kept(every) for rank in ranks]
    length = max(map(len, series), default=0)
    sums, counts = np.zeros(length), np.zeros(length)
    for durations in series:
        sums[: len(durations)] += durations
        counts[: len(durations)] += 1
    return sums / counts
