"""Finds updates of parameters without an optimizer of PyTorch: by the script itself, or a framework.

What has updated parameters clears their gradients, so that these are gone or overwritten before the next
backward pass. An accumulated step leaves them alone in between.
"""

from __future__ import annotations

from weakref import ref

from stepscope.training.automatic import automatic
from stepscope.training.frameworks.torch_hooks.results import is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Updates:
    """A parameter, and the version of its gradient after the latest backward pass."""

    def __init__(self) -> None:
        self._parameter: Callable[[], Any] = lambda: None
        self._version = 0

    def look(self) -> None:
        """Ends a step before a backward pass, if something used the gradients of the pass before."""
        if automatic.passed and (parameter := self._parameter()) is not None:
            gradient = parameter.grad
            if gradient is None or gradient._version != self._version:
                automatic.updated()

    def passed(self, tensors: Any) -> None:
        """Looks at the gradient of one parameter after a backward pass of these tensors."""
        automatic.passed = True
        parameter = self._parameter()
        if parameter is None or parameter.grad is None:
            first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
            parameter = _leaf(first.grad_fn if is_plain(first) else None)
            self._parameter = ref(parameter) if parameter is not None else lambda: None
        if parameter is not None:
            self._version = parameter.grad._version


def _leaf(function: Any) -> Any:
    """Returns a tensor with a gradient in the graph of this function; None: it has none."""
    found, reached = {function}, [function]
    while reached:
        function = reached.pop()
        parameter = getattr(function, "variable", None)
        if is_plain(parameter) and parameter.grad is not None:
            return parameter
        for following, _ in getattr(function, "next_functions", ()):
            if following not in found:
                found.add(following)
                reached.append(following)
    return None


updates = Updates()
CODES = (Updates.look.__code__, Updates.passed.__code__, _leaf.__code__)
