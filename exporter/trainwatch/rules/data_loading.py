"""Finds why data comes too late, from the times of the loader's workers and the cores of their node."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trainwatch.words import count, percent

Cause = Literal["heavy transform", "too few workers", "slow storage", "hand-over", "not known"]

CPU_BOUND = 0.5  # workers compute for more than this share of a fetch, not counting waits for a core
CORES_FULL = 0.85  # above this utilisation of the node's cores, workers wait for a core
WAITING_FOR_IO = 0.2  # storage is slow if cores wait for it for more than this share of the time
WORKERS_BUSY = 0.5  # below this share of time fetching, workers are idle


@dataclass(frozen=True)
class Loading:
    """The data loading of one rank so far; seconds are sums over its workers or over its steps."""

    workers: int | None  # None if no loader is known
    fetch_seconds: float
    fetch_cpu_seconds: float
    fetch_core_wait_seconds: float  # ready to run, but no core was free; 0 if never or not counted
    step_seconds: float
    wait_seconds: float
    cores: float  # per rank of the node
    cpu_busy: float  # mean utilisation of the node's cores, a ratio
    io_wait: float

    @property
    def computing_seconds(self) -> float:
        return max(self.step_seconds - self.wait_seconds, 1e-9)

    @property
    def cpu_share(self) -> float:
        """Returns the CPU seconds per second of fetching, NaN if fetches were not timed."""
        return self.fetch_cpu_seconds / self.fetch_seconds if self.fetch_seconds else math.nan

    @property
    def waiting_share(self) -> float:
        """Returns the share of the fetch time without computing and without waiting for a core."""
        elsewhere = self.cpu_share + self.fetch_core_wait_seconds / max(self.fetch_seconds, 1e-9)
        return max(1 - elsewhere, 0.0)  # two clocks: their sum may exceed the whole by a little

    @property
    def workers_wait(self) -> bool:
        """Returns whether fetches wait for something other than a core. False if they were not timed."""
        if self.fetch_core_wait_seconds:
            # Waits for a core count for neither side: computing and waking up from a read both need one.
            return self.cpu_share <= CPU_BOUND * (self.cpu_share + self.waiting_share)
        return self.cpu_share <= CPU_BOUND * self.cpu_share_of_computing

    @property
    def cpu_share_of_computing(self) -> float:
        """Returns the CPU share of fetches that only compute, estimated if waits for a core were not counted.

        It is 1 on idle cores. On full cores it is the share of a core per worker, with the training process
        computing too.
        """
        on_full_cores = min(1.0, self.cores / ((self.workers or 0) + 1))
        return 1 - self.cpu_busy * (1 - on_full_cores)

    @property
    def workers_needed(self) -> int:
        """Returns the workers that would keep up: seconds of fetching per second of computing."""
        work = (
            self.fetch_seconds - self.fetch_core_wait_seconds if self.workers_wait else self.fetch_cpu_seconds
        )
        return math.ceil(work / self.computing_seconds)

    @property
    def workers_busy(self) -> float:
        """Returns the share of the step time for which each worker was fetching."""
        return self.fetch_seconds / (max(self.workers or 0, 1) * max(self.step_seconds, 1e-9))

    def cause(self) -> Cause:
        if self.io_wait > WAITING_FOR_IO:
            return "slow storage"
        if not self.fetch_seconds:
            return self._cause_without_fetches()
        if self.workers_wait:
            return "slow storage"
        if self.workers == 0:
            return "too few workers"
        if self.workers_busy < WORKERS_BUSY:
            return "hand-over"
        if self.workers is not None and self.workers < self.cores and self.workers_needed <= self.cores:
            return "too few workers"
        return "heavy transform"

    def _cause_without_fetches(self) -> Cause:
        if self.workers == 0:
            return "too few workers"
        if self.cpu_busy > CORES_FULL:
            return "heavy transform"
        if self.workers is not None and self.workers < self.cores / 2:
            return "too few workers"
        return "not known"

    def words(self) -> tuple[str, str]:
        """Returns the cause as a clause, and the remedy."""
        has = "no worker process" if not self.workers else count(self.workers, "worker")
        needed = max(self.workers_needed, 1)
        timed = not math.isnan(self.cpu_share)
        cause = self.cause()
        if cause == "slow storage":
            facts = f"workers spend {percent(100 * self.waiting_share)} of a fetch waiting" if timed else ""
            waits = (
                f"the cores wait for I/O {percent(100 * self.io_wait)} of the time"
                if self.io_wait > 0.01
                else ""
            )
            return (
                f"storage is slow: {' and '.join(filter(None, (facts, waits)))}",
                "Keep the data in memory or on local storage, in few large files. Read ahead with more "
                "workers or a higher prefetch factor.",
            )
        if cause == "too few workers":
            clause = f"there are too few loader workers: {has} on a share of {self.cores:g} cores"
            if timed:
                clause += f", and about {needed} would keep up"
            best = min(needed, max(1, int(self.cores))) if timed else max(1, int(self.cores))
            return clause, f"Give the loader {count(best, 'worker')} (num_workers={best})."
        if cause == "heavy transform":
            clause = "the transform is too heavy for the cores"
            if timed:
                clause += (
                    f": it takes {self.fetch_cpu_seconds / self.computing_seconds:.1f} CPU seconds per "
                    f"second of computing, and {has} share {self.cores:g} cores"
                )
            return clause, (
                "Make the transform (decoding, augmentation) cheaper: cache its results, use a faster "
                "library, or move it to the GPU; more workers cannot help when the cores are full."
            )
        if cause == "hand-over":
            return (
                f"the workers are idle {percent(100 * (1 - self.workers_busy))} of the time: "
                "starting them, or handing over batches, takes long",
                "Keep workers alive between epochs (persistent_workers), hand over fewer and larger arrays, "
                "and collate in the workers.",
            )
        return (
            "the cause is unknown, because fetches were not timed",
            "Time the loader's fetches with trainwatch.fetch to learn whether storage, the transform or the "
            "number of workers delays them.",
        )
