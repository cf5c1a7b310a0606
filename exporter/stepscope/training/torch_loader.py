"""PyTorch's DataLoader: times the fetches inside its workers, and reads how many batches are ready."""

from __future__ import annotations

import os
import sys
from _thread import get_native_id
from weakref import ref

from stepscope.training.fetch import fetch
from stepscope.training.session import session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_with_workers: str | None = None  # the latest run of this process, as in `session.again`, with such a loader


def time_worker_fetches(loader: object) -> None:
    """Times the fetches of a DataLoader (one batch each): in each worker, through its `worker_init_fn`.

    Does nothing for other loaders.
    """
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(loader, torch_data.DataLoader):
        return
    time_own_fetches(loader.num_workers)
    if loader.num_workers and not isinstance(loader.worker_init_fn, _WorkerStart):
        loader.worker_init_fn = _WorkerStart(loader.worker_init_fn)


def time_own_fetches(workers: int) -> None:
    """Times the fetches of this process for a loader with so many workers.

    Without workers, this process fetches: its CPU time distinguishes storage from the transform. That counts
    until a loader of this run has workers, so that an evaluation without them does not count as their work.
    """
    global _with_workers
    if _with_workers == session.again:
        return
    if workers:
        _with_workers = session.again
        _leave_fetches_alone()
    else:
        _time_fetches()


def queue_depth(iterator: object) -> Callable[[], int] | None:
    """Returns a function that reads how many batches a DataLoader's iterator has ready, if it has a queue."""
    torch_loader = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(torch_loader, "_BaseDataLoaderIter", None)
    if kind is None or not isinstance(iterator, kind):
        return None
    queue = getattr(iterator, "_data_queue", None)
    if queue is None:
        return None
    try:
        queue.qsize()
    except NotImplementedError:  # semaphores have no value here (macOS)
        return None
    queue_of = ref(queue)  # it has batches, which must not live longer than the iterator

    def depth() -> int:
        known: Any = queue_of()
        return known.qsize() if known is not None else 0

    return depth


class _WorkerStart:
    """Runs first in each worker: times its fetches, then does what the user's `worker_init_fn` does.

    A class of a module, so that a spawned worker can unpickle it.
    """

    def __init__(self, users_function: Callable[[int], object] | None) -> None:
        self.users_function = users_function

    def __call__(self, worker: int) -> None:
        is_process = get_native_id() == os.getpid()  # and no thread of the training process, as of MONAI
        if is_process:
            _time_fetches()
            fetch.count_all_threads()
        if self.users_function is not None:
            self.users_function(worker)
        if is_process and (torch := sys.modules.get("torch")) is not None:
            fetch.say_threads(torch.get_num_threads())


_untimed: dict[Any, Any] = {}  # functions that were replaced, by what replaced them


def _time_fetches() -> None:
    """Replaces `fetch` of the two fetchers that a worker may use; they are the same since PyTorch 1.2."""
    for fetcher in _fetchers():
        if fetcher.fetch not in _untimed:
            timed = fetch(fetcher.fetch)
            _untimed[timed] = fetcher.fetch
            fetcher.fetch = timed


def _leave_fetches_alone() -> None:
    for fetcher in _fetchers():
        fetcher.fetch = _untimed.get(fetcher.fetch, fetcher.fetch)


def _fetchers() -> Iterator[Any]:
    fetchers = sys.modules.get("torch.utils.data._utils.fetch")  # imported with loaders
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        if (fetcher := getattr(fetchers, name, None)) is not None:
            yield fetcher


session.forgets.append(_leave_fetches_alone)  # the next run begins as the first one did
