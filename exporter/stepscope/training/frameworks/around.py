"""Calls a hook before and after a framework's function, so that training never notices."""

from __future__ import annotations

import logging
from functools import wraps
from types import ModuleType

from stepscope.training.session import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def replace(owner: Any, name: str, wrapper_of: Callable[..., Callable[..., Any]]) -> None:
    """Replaces a function by `wrapper_of(function)`. A name that this version lacks is left out.

    `owner` is the class or module that defines the function: no class gets an attribute that it inherits.
    """
    original = vars(owner).get(name) if owner is not None else None
    if original is None:
        logging.getLogger("stepscope").debug("this version has no %s of %s: not hooked", name, owner)
        return
    wrapper = wraps(original)(wrapper_of(original))
    if isinstance(owner, ModuleType):
        wrapper.__module__ = owner.__name__  # where pickle finds this one, and not the original
    setattr(owner, name, wrapper)


def never() -> bool:
    return False


def nothing(*_: object) -> None:
    pass


def around(
    owner: Any,
    name: str,
    begin: Callable[..., Any],
    end: Callable[[Any, bool], None] = nothing,
    is_traced: Callable[[], bool] = never,
    see: Callable[[Any, Any], None] | None = None,
) -> None:
    """Calls `begin`, `end` and `see` around each call of a function, as `timed` does."""
    replace(owner, name, lambda original: timed(original, name, begin, end, is_traced, see))


def timed(
    original: Callable[..., Any],
    name: str,
    begin: Callable[..., Any],
    end: Callable[[Any, bool], None] = nothing,
    is_traced: Callable[[], bool] = never,
    see: Callable[[Any, Any], None] | None = None,
) -> Callable[..., Any]:
    """Returns the function with `begin`, called with the arguments, before and `end` after each call.

    `end` gets the answer of `begin`, and whether the function returned instead of raising an error. It is
    called only if there is an answer. Neither is called while `is_traced`: Dynamo folds it, and the hook.
    `see` then gets the answer and the result. The first failure of one of them switches all off.
    """
    works = True

    def failed(error: Exception) -> None:
        nonlocal works
        works = False
        complain(name, f"{name} is no longer hooked: {type(error).__name__}: {error}")

    def function(*arguments: Any, **keywords: Any) -> Any:
        if is_traced() or not works:
            return original(*arguments, **keywords)
        try:
            begun = begin(*arguments, **keywords)
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            failed(error)
            return original(*arguments, **keywords)
        if begun is None:
            return original(*arguments, **keywords)
        done = False
        try:
            result = original(*arguments, **keywords)
            done = True
            return result
        finally:
            try:
                end(begun, done)
                if done and see is not None:
                    see(begun, result)
            except Exception as error:  # noqa: BLE001 - as above
                failed(error)

    return function
