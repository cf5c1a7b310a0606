"""PyTorch's DataLoader: times the fetches inside its workers, and reads how many batches are ready."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def time_worker_fetches(loader: object) -> None:
    """Makes each worker of a DataLoader time its fetches (one batch each), through its `worker_init_fn`.

    Does nothing for other loaders, and for a DataLoader without workers: its fetches are the waits.
    """
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(loader, torch_data.DataLoader) or not loader.num_workers:
        return
    if not isinstance(loader.worker_init_fn, _WorkerStart):
        loader.worker_init_fn = _WorkerStart(loader.worker_init_fn)


def queue_depth(iterator: object) -> Callable[[], int] | None:
    """Returns a function that reads how many batches a DataLoader's iterator has ready, if it has a queue."""
    torch_loader = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(torch_loader, "_MultiProcessingDataLoaderIter", None)
    if kind is None or not isinstance(iterator, kind):
        return None
    queue = getattr(iterator, "_data_queue", None)
    if queue is None:
        return None
    try:
        queue.qsize()
    except NotImplementedError:  # semaphores have no value here (macOS)
        return None
    size: Callable[[], int] = queue.qsize
    return size


class _WorkerStart:
    """Runs first in each worker: times its fetches, then does what the user's `worker_init_fn` does.

    A class of a module, so that a spawned worker can unpickle it.
    """

    def __init__(self, users_function: Callable[[int], object] | None) -> None:
        self.users_function = users_function

    def __call__(self, worker: int) -> None:
        _time_fetches()
        if self.users_function is not None:
            self.users_function(worker)


def _time_fetches() -> None:
    """Replaces `fetch` of the two fetchers that a worker may use; they are the same since PyTorch 1.2."""
    from stepscope.training.fetch import fetch

    try:
        from torch.utils.data._utils import fetch as fetchers
    except ImportError:
        return
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        fetcher: Any = getattr(fetchers, name, None)
        if fetcher is not None and not hasattr(fetcher.fetch, "__wrapped__"):
            fetcher.fetch = fetch(fetcher.fetch)
