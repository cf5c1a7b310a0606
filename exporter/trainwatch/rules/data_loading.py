"""Why data comes too late: told from what the loader's workers did, and from the cores of their node."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trainwatch.words import count, percent

Cause = Literal["heavy transform", "too few workers", "slow storage", "hand-over", "not known"]

CPU_BOUND = 0.5  # workers compute: for more than this share of a fetch, waiting for a core apart
CORES_FULL = 0.85  # the node's cores are so busy that workers wait for them as well
WAITING_FOR_IO = 0.2  # the cores wait for storage for more than this share of their time
WORKERS_BUSY = 0.5  # workers fetch for more than this share of the time


@dataclass(frozen=True)
class Loading:
    """The data loading of one rank so far; seconds are sums over its workers or over its steps."""

    workers: int | None  # None: no loader is known
    fetch_seconds: float
    fetch_cpu_seconds: float
    fetch_core_wait_seconds: float  # ready to run, but no core was free; 0: never, or not counted
    step_seconds: float
    wait_seconds: float
    cores: float  # for each rank of the node
    cpu_busy: float  # mean utilisation of the node's cores, a ratio
    io_wait: float

    @property
    def computing_seconds(self) -> float:
        return max(self.step_seconds - self.wait_seconds, 1e-9)

    @property
    def cpu_share(self) -> float:
        """CPU seconds of a second of fetching, NaN where fetches were not timed."""
        return self.fetch_cpu_seconds / self.fetch_seconds if self.fetch_seconds else math.nan

    @property
    def waiting_share(self) -> float:
        """The share of the fetch time that went by without computing and without waiting for a core."""
        elsewhere = self.cpu_share + self.fetch_core_wait_seconds / max(self.fetch_seconds, 1e-9)
        return max(1 - elsewhere, 0.0)  # two clocks: their sum may exceed the whole by a little

    @property
    def workers_wait(self) -> bool:
        """Whether fetches wait for something that is no core. False where they were not timed."""
        if self.fetch_core_wait_seconds:
            # Waiting for a core counts for neither: who computes needs one, and who wakes up from a read.
            return self.cpu_share <= CPU_BOUND * (self.cpu_share + self.waiting_share)
        return self.cpu_share <= CPU_BOUND * self.cpu_share_of_computing

    @property
    def cpu_share_of_computing(self) -> float:
        """The CPU share of fetches that only compute, estimated where waiting for a core was not counted.

        1 on idle cores, less the more they wait for a core. On full cores it is the share of a core for
        each worker when the training process computes as well.
        """
        on_full_cores = min(1.0, self.cores / ((self.workers or 0) + 1))
        return 1 - self.cpu_busy * (1 - on_full_cores)

    @property
    def workers_needed(self) -> int:
        """Workers that would keep up with the computing: seconds of fetching for each second of it."""
        work = (
            self.fetch_seconds - self.fetch_core_wait_seconds if self.workers_wait else self.fetch_cpu_seconds
        )
        return math.ceil(work / self.computing_seconds)

    @property
    def workers_busy(self) -> float:
        """The share of the time in steps for which each worker was fetching."""
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
        """The cause as a clause, and what to do about it."""
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
                "Keep the data on local storage or in memory, store it in few large files, and read ahead "
                "with more workers or a higher prefetch factor.",
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
                    f": it takes {self.fetch_cpu_seconds / self.computing_seconds:.1f} CPU seconds for each "
                    f"second of computing, and {has} share {self.cores:g} cores"
                )
            return clause, (
                "Make the transform (decoding, augmentation) cheaper: cache its results, use a faster "
                "library, or move it to the GPU; more workers cannot help when the cores are full."
            )
        if cause == "hand-over":
            return (
                f"the workers are idle {percent(100 * (1 - self.workers_busy))} of the time: "
                "what takes long is starting them or handing batches over",
                "Keep workers alive between epochs (persistent_workers), hand over fewer and larger arrays, "
                "and collate in the workers.",
            )
        return (
            "the cause is not known, as fetches were not timed",
            "Time the loader's fetches with trainwatch.fetch to learn whether storage, the transform or the "
            "number of workers holds them up.",
        )
