"""Watches a data loader: how long training waits for each batch, and the loader's settings."""

from __future__ import annotations

import sys
from bisect import bisect_left
from importlib import import_module
from time import perf_counter

from stepscope.training import layout, torch_loader
from stepscope.training.layout import WAIT_BOUNDS
from stepscope.training.recorder import PHASE_INDEX, unknown_phase
from stepscope.training.session import recorder, session, start_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeVar

    from stepscope.training.ledger import Ledger

    Loader = TypeVar("Loader", bound=Iterable[Any])
    Setting = TypeVar("Setting", bound=int)


def watch(
    loader: Loader,
    phase: str = "train",
    workers: int | None = None,
    pin_memory: bool | None = None,
    prefetch_factor: int | None = None,
    batch_size: int | None = None,
) -> Loader:
    """Returns the loader with its waits timed: iterate over the returned object.

    A wait right before a step belongs to that step, which begins when the batch is requested. The first
    step begins with its batch: that wait includes `iter(loader)`, which may start worker processes.
    `workers`, `pin_memory`, `prefetch_factor` and `batch_size` (items per batch of this rank) are read from
    the loader's attributes (`num_workers`, ...) unless they are given. With a PyTorch DataLoader the fetches
    in its workers are timed, too.

    Raises ValueError for an unknown phase or a number below 0. The returned object passes every attribute
    on to the loader, but is not an instance of the loader's class.
    """
    if phase not in PHASE_INDEX:
        raise unknown_phase(phase)
    known = settings_of(loader)
    settings = (
        known[0] if workers is None else workers,
        known[1] if pin_memory is None else pin_memory,
        known[2] if prefetch_factor is None else prefetch_factor,
    )
    size = batch_size_of(loader) if batch_size is None else batch_size
    for name, value in (("workers", settings[0]), ("prefetch_factor", settings[2]), ("batch_size", size)):
        if value is not None and not 0 <= value <= layout.MAX_RANK:
            raise ValueError(f"{name}={value!r}: use 0 to {layout.MAX_RANK}")
    datasets = sys.modules.get("tensorflow.python.data.ops.dataset_ops")
    if datasets is not None and isinstance(loader, datasets.DatasetV2):
        hooks = import_module("stepscope.training.frameworks.tensorflow_hooks")  # which use this module
        hooks.watch_dataset(loader, phase, Waits(phase, settings, size or 0))
        return loader  # Keras accepts nothing in its place
    torch_loader.time_worker_fetches(loader)
    watched: Any = _WatchedLoader(loader, Waits(phase, settings, size or 0, persistent_of(loader)))
    return watched  # type: ignore[no-any-return]  # it replaces the loader


_EDGES = (0.0, *WAIT_BOUNDS, float("inf"))  # of the buckets of waits


class Waits:
    """Counts the waits for one phase's loader in the ledger."""

    def __init__(
        self,
        phase: str,
        settings: tuple[int | None, bool | None, int | None],
        batch_size: int,
        persistent: bool | None = None,
    ) -> None:
        self._index = PHASE_INDEX[phase]
        self._ledger: Ledger | None = None
        self._values: memoryview[float] | None = None  # in this ledger
        self._passes: memoryview[float] | None = None  # likewise
        self._settings = settings
        self._batch_size = batch_size
        self._persistent = persistent
        self._is_later = False  # than the first pass over a loader of this phase
        self._low = self._high = 0.0  # the bucket of the wait before: most waits fall into the same bucket
        self._bucket = 0

    def made_by(self, workers: Waits) -> Waits:
        """Takes the settings of another loader's workers, which make the batches."""
        self._settings, self._persistent = workers._settings, workers._persistent
        return self

    def begin(self) -> None:
        """Stores the loader's settings. Starts the run if it has not started."""
        if not start_run():
            return
        block = self._block()
        if block is not None:
            for at, value in enumerate(self._settings, layout.LOADER_WORKERS):
                block[at] = layout.UNKNOWN if value is None else float(value)
            block[layout.LOADER_BATCH_SIZE] = float(self._batch_size)
            block[layout.LOADER_QUEUE] = layout.UNKNOWN
            self._is_later = block[layout.LOADER_KNOWN] == 1.0
            block[layout.LOADER_KNOWN] = 1.0
            if self._persistent is not None and self._passes is not None:
                self._passes[layout.LOADER_PERSISTENT] = 1.0 + self._persistent

    def count(self, asked: float, got: float, queue_depth: int | None, is_first: bool = False) -> None:
        """Counts a wait: `is_first` of a pass. Says nothing of it to the recorder.

        Two threads may iterate loaders of one phase. There is no call between reading and writing a sum: no
        other thread runs in between.
        """
        block = self._values if session.ledger is self._ledger else self._block()
        if block is None:
            return
        seconds = got - asked
        bucket = self._bucket if self._low < seconds <= self._high else self._find_bucket(seconds)
        block[5] += seconds  # layout.LOADER_WAIT_SUM; a constant is faster
        block[bucket] += 1.0
        if queue_depth is not None:
            block[layout.LOADER_QUEUE] = float(queue_depth)
        if is_first and self._is_later and self._passes is not None:
            self._passes[layout.LOADER_RESTARTS] += seconds

    def _find_bucket(self, seconds: float) -> int:
        """Returns the counter of waits as long as this one, and remembers it."""
        i = bisect_left(WAIT_BOUNDS, seconds)
        bucket = layout.LOADER_WAIT_COUNTS + i
        low, high = _EDGES[i], _EDGES[i + 1]
        self._low, self._high, self._bucket = low, high, bucket  # no call in between, as above
        return bucket

    def _block(self) -> memoryview[float] | None:
        ledger = session.ledger
        if ledger is not self._ledger:
            self._ledger, self._values, self._passes = ledger, None, None
            if ledger is not None:
                self._values = self._counters(ledger, layout.COUNTER_LOADERS, layout.LOADER_DOUBLES)
                self._passes = self._counters(ledger, layout.COUNTER_LOADER_PASSES, layout.LOADER_PASSES)
        return self._values

    def _counters(self, ledger: Ledger, blocks: int, doubles: int) -> memoryview[float]:
        """Returns the block of this phase."""
        at = layout.COUNTERS_AT + 8 * (blocks + self._index * doubles)
        return memoryview(ledger.memory)[at : at + 8 * doubles].cast("d")


