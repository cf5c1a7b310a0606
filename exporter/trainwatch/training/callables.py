"""Decorates a plain function with a context manager, and refuses what that cannot time."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any, ParamSpec, TypeVar

    Arguments = ParamSpec("Arguments")
    Result = TypeVar("Result")

# Flags of a code object (inspect.CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR): calling such a
# function only makes an object, the work comes later.
_WORKS_LATER = 0x20 | 0x80 | 0x200


def wrap_call(
    function: Callable[Arguments, Result], timer: Callable[[], AbstractContextManager[Any, Any]]
) -> Callable[Arguments, Result]:
    """`function`, each call of it inside `timer()`. Raises TypeError for generators and coroutines."""
    if not callable(function):
        raise TypeError(f"{function!r} is not a function that could be timed")
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & _WORKS_LATER:
        raise TypeError(
            f"{function.__qualname__} is a generator or a coroutine, which does its work after the call: "
            "use the context manager inside it"
        )

    from functools import wraps  # not at the top: most scripts decorate nothing, and it is slow to import

    @wraps(function)
    def timed(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with timer():
            return function(*arguments, **named)

    return timed
