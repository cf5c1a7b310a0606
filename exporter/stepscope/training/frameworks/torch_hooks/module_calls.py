"""Notes the calls of modules during a profile window, so that its passes are known by module.

`Module.__call__` is replaced when the window begins, and put back when it ends: outside of windows, calls
cost nothing more. PyTorch's own `with_stack` slows steps by half, and its `with_modules` knows TorchScript
only.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident, get_native_id
from contextlib import suppress
from functools import wraps
from time import time_ns
from weakref import ref

from torch.nn import Module

from stepscope.training.frameworks.torch_hooks.patches import is_compiling
from stepscope.training.window_files import MODULE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_CALLS = 200_000  # of a window: if there are more, none is known
# Modules in which Dynamo keeps the function that it takes for PyTorch's own.
_DYNAMO = "torch._dynamo.utils", "torch._dynamo.variables.nn_module"


class ModuleCalls:
    """The calls from `start` on: identity of the module, begin and end (ns since the epoch), thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int, int]] = []
        self.modules: dict[int, Callable[[], Module | None]] = {}
        self.threads: dict[int, int] = {}  # their numbers in the system: to ask for one takes long
        self.left, self.too_many = MOST_CALLS, False
        self._original: Any = vars(Module)["__call__"]
        self._noting = _noting(self, self._original)

    def start(self) -> None:
        _replace(self._original, self._noting)

    def stop(self) -> None:
        """Puts `Module.__call__` back. If somebody has wrapped it meanwhile, it only passes on."""
        self.too_many, self.left = self.left <= 0, 0
        _replace(self._noting, self._original)

    def events(self) -> list[dict[str, Any]]:
        """Returns the events of a trace: each module has its name in the outermost one that was called."""
        if self.too_many:
            return []
        in_order = sorted(self.calls, key=lambda call: call[1])
        names = _names([self.modules[module] for module in _outermost(in_order)])
        event = {"ph": "X", "cat": MODULE, "pid": os.getpid()}
        return [
            {**event, "name": names[module], "tid": self.threads[thread], "ts": begin, "dur": end - begin}
            for module, begin, end, thread in in_order
            if module in names
        ]


def _noting(noted: ModuleCalls, original: Any) -> Callable[..., Any]:
    @wraps(original)
    def noting(self: Any, /, *arguments: Any, **keywords: Any) -> Any:
        if is_compiling() or noted.left <= 0:
            return original(self, *arguments, **keywords)
        noted.left -= 1
        module = id(self)
        if module not in noted.modules:
            noted.modules[module] = ref(self)
        thread = get_ident()
        if thread not in noted.threads:
            noted.threads[thread] = get_native_id()
        begin = time_ns()
        try:
            return original(self, *arguments, **keywords)
        finally:
            noted.calls.append((module, begin, time_ns(), thread))

    passing_on: Any = noting
    passing_on._torchdynamo_inline = getattr(original, "_torchdynamo_inline", original)
    return noting


# Dynamo must skip it.
CODE = _noting(ModuleCalls.__new__(ModuleCalls), vars(Module)["__call__"]).__code__


def _replace(function: Any, by: Any) -> None:
    owners = (vars(sys.modules[name]) for name in _DYNAMO if name in sys.modules)
    for owner in [each for each in owners if each.get("unpatched_nn_module_call") is function]:
        owner["unpatched_nn_module_call"] = by
    if vars(Module)["__call__"] is function:
        Module.__call__ = by


def _outermost(calls: list[tuple[int, int, int, int]]) -> list[int]:
    """Returns the modules that no other one called. The calls are in the order of their begins."""
    found: dict[int, None] = {}
    until: dict[int, int] = {}  # by thread
    for module, _, end, thread in calls:
        if end > until.get(thread, 0):
            until[thread] = end
            found[module] = None
    return list(found)


def _names(outermost: list[Callable[[], Module | None]]) -> dict[int, str]:
    """Returns "Net.layers.0 (Linear)" by identity; "Net" of one that no other one contains."""
    names: dict[int, str] = {}
    classes: dict[str, int] = {}
    for known in outermost:
        root = known()
        if root is None or id(root) in names:
            continue
        name = type(root).__name__
        classes[name] = number = classes.get(name, 0) + 1
        name += f" {number}" if number > 1 else ""
        with suppress(Exception):  # of classes that have their own idea of modules
            for path, module in Module.named_modules(root):
                known_as = f"{name}.{path} ({type(module).__name__})" if path else name
                names.setdefault(id(module), known_as)
    return names
