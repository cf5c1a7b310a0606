"""Waits for batches: `DataLoader.__iter__`, which starts workers, and `__next__` of its iterators."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from functools import partial
from time import perf_counter

import torch
from torch.utils.data import dataloader

import stepscope
from stepscope.training import torch_loader
from stepscope.training.automatic import LoaderWaits, automatic
from stepscope.training.frameworks.torch_hooks.patches import (
    after_import,
    is_compiling,
    replace,
    switched_off,
    time_calls,
)
from stepscope.training.frameworks.torch_hooks.results import results
from stepscope.training.loader import Waits, waits_of
from stepscope.training.recorder import COMPONENT_INDEX, NOT_OPENED
from stepscope.training.session import complain, recorder, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
_MOST_ATTRIBUTES = 100  # of an object that iterates; a larger dictionary is data
_WAITS = "_stepscope"  # attribute of an iterator that is timed: its LoaderWaits


def install() -> None:
    """Hooks the iterators of all DataLoaders. A loader that the script watches by hand is left alone."""
    replace(dataloader.DataLoader, "__iter__", _timed_iter)
    replace(dataloader._BaseDataLoaderIter, "__next__", _quick_next)
    # The end of the workers of a pass that the script leaves, as `next(iter(loader))` does, is in no wait.
    time_calls(dataloader._MultiProcessingDataLoaderIter, "_shutdown_workers", COMPONENT_INDEX["data_wait"])
    after_import(_STATEFUL, _hook_stateful_loader)


def _hook_stateful_loader() -> None:
    loader = getattr(sys.modules[_STATEFUL], "StatefulDataLoader", None)
    if loader is not None:
        replace(loader, "__iter__", _timed_iter)


def _timed_iter(original: Callable[..., Any]) -> Callable[..., Any]:
    leave, tracing, clock = recorder.leave, is_compiling, perf_counter

    def timed(self: Any) -> Any:
        nonlocal tracing
        if tracing():
            return original(self)
        try:
            waits, place = _begin(self)
            asked = clock()
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            tracing = _given_up("the start of a loader", error)
            return original(self)
        put_back = None
        try:
            put_back = _time_workers(self)
        except Exception as error:  # noqa: BLE001 - as above; such as of a loader that accepts no attributes
            complain("fetches", f"fetches of a loader are not timed: {type(error).__name__}: {error}")
        try:
            iterator = original(self)
        except BaseException:
            if automatic.waits is waits:
                _stopped(place or 0)
            raise
        finally:
            if place is None:
                recorder.waiting(0.0)
            else:
                leave(place)
            if put_back is not None:
                put_back()
        try:
            waits.started, waits.is_usual = clock() - asked, False
            if (own := _own_iterator(iterator)) is None:
                automatic.ended()
            else:
                waits.queue_depth = torch_loader.queue_depth(own)
                setattr(own, _WAITS, waits)
        except Exception as error:  # noqa: BLE001 - as above
            tracing = switched_off("the start of a loader", error)
        return iterator

    return timed


def _own_iterator(iterator: object) -> object:
    """Returns PyTorch's own iterator, around which a loader may put another one, as that of PyG does."""
    near = [iterator]
    if not issubclass(type(iterator), dataloader._BaseDataLoaderIter):
        near = gc.get_referents(iterator)
        for each in [each for each in near if type(each) is dict and len(each) <= _MOST_ATTRIBUTES]:
            near.extend(each.values())
    return next((each for each in near if issubclass(type(each), dataloader._BaseDataLoaderIter)), None)


def _given_up(hook: str, error: Exception) -> Callable[[], bool]:
    """Closes a wait that may be open, and switches the hook off."""
    try:
        recorder.leave(0)
    except Exception as another:  # noqa: BLE001 - as above
        error = another
    return switched_off(hook, error)


def _begin(loader: Any) -> tuple[LoaderWaits, int | None]:
    """Begins the loader's first batch, to which the start of its workers belongs. Returns its place, too.

    If the script makes steps, there is no place (None): the first batch counts the time, once it has come.
    """
    waits = LoaderWaits(waits_of(loader), loader.num_workers)
    place = automatic.requested(waits, torch.is_grad_enabled())
    if place is None:
        if recorder.is_waiting() or not recorder.asks_here():
            return waits, NOT_OPENED
        recorder.waiting(perf_counter())
    return waits, place