class _WatchedLoader:
    """Replaces a loader: times its iteration, passes everything else on."""

    _loader: Iterable[Any]
    _waits: Waits

    def __init__(self, loader: Iterable[Any], waits: Waits) -> None:
        self.__dict__.update(_loader=loader, _waits=waits)

    def __iter__(self) -> _WatchedIterator:
        return _WatchedIterator(self._loader, self._waits)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # TypeError, as the loader itself would

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._loader, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._loader, name)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not set yet: this object is being unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)


class _WatchedIterator:
    """One pass over the loader. Keeps no reference to a batch, which would keep its memory."""

    def __init__(self, loader: Iterable[Any], waits: Waits) -> None:
        self._loader = loader
        self._waits = waits
        self._iterator: Iterator[Any] | None = None
        self._queue_depth: Callable[[], int] | None = None

    def __iter__(self) -> _WatchedIterator:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            self._waits.begin()
        asked = perf_counter()
        recorder.waiting(asked)
        is_first = self._iterator is None
        try:
            if self._iterator is None:
                self._iterator = iter(self._loader)
                self._queue_depth = torch_loader.queue_depth(self._iterator)
            batch = next(self._iterator)
        finally:
            recorder.waiting(0.0)
        got = perf_counter()
        depth = self._queue_depth() if self._queue_depth is not None else None
        self._waits.count(asked, got, depth, is_first)
        recorder.waited(asked, got)
        return batch


def waits_of(loader: object) -> Callable[[str], Waits]:
    """Returns what counts the waits for a loader that nobody watches, by phase, without the loader itself."""
    settings, size, persistent = settings_of(loader), batch_size_of(loader) or 0, persistent_of(loader)
    return lambda phase: Waits(phase, settings, size, persistent)


def settings_of(loader: object) -> tuple[int | None, bool | None, int | None]:
    """Returns the number of workers, pin_memory and prefetch_factor, as far as the loader has them."""
    return (
        _setting(loader, "num_workers", int),
        _setting(loader, "pin_memory", bool),
        _setting(loader, "prefetch_factor", int),
    )


def persistent_of(loader: object) -> bool | None:
    """Returns whether the loader keeps its workers from one pass to the next; None: it does not say."""
    persistent = _setting(loader, "persistent_workers", bool)
    return None if persistent is None else bool(persistent)


def batch_size_of(loader: object) -> int | None:
    """Returns the batch size of the loader, or of a PyTorch DataLoader's own `batch_sampler`."""
    size = _setting(loader, "batch_size", int)
    return _setting(_attribute(loader, "batch_sampler"), "batch_size", int) if size is None else size


def _setting(loader: object, name: str, kind: type[Setting]) -> Setting | None:
    """Returns an attribute of the loader, if it has exactly this type and a reader would accept it."""
    value = _attribute(loader, name)
    if type(value) is not kind or not 0 <= value <= layout.MAX_RANK:
        return None
    return value


def _attribute(loader: object, name: str) -> object:
    try:
        return getattr(loader, name, None)
    except Exception:  # noqa: BLE001 - a property of a foreign class may raise anything; training continues
        return None
