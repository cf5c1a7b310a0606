"""Finds updates of parameters without an optimizer of PyTorch: by the script itself, or a framework.

What has updated parameters clears their gradients, so that these are gone or overwritten before the next
backward pass. An accumulated step leaves them alone in between. Gradients that are only looked at leave the
parameters as they are: those on a CPU are compared, until they are seen to change.

`torch.autograd.grad` puts gradients nowhere. So parameters whose gradients a script asks for are compared
with what they were when it asked before, also those that `torch.func` replaces by others.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import partial
from weakref import ref

import torch
from torch.nn import Parameter

from stepscope.training.automatic import automatic
from stepscope.training.frameworks.torch_hooks.results import is_plain
from stepscope.training.recorder import NOT_OPENED
from stepscope.training.session import of_run, recorder, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BYTES = 1000  # of a parameter, that are compared
MOST_ASKED = 100  # sets of parameters of which gradients are asked


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
        # The first parameter of each set whose gradients the script requested, and what it was then, by its
        # identity, or by the shape of one that a module got in place of its own: that is new each time.
        self._asked: dict[object, tuple[Callable[[], Any], object]] = {}
        self._have_moved = False  # whether these had been updated at the latest request,
        self._latest: Callable[[], bool] = bool  # and whether they were since then
        self._given: Callable[[], Any] = lambda: None  # what a module got in place of its first parameter

    def look(self) -> None:
        """Ends a step before a backward pass, if something used the gradients of the pass before."""
        if automatic.end_with_data is None or (parameter := self._parameter()) is None:
            return
        gradient = parameter.grad
        if gradient is not None and gradient._version == self._version:
            return
        if not self._are_made:
            now = some_bytes(parameter)
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
            self._some = None if is_ended or self._are_made else some_bytes(parameter)

    def given(self, _module: object, parameters: Any, *_: object, **__: object) -> None:
        """Knows what the script gives a module in place of its parameters: the first of them."""
        for one in parameters.values() if type(parameters) is dict else ():
            self._given = ref(one) if is_plain(one) else self._given
            break

    def asked(self, inputs: Any, ends_steps: bool) -> bool:
        """Ends a step before the script asks for gradients of these, if it updated them since it asked last.

        Returns whether they are parameters, and not data. `ends_steps`: no optimizer does.
        """
        first: Any = None
        given = self._given()
        several = inputs.values() if type(inputs) is dict else inputs
        for one in several if isinstance(inputs, (list, tuple, dict)) else (inputs,):
            if type(one) is Parameter or (one is given and given is not None):
                first = one
                break
        if first is None:
            return False
        key: object = id(first)
        if type(first) is not Parameter:
            functions = torch._C._functorch
            while functions.is_functorch_wrapped_tensor(first):
                first = functions.get_unwrapped(first)
            key = first.shape
        if ends_steps and first.grad_fn is None:  # otherwise it is a step on the way to the loss, as in MAML
            self._have_moved = self._has_moved(key, first)
            if self._have_moved:
                automatic.updated()
            if len(self._asked) >= MOST_ASKED:
                self._asked.clear()
            self._asked[key] = ref(first), _state(first)
            automatic.has_updated = self._latest = partial(self._has_moved, key)
            automatic.end_with_data = self._data_of_asked_ended
        return True

    def _has_moved(self, key: object, now: Any = None) -> bool:
        """Returns whether a parameter was updated, or replaced by another: `now`, if that is known."""
        before, state = self._asked.get(key, (None, None))
        parameter = before() if before is not None else None
        if type(now) is Parameter and parameter is not now:  # it may have the identity of one that is gone
            return False
        known = parameter if now is None else now
        return self._have_moved if known is None else state not in (None, _state(known))

    def _data_of_asked_ended(self) -> None:
        automatic.end_with_data = None
        if self._latest():
            recorder.end_automatic_step(NOT_OPENED)
            self._asked.clear()

    def _data_ended(self) -> None:
        if self._are_made:
            automatic.end_with_data = None
            recorder.end_automatic_step(NOT_OPENED)


def _state(parameter: Any) -> tuple[int, bytes | int]:
    """Returns what an update of a parameter changes. One of `.data` on a device changes none of it."""
    return parameter._version, some_bytes(parameter) or parameter.data_ptr()


def some_bytes(parameter: Any) -> bytes | None:
    """Returns some bytes of a tensor, without an operation of PyTorch, which a profiler would show.

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
CODES = tuple(
    each.__code__
    for each in (
        *(Updates.look, Updates.passed, some_bytes, _leaf),
        *(Updates.given, Updates.asked, Updates._has_moved, _state),
    )
)