def _began_elsewhere(iterator: Any) -> LoaderWaits:
    """Returns what counts the waits for an iterator that no DataLoader began."""
    of = vars(iterator).get
    settings = of("_num_workers"), of("_pin_memory"), of("_prefetch_factor")
    waits = LoaderWaits(lambda phase: Waits(phase, settings, 0))
    torch_loader.time_own_fetches(iterator._num_workers)
    waits.queue_depth = torch_loader.queue_depth(iterator)
    waits.started = 1e-9  # nobody timed it
    setattr(iterator, _WAITS, waits)
    return waits


def _time_workers(loader: Any) -> Callable[[], None] | None:
    """Lets workers that start now time their fetches, by `worker_init_fn`. Returns what puts that back."""
    has_workers = loader.num_workers
    if session.ledger is None or (has_workers and not _workers_find_us(loader)):
        return None
    users_function = loader.worker_init_fn
    torch_loader.time_worker_fetches(loader)
    return partial(setattr, loader, "worker_init_fn", users_function) if has_workers else None


def _workers_find_us(loader: Any) -> bool:
    """Returns whether workers can import this package: a spawned one needs it on its path."""
    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    method = context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    folder = os.path.dirname(os.path.dirname(os.path.abspath(stepscope.__file__)))
    return method == "fork" or folder in map(os.path.abspath, sys.path)


def _quick_next(original: Callable[..., Any]) -> Callable[..., Any]:
    careful, gradients = _timed_next(original), torch.is_grad_enabled
    return recorder.time_batches(original, careful, _stopped, gradients, automatic, is_compiling)


def _stopped(place: int = 0) -> None:
    """Ends the wait for a batch that did not come."""
    try:
        recorder.leave(place)
        automatic.ended()
    except Exception as error:  # noqa: BLE001 - nothing may raise into training
        switched_off("the wait for a batch", error)


def _timed_next(original: Callable[..., Any]) -> Callable[..., Any]:
    leave, waiting, is_waiting = recorder.leave, recorder.waiting, recorder.is_waiting
    asks_here = recorder.asks_here
    tracing, gradients, clock = is_compiling, torch.is_grad_enabled, perf_counter

    def timed(self: Any) -> Any:
        nonlocal tracing
        if tracing():
            return original(self)
        waits = self.__dict__.get(_WAITS)
        try:
            if waits is None and asks_here() and not is_waiting():  # no DataLoader made it, as with fastai
                waits = _began_elsewhere(self)
            place = automatic.requested(waits, gradients()) if waits is not None else None
            asked = clock()
            if place is None:
                if not asks_here():  # another thread fetches batches ahead
                    waits = None
                elif is_waiting():  # the dataset of another loader asks this one
                    automatic.asks_inside(waits)
                    waits = None
                else:
                    waiting(asked)
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            tracing = _given_up("the wait for a batch", error)
            waits = None
        if waits is None:
            return original(self)
        try:
            data = original(self)
        except BaseException:
            try:
                waiting(0.0)
                if place is not None:
                    leave(place)
                automatic.ended()
            except Exception as error:  # noqa: BLE001 - as above
                tracing = switched_off("the wait for a batch", error)
            raise
        try:
            if place is not None:
                leave(place)
            got = clock()
            if results.watched:
                results.came(data)
            depth = waits.queue_depth
            is_first = waits.started > 0.0
            wait = (asked - waits.started, got, depth() if depth is not None else None, is_first)
            waits.started = 0.0
            waits.is_usual = depth is None
            if place is None:  # the script makes steps itself: the wait belongs to the step that follows
                waiting(0.0)
                waits["train" if gradients() else "eval"].count(*wait)
                recorder.waited(wait[0], got)
            else:
                automatic.came(wait)
        except Exception as error:  # noqa: BLE001 - as above
            tracing = switched_off("the wait for a batch", error)
        return data

    return timed
