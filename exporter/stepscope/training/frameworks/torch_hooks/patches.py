"""Replaces functions of torch by timed ones, so that training never notices.

A wrapper begins by asking whether Dynamo traces it: Dynamo folds the answer, and with it the wrapper. A name
that this version of torch does not have is left out with a debug line. The first failure of a hook switches
it off and is reported.
"""

from __future__ import annotations

import sys
from functools import wraps
from types import ModuleType

import torch

from stepscope.training.automatic import automatic
from stepscope.training.frameworks.around import timed
from stepscope.training.session import complain, recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_dynamo_compiling", torch._utils.is_compiling
)

# The only classes of PyTorch with functions of ours, and why neither instances nor functions of modules do.
# Each function is replaced in the class that defines it. So no class gets an attribute, and a tool that
# replaces the same function, as torch.fx does, replaces ours with it.
CLASSES = {
    "Module": "__call__ is looked up in the class; TorchScript and copies read the attributes of a model",
    "DataLoader": "__iter__ is looked up in the class",
    "StatefulDataLoader": "of torchdata: it has its own __iter__",
    "_BaseDataLoaderIter": "__next__ is looked up in the class",
    "_MultiProcessingDataLoaderIter": "nothing else knows when its workers end",
    "GradScaler": "a step that it skips calls nothing else",
    "ProcessGroup": "made in C++, it accepts no attribute; Dynamo knows the functions of torch.distributed",
    "Work": "made in C++, it accepts no attribute",
}

_removals: list[Callable[[], None]] = []
# The wrappers in modules, by what they replace, and by themselves. A function that two modules have stays one
# function: otherwise pickle refuses it.
_shared: dict[Any, Any] = {}


def replace(owner: Any, name: str, wrapper_of: Callable[..., Callable[..., Any]]) -> None:
    """Replaces a function that a module, or one of CLASSES, defines by `wrapper_of(function)`."""
    original = vars(owner).get(name)
    if original is None or (isinstance(owner, type) and owner.__name__ not in CLASSES):
        debug(f"this torch has no {getattr(owner, '__name__', owner)}.{name}: not timed")
        return
    is_module = isinstance(owner, ModuleType)
    wrapper = _shared.get(original) if is_module else None
    if wrapper is None:
        wrapper = wraps(original)(wrapper_of(original))
    if is_module:
        _shared[original] = _shared[wrapper] = wrapper
    setattr(owner, name, wrapper)

    def restore() -> None:
        # Otherwise somebody wrapped it once more: it stays, and passes on.
        if vars(owner).get(name) is wrapper:
            setattr(owner, name, wrapper.__wrapped__)

    _removals.append(restore)


def time_calls(owner: Any, name: str, component: int, operation: float = 0.0) -> None:
    """Counts the calls of a function as this component."""
    replace(owner, name, lambda original: counted(original, name, component, lambda *_: operation))


def counted(
    original: Callable[..., Any],
    name: str,
    component: int,
    operation: Callable[..., float],
    see: Callable[[Any, Any], None] | None = None,
) -> Callable[..., Any]:
    """Returns a function whose calls count as this component, until that fails.

    `operation` gets the first argument of a call. `see` gets the place and the result of one.
    """

    def begin(*arguments: object, **_: object) -> int:
        return recorder.enter(component, operation(*arguments[:1]))

    return timed(original, name, begin, lambda place, _: recorder.leave(place), is_compiling, see)


def on_removal(function: Callable[[], None]) -> None:
    """Calls a function when hooks are removed."""
    _removals.append(function)


def remove() -> None:
    """Removes all hooks, the latest first."""
    _shared.clear()
    while _removals:
        _removals.pop()()


def failed(hook: str, error: Exception) -> None:
    """Reports that a hook failed and is off from now on."""
    complain(hook, f"{hook} is no longer timed: {type(error).__name__}: {error}")


def switched_off(hook: str, error: Exception) -> Callable[[], bool]:
    """Reports that a hook failed. Returns what replaces the hook's question whether Dynamo traces it.

    Its answer is always yes: so a failed hook only calls the original, and no call pays for the possibility.
    """
    automatic.unusual.add(hook)
    failed(hook, error)
    return lambda: True


def after_import(module: str, function: Callable[[], None]) -> None:
    """Calls a function once a module is imported: now, or after its import by the script."""
    if module in sys.modules:
        function()
        return
    import stepscope_startup

    stepscope_startup.AfterImport({module: function})


def debug(text: str) -> None:
    import logging

    logging.getLogger("stepscope").debug(text)
