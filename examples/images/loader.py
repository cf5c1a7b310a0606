"""Loads data: worker processes prefetch batches, and the training process takes them in order."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (batch, height, width) and their labels

# Forked workers start in milliseconds and share the memory of the training process.
_PROCESSES = multiprocessing.get_context("fork")

# Each worker's pipe is its prefetch queue: if it is full, the worker waits. This size fits two batches of
# 160 images. Linux's default is 64 KiB; it refuses a larger size only to users with very many pipes.
PREFETCH_FACTOR = 2
_PIPE_BYTES = 512 * 1024


class Loader:
    """Yields `fetch(0)`, `fetch(1)`, ... up to `batches`, fetched by `workers` processes in turn.

    Without workers, each batch is fetched when it is requested. A worker that dies ends the pass
    with a RuntimeError, as it does in PyTorch.
    """

    def __init__(
        self, fetch: Callable[[int], Batch], batches: int, workers: int, batch_size: int | None = None
    ) -> None:
        self.fetch, self.batches, self.batch_size = fetch, batches, batch_size
        # Named as in PyTorch, so that stepscope.watch finds them.
        self.num_workers, self.prefetch_factor = workers, PREFETCH_FACTOR if workers else None

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Batch]:
        if self.num_workers == 0:
            return map(self.fetch, range(self.batches))
        return self._from_workers()

    def _from_workers(self) -> Iterator[Batch]:
        count = min(self.num_workers, self.batches)
        started = [self._start(range(first, self.batches, count)) for first in range(count)]
        try:
            for number in range(self.batches):
                process, pipe = started[number % count]
                try:
                    batch: Batch = pipe.recv()
                except (EOFError, OSError):
                    process.join()
                    raise RuntimeError(
                        f"loader worker {process.pid} died with exit status {process.exitcode}"
                    ) from None
                yield batch
        finally:
            for process, pipe in started:
                pipe.close()
                process.terminate()  # it has nothing left to send, or no receiver
                process.join()

    def _start(self, numbers: range) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        receiving, sending = _PROCESSES.Pipe(duplex=False)
        with contextlib.suppress(PermissionError):
            fcntl.fcntl(sending.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        process = _PROCESSES.Process(target=self._work, args=(numbers, receiving, sending), daemon=True)
        process.start()
        sending.close()  # only the worker has it now, so its death closes the pipe
        return process, receiving

    def _work(self, numbers: range, receiving: Connection, sending: Connection) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training process to handle
        receiving.close()
        with contextlib.suppress(BrokenPipeError):  # the training process is gone
            for number in numbers:
                sending.send(self.fetch(number))
