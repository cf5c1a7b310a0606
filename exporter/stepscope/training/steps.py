"""Steps and their components as context managers and decorators; the plain calls are the recorder's."""

from __future__ import annotations

from stepscope.training.recorder import PHASE_INDEX, unknown_phase
from stepscope.training.session import recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any, ParamSpec, TypeVar

    Arguments = ParamSpec("Arguments")
    Result = TypeVar("Result")


# Flags of a code object (inspect.CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR): calling such a
# function only makes an object, it does its work later.
_WORKS_LATER = 0x20 | 0x80 | 0x200


def wrap_call(
    function: Callable[Arguments, Result], timer: Callable[[], AbstractContextManager[Any, Any]]
) -> Callable[Arguments, Result]:
    """Returns a function that calls `function` inside `timer()`.

    Raises TypeError for generators and coroutines.
    """
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


class step:  # noqa: N801 - used like a function: `with step("train"):` or `@step("train")`
    """One step of a phase (train, eval, predict, global). Raises ValueError for any other.

    A step inside a step is not counted: its components belong to the outer step. A step left by an
    exception is not counted as a step, but its components still count as time.
    """

    __slots__ = ("_inside", "_phase")

    def __init__(self, phase: str = "train") -> None:
        if phase not in PHASE_INDEX:
            raise unknown_phase(phase)
        self._phase = phase
        self._inside = 0  # how often this object was entered inside another step

    def __enter__(self) -> None:
        if recorder.in_step():
            self._inside += 1
        else:
            recorder.begin_step(self._phase)

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._inside:
            self._inside -= 1
        elif error is None:
            recorder.end_step()
        else:
            recorder.discard_step()

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        return wrap_call(function, lambda: step(self._phase))


class component:  # noqa: N801 - used like a function: `with component("forward"):` or `@component("forward")`
    """Time of one component. Can be entered again and again.

    An unknown name is reported once on stderr, and its time counts as other code of the step.
    A component inside a component pauses the outer component. Outside a step its time counts for the
    component but for no step. Time counts also if an exception leaves the component.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        recorder.begin_component(self._name)

    def __exit__(self, *_: object) -> None:
        recorder.end_component()

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        return wrap_call(function, lambda: self)
