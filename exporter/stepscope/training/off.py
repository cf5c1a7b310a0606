"""The names that a training script imports with STEPSCOPE=off: the same names, doing nothing."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Thing = TypeVar("Thing")


def is_off() -> bool:
    """Returns whether STEPSCOPE is off, 0, false or no, in upper or lower case."""
    return os.environ.get("STEPSCOPE", "").strip().lower() in ("off", "0", "false", "no")


def nothing(*_: object, **__: object) -> None:
    pass


start = finish = instrument = nothing
count = gauge = begin_step = mark = end_step = record_step = begin_component = end_component = nothing


def watch(loader: Thing, *_: object, **__: object) -> Thing:
    return loader


class _Nothing:
    """A context manager that does nothing, and a decorator that returns the function unchanged."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Thing) -> Thing:
        return function


fetch = _Nothing()


def step(*_: Any, **__: Any) -> _Nothing:
    return fetch


component = step
