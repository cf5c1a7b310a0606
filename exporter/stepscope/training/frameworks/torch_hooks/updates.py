"""Finds updates of parameters without an optimizer of PyTorch: by the script itself, or a framework.

What has updated parameters clears their gradients, so that these are gone or overwritten before the next
backward pass. An accumulated step leaves them alone in between. Gradients that are only looked at leave the
parameters as they are: those on a CPU are compared, until they are seen to change.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from weakref import ref

from stepscope.training.automatic import automatic
from stepscope.training.frameworks.torch_hooks.results import is_plain
from stepscope.training.recorder import NOT_OPENED
from stepscope.training.session import of_run, recorder, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BYTES = 1000  # of a parameter, that are compared


class Updates:
    """A parameter, and the version of its gradient after the latest backward pass."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forgets the latest backward pass: an optimizer makes steps."""
        self._parameter: Callable[[], Any] = lambda: None
        self._version = 0
        self._some: bytes | None = None  # of the parameter's numbers; None: not known
        self._are_made = False  # whether parameters were seen to change

    def look(self) -> None:
        """Ends a step before a backward pass, if something used the gradients of the pass before."""
        if automatic.end_with_data is None or (parameter := self._parameter()) is None:
            return
        gradient = parameter.grad
        if gradient is not None and gradient._version == self._version:
            return
        if not self._are_made:
            now = _some(parameter)
            self._are_made = now is None or now != self._some
        if self._are_made:
            automatic.updated()
        elif session.ledger is not None and not session.ledger.has_steps():
            automatic.updated("")

    def passed(self, tensors: Any) -> None:
        """Looks at the gradient of one parameter after a backward pass of these tensors."""
        parameter = self._parameter()
        is_ended = parameter is not None and automatic.end_with_data is None  # by Keras, for example
        automatic.end_with_data = self._data_ended
        if parameter is None or parameter.grad is None:
            first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
            parameter = _leaf(first.grad_fn if is_plain(first) else None)
            self._parameter = ref(parameter) if parameter is not None else lambda: None
        if parameter is not None:
            self._version = parameter.grad._version
            self._some = None if is_ended or self._are_made else _some(parameter)

    def _data_ended(self) -> None:
        if self._are_made:
            automatic.end_with_data = None
            recorder.end_automatic_step(NOT_OPENED)


def _some(parameter: Any) -> bytes | None:
    """Returns some bytes of a parameter, without an operation of PyTorch, which a profiler would show.

    Returns None for those that are not on a CPU: to wait for a device would take time.
    """
    with suppress(Exception):  # of functions that have their own idea of a tensor
        if parameter.device.type != "cpu" or not parameter.is_contiguous():
            return None
        storage, each = parameter.untyped_storage(), parameter.element_size()
        begin, size = parameter.storage_offset() * each, parameter.numel() * each
        address = storage.data_ptr()
        if address and begin + size <= storage.nbytes():  # it may be freed, as by FSDP
            memory = (ctypes.c_char * size).from_address(address + begin)
            return bytes(memoryview(memory)[:: size // BYTES | 1])  # odd: bytes of all places in a number
    return None


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


updates = of_run(Updates())
CODES = tuple(each.__code__ for each in (Updates.look, Updates.passed, _some, _leaf))
