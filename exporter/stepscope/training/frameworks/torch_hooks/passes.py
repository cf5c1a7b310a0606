"""Forward and backward passes.

A forward pass is the call of a module outside any other module: the script calls it itself. The hook is in
`Module.__call__`, where every class finds it: no class and no instance gets an attribute. Dynamo is imported
later and takes the hook for the original.

In the backward pass of a distributed job, a callback of the autograd engine says when all gradients are
computed. What follows is communication that nothing hides: it is queued first, so before those that wait
for the gradients of other ranks.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from contextlib import suppress
from time import perf_counter
from types import GeneratorType

import torch
from torch.nn import Module

from stepscope.training import tools
from stepscope.training.automatic import automatic
from stepscope.training.frameworks.around import timed
from stepscope.training.frameworks.published import publish
from stepscope.training.frameworks.torch_hooks import module_calls
from stepscope.training.frameworks.torch_hooks.device import device
from stepscope.training.frameworks.torch_hooks.patches import (
    after_import,
    failed,
    is_compiling,
    on_removal,
    replace,
    switched_off,
)
from stepscope.training.frameworks.torch_hooks.results import CODES, compiles_backward, results
from stepscope.training.frameworks.torch_hooks.steps import (
    distributed,
    ended,
    has_optimizer,
    trains,
    updated,
)
from stepscope.training.frameworks.torch_hooks.untrained import CODES as UNTRAINED
from stepscope.training.frameworks.torch_hooks.untrained import untrained
from stepscope.training.frameworks.torch_hooks.updates import CODES as UPDATES
from stepscope.training.frameworks.torch_hooks.updates import updates
from stepscope.training.layout import FIRST_OPERATORS, LEAVES, MOST_OPERATORS, OPERATIONS, OPERATORS
from stepscope.training.recorder import COMPONENT_INDEX, NOT_OPENED
from stepscope.training.session import of_run, recorder, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_FORWARD, _BACKWARD = COMPONENT_INDEX["forward"], COMPONENT_INDEX["backward"]
_COMMUNICATION = COMPONENT_INDEX["communication"]
_GRADIENTS = OPERATIONS.index("gradients") + 1.0
_TOOLS = "tools"  # why the next pass is looked at closely
# PyTorch makes a tuple of these itself.
_TO_TUPLE: tuple[type, ...] = (GeneratorType, filter, map, type({}.values()))


def install() -> None:
    """Hooks `Module.__call__`, `torch.autograd.backward`, and what asks for gradients without it."""
    _codes[:] = [module_calls.CODE]
    tools.ask_in_pass = _ask_for_tools
    on_removal(lambda: setattr(tools, "ask_in_pass", bool))
    replace(Module, "__call__", _quick_forward)
    for module in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        if module in sys.modules:  # imported before the hook: there Dynamo compares it with the original
            replace(sys.modules[module], "unpatched_nn_module_call", lambda _: Module.__call__)
    replace(torch.autograd, "backward", _quick_backward)
    replace(torch.autograd, "grad", _timed_gradients)
    replace(torch.nn.utils.stateless, "_functional_call", _with_parameters)
    after_import("torch._dynamo.eval_frame", _keep_from_dynamo)


_codes: list[Any] = []  # of the hooks


def _ask_for_tools() -> None:
    """Lets the next pass ask for the tools that are on in it; if none came since the last call, none."""
    (automatic.unusual.discard if _TOOLS in automatic.unusual else automatic.unusual.add)(_TOOLS)


def _keep_from_dynamo() -> None:
    """Lets Dynamo skip the hooks as it skips the originals, when they call what it compiles."""
    skip = getattr(sys.modules["torch._dynamo.eval_frame"], "skip_code", None)
    if skip is not None:
        for code in _codes:
            skip(code)


def _quick_forward(original: Callable[..., Any]) -> Any:
    careful: Any = _timed_forward(original)
    # What `time_modules` does itself, since PyTorch 2.1.
    code = getattr(original, "__code__", None)
    is_known = getattr(code, "co_names", ()) == ("_compiled_call_impl", "_call_impl")
    timed: Any = recorder.time_modules(
        original, careful, torch.is_grad_enabled, automatic, is_compiling, is_known
    )
    timed._torchdynamo_inline = original  # what Dynamo compiles in place of it
    _codes.extend((timed.__code__, careful.__code__, *CODES))
    return timed


def _timed_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    enter, leave, tracing, gradients = recorder.enter, recorder.leave, is_compiling, torch.is_grad_enabled

    def timed(*arguments: Any, **keywords: Any) -> Any:
        nonlocal tracing
        if tracing():
            return original(*arguments, **keywords)
        try:
            begin = None
            if _TOOLS in automatic.unusual:
                automatic.unusual.discard(_TOOLS)
                tools.note_more()
            if session.windows is not None:
                session.windows.end_if_idle()
            evaluates = not gradients()
            if not evaluates:
                automatic.end_evaluation()
                if distributed.is_initialized:
                    distributed.see(arguments[0])
            else:
                automatic.evaluated = True
                if automatic.waits is None and trains(arguments[0], soon=True):  # no teacher or target
                    begin = recorder.so_far()
            watched = perf_counter() if results.watched and not evaluates else 0.0
            place = enter(_FORWARD)
            if device.measures and place >= 0:
                device.begins(_FORWARD)
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            tracing = switched_off("the forward pass", error)
            return original(*arguments, **keywords)
        result: Any = None
        try:
            result = original(*arguments, **keywords)
            return result
        finally:
            try:
                leave(place)
                if watched and trains(arguments[0]):
                    results.passed(result, perf_counter() - watched, [*arguments[1:], *keywords.values()])
                if evaluates:
                    automatic.evaluates(begin, arguments[0].training)
                if device.measures and place == 0:
                    device.begins(NOT_OPENED)
            except Exception as error:  # noqa: BLE001 - as above
                tracing = switched_off("the forward pass", error)

    return timed


def _quick_backward(original: Callable[..., Any]) -> Any:
    careful: Any = _timed_backward(original)
    timed: Any = recorder.time_backward(original, careful, _is_usual_backward, automatic, is_compiling)
    _codes.extend((timed.__code__, careful.__code__, _is_usual_backward.__code__, _Graphs.CODE))
    _codes.extend((*UNTRAINED, updated.__code__, ended.__code__, has_optimizer.__code__, *UPDATES))
    return timed


def _is_usual_backward() -> bool:
    if automatic.compiled is not None or distributed.is_initialized or not has_optimizer():
        return False
    automatic.trained = True
    return True


def _timed_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    enter, leave, tracing = recorder.enter, recorder.leave, is_compiling
    counts_here = recorder.counts_here

    def timed(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
        nonlocal tracing
        if tracing() or not counts_here():
            return original(tensors, *arguments, **keywords)
        try:
            if automatic.compiled is not None:
                automatic.end_compiled()
            automatic.end_evaluation()
            by_itself = not has_optimizer()
            if by_itself:
                updates.look()
            automatic.trained = True
            if results.watched and compiles_backward():
                results.forget()
            looks = False
            if OPERATORS in automatic.unusual:
                with suppress(Exception):  # then they are not known
                    looks = _graphs.add(tensors)
            place = enter(_BACKWARD)
            if device.measures:
                device.begins(_BACKWARD)
            watched = distributed.is_initialized and not distributed.failed
            gradients = _Gradients(tensors) if watched else None
            if watched and place == 0:  # no pass inside another one, as of a checkpoint
                distributed.passes_back()
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
                if looks:
                    with suppress(Exception):  # of classes of tensors that have their own idea of a gradient
                        untrained.ended()
                if by_itself:
                    with suppress(Exception):  # of classes of tensors that have their own idea of a graph
                        updates.passed(tensors)
            except Exception as error:  # noqa: BLE001 - as above
                tracing = switched_off("the backward pass", error)

    return timed


def _timed_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `torch.autograd.grad`: a backward pass if it computes gradients of parameters."""

    def begin(_outputs: object, inputs: Any, *_: object, **__: object) -> int | None:
        with suppress(Exception):  # of tensors without a version, or with their own idea of one
            if recorder.counts_here() and updates.asked(inputs, not has_optimizer()):
                return recorder.enter(_BACKWARD)
        return None

    call = timed(original, "gradients", begin, lambda place, _: recorder.leave(place), is_compiling)

    def gradients(outputs: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        if not is_compiling() and type(inputs) in _TO_TUPLE:
            inputs = tuple(inputs)
        return call(outputs, inputs, *arguments, **keywords)

    _codes.extend((gradients.__code__, call.__code__, begin.__code__))
    return gradients


def _with_parameters(original: Callable[..., Any]) -> Callable[..., Any]:
    return timed(original, "functional_call", updates.given, is_traced=is_compiling)


class _Graphs:
    """The graphs that the backward passes of a step go through: many, if it accumulates gradients."""

    def __init__(self) -> None:
        self._step = -1
        self._operators = self._leaves = 0
        self._is_first = False

    def add(self, tensors: Any) -> bool:
        """Adds the graph of these tensors: about a microsecond for each of its nodes. Publishes the gauges.

        Returns False in the step after those of a look. It has no other code in it, as of a comprehension:
        Dynamo would compile that, and only skips this.
        """
        if self._step == ended() - 1:
            untrained.look_again()
            return False
        found: set[Any] = set()
        for tensor in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
            found.add(tensor.grad_fn)
        found.discard(None)
        reached, leaves = list(found), 0
        while reached and len(found) < MOST_OPERATORS:
            following = reached.pop().next_functions
            leaves += not following
            for function, _ in following:
                if function is not None and function not in found:
                    found.add(function)
                    reached.append(function)
        for function in reached:
            leaves += not function.next_functions
        if self._step != ended():
            self._step, self._operators, self._leaves = ended(), 0, 0
            self._is_first = session.ledger is not None and FIRST_OPERATORS not in session.ledger.gauges
            untrained.look()
        untrained.begins(found)
        self._operators += len(found) - leaves
        self._leaves = max(self._leaves, leaves)
        if self._operators + self._leaves >= MOST_OPERATORS:
            automatic.unusual.discard(OPERATORS)
        graph = {OPERATORS: float(self._operators), LEAVES: float(self._leaves)}
        if self._is_first:
            graph[FIRST_OPERATORS] = graph[OPERATORS]
        publish(graph)
        return True

    CODE = add.__code__


_graphs = of_run(_Graphs())


class _Gradients:
    """The gradients of one backward pass: what follows their last one is communication."""

    __slots__ = ("_handle", "_place", "_thread")

    def __init__(self, tensors: Any) -> None:
        self._place = NOT_OPENED
        self._handle: Any = None
        self._thread = get_ident()  # a thread of the engine may call back, while this one waits
        try:
            compiled = sys.modules.get("torch._dynamo.compiled_autograd")
            # A generator gives each of its tensors once: PyTorch gets them.
            first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
            if getattr(first, "grad_fn", None) is not None and not getattr(
                compiled, "compiled_autograd_enabled", False
            ):
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
        distributed.failed = True
        failed("communication after the backward pass", error)

    def communicated(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        recorder.leave(self._place)
