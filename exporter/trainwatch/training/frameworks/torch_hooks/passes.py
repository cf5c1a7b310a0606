"""Forward and backward passes.

Forward passes of the model as a whole: the classes that wrap models have hooks. The class of
another model is found while the first steps run: it is the one that the script calls itself. So the modules
inside a model cost nothing, and no module gets a hook that would be pickled with it.

In the backward pass of a distributed job, a callback of the autograd engine says when all gradients are
computed. What follows is communication that nothing hides: it is queued first, so before those that wait
for the gradients of other ranks.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from importlib.util import find_spec

import torch
from torch.nn import Module

from trainwatch.training.automatic import automatic
from trainwatch.training.frameworks.torch_hooks.device import device
from trainwatch.training.frameworks.torch_hooks.patches import (
    after_import,
    failed,
    is_compiling,
    replace,
    switched_off,
)
from trainwatch.training.layout import OPERATIONS
from trainwatch.training.recorder import COMPONENT_INDEX, NOT_OPENED
from trainwatch.training.session import recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_FORWARD, _BACKWARD = COMPONENT_INDEX["forward"], COMPONENT_INDEX["backward"]
_COMMUNICATION = COMPONENT_INDEX["communication"]
_GRADIENTS = OPERATIONS.index("gradients") + 1.0

STEPS_TO_LOOK = 3  # in which the classes of models are found
CALLS_TO_LOOK = 100_000  # of modules, in scripts without steps
MOST_CLASSES = 8
OPTIMIZERS_IMPORT_DYNAMO = find_spec("torch._compile") is not None  # since PyTorch 2.1


def install() -> None:
    """Hooks wrappers of models, models that are found at work, and `torch.autograd.backward`."""
    models.wrappers.clear()
    models.begin()
    _hook_wrapper("torch.nn.parallel.distributed", "DistributedDataParallel")
    _hook_wrapper("torch.nn.parallel.data_parallel", "DataParallel")
    _hook_wrapper("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")
    _hook_wrapper("torch._dynamo.eval_frame", "OptimizedModule", "__call__")
    replace(torch.autograd, "backward", _quick_backward)
    after_import("torch._dynamo.eval_frame", _keep_backward_from_dynamo)
    # When the script makes its optimizer, or compiles.
    after_import("torch._dynamo", models.look if OPTIMIZERS_IMPORT_DYNAMO else models.stop_looking)


_backward_codes: list[Any] = []  # of the hook


def _keep_backward_from_dynamo() -> None:
    """Lets Dynamo skip the hook as it skips the original, when a compiled loop calls it between graphs."""
    skip = getattr(sys.modules["torch._dynamo.eval_frame"], "skip_code", None)
    if skip is not None:
        for code in _backward_codes:
            skip(code)


def _hook_wrapper(module: str, name: str, function: str = "forward") -> None:
    def hook() -> None:
        owner = getattr(sys.modules[module], name, None)
        if owner is not None:
            models.wrappers.add(owner)
            replace(owner, function, _quick_forward)

    after_import(module, hook)


def _quick_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    careful, gradients = _timed_forward(original), torch.is_grad_enabled
    return recorder.time_passes(_FORWARD, original, careful, gradients, automatic, is_compiling)


def _timed_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    enter, leave, tracing, gradients = recorder.enter, recorder.leave, is_compiling, torch.is_grad_enabled

    def timed(*arguments: Any, **keywords: Any) -> Any:
        nonlocal tracing
        if tracing():
            return original(*arguments, **keywords)
        try:
            if not gradients():
                automatic.evaluates()
            place = enter(_FORWARD)
            if device.measures and place >= 0:
                device.begins(_FORWARD)
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            tracing = switched_off("the forward pass", error)
            return original(*arguments, **keywords)
        try:
            return original(*arguments, **keywords)
        finally:
            try:
                leave(place)
                if device.measures and place == 0:
                    device.begins(NOT_OPENED)
            except Exception as error:  # noqa: BLE001 - as above
                tracing = switched_off("the forward pass", error)

    return timed


class Models:
    """Finds the classes of the modules that the script calls itself, and times their calls.

    For that it replaces `Module.__call__` in the first steps only, and not before Dynamo is imported nor
    while it compiles: Dynamo must never see it.
    """

    def __init__(self) -> None:
        self.wrappers: set[type] = set()  # that have hooks
        self._found: list[type] = []
        self._inside = False
        self._stop: Callable[[], None] | None = None
        self.begin()

    def begin(self) -> None:
        """Lets `look` look for models in the next steps."""
        self.looking = True
        automatic.unusual.add("models")
        self._steps = STEPS_TO_LOOK
        self._calls = CALLS_TO_LOOK

    def look(self) -> None:
        """Looks for models from now on, unless the first steps are over."""
        is_safe = "torch._dynamo" in sys.modules or not OPTIMIZERS_IMPORT_DYNAMO
        if self.looking and self._stop is None and is_safe:
            self._stop = replace(Module, "__call__", self._looking)

    def step_ended(self) -> None:
        self._steps -= 1
        if self._steps > 0:
            self.look()
        else:
            self.stop_looking()

    def stop_looking(self) -> None:
        """Looks for no models any more, and hooks the classes that were found."""
        self.looking = False
        automatic.unusual.discard("models")
        if self._stop is not None:
            self._stop()
            self._stop = None
            for kind in self._found:
                replace(kind, "__call__", _quick_forward)
            self.wrappers.update(self._found)
            self._found.clear()

    def _looking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        timed_forward, tracing = _timed_forward(original), is_compiling

        def looking(module: Module, *arguments: Any, **keywords: Any) -> Any:
            if tracing() or self._inside or recorder.is_waiting():
                return original(module, *arguments, **keywords)
            self._inside = True
            try:
                try:
                    self._find(type(module))
                except Exception as error:  # noqa: BLE001 - nothing may raise into training
                    self._calls = 0
                    failed("a model that is no wrapper", error)
                return timed_forward(module, *arguments, **keywords)
            finally:
                self._inside = False
                self._calls -= 1
                if self._calls <= 0:
                    self.stop_looking()

        return looking

    def _find(self, kind: type) -> None:
        known = any(issubclass(kind, each) for each in (*self.wrappers, *self._found, torch.jit.ScriptModule))
        if not known and len(self._found) < MOST_CLASSES:
            self._found.append(kind)


models = Models()


def _quick_backward(original: Callable[..., Any]) -> Any:
    careful: Any = _timed_backward(original)
    timed: Any = recorder.time_passes(
        _BACKWARD, original, careful, _is_usual_backward, automatic, is_compiling
    )
    timed.__code__ = timed.__code__.replace()  # not the code of forward passes, which Dynamo must not skip
    _backward_codes[:] = timed.__code__, careful.__code__, _is_usual_backward.__code__
    return timed


def _is_usual_backward() -> bool:
    automatic.trained = True
    return automatic.compiled is None and not Distributed.is_initialized


def _timed_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    enter, leave, tracing = recorder.enter, recorder.leave, is_compiling

    def timed(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
        nonlocal tracing
        if tracing():
            return original(tensors, *arguments, **keywords)
        try:
            if automatic.compiled is not None:
                automatic.end_compiled()
            automatic.trained = True
            place = enter(_BACKWARD)
            if device.measures:
                device.begins(_BACKWARD)
            watched = Distributed.is_initialized and not Distributed.failed
            gradients = _Gradients(tensors) if watched else None
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            tracing = switched_off("the backward pass", error)
            return original(tensors, *arguments, **keywords)
        try:
            return original(tensors, *arguments, **keywords)
        finally:
            try:
                if gradients is not None:
                    gradients.communicated()
                leave(place)
                if device.measures:
                    device.begins(NOT_OPENED)
            except Exception as error:  # noqa: BLE001 - as above
                tracing = switched_off("the backward pass", error)

    return timed


class Distributed:
    """Whether this process has been in a process group, and whether the hook of gradients has failed."""

    is_initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
    failed = False


class _Gradients:
    """The gradients of one backward pass: what follows their last one is communication."""

    __slots__ = ("_handle", "_place", "_thread")

    def __init__(self, tensors: Any) -> None:
        self._place = NOT_OPENED
        self._handle: Any = None
        self._thread = get_ident()  # a thread of the engine may call back, while this one waits
        try:
            compiled = sys.modules.get("torch._dynamo.compiled_autograd")
            first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors))
            if first.grad_fn is not None and not getattr(compiled, "compiled_autograd_enabled", False):
                self._handle = first.grad_fn.register_prehook(self._begun)
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            self._fail(error)

    def _begun(self, _: object) -> None:
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self._computed)
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            self._fail(error)

    def _computed(self) -> None:
        try:
            self._place = recorder.enter(_COMMUNICATION, _GRADIENTS, self._thread)
            if device.measures:
                device.begins(_COMMUNICATION)
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        Distributed.failed = True
        failed("communication after the backward pass", error)

    def communicated(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        recorder.leave(self._place)
