"""Steps of optimizers: the end of the first optimizer's step is the end of the training step."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial, wraps
from types import FunctionType, MethodType
from weakref import ref

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers

from stepscope.training.automatic import NESTED, automatic
from stepscope.training.frameworks.around import timed
from stepscope.training.frameworks.published import publish, publish_found
from stepscope.training.frameworks.torch_hooks.device import STEPS, device
from stepscope.training.frameworks.torch_hooks.patches import (
    after_import,
    debug,
    is_compiling,
    on_removal,
    replace,
    switched_off,
)
from stepscope.training.frameworks.torch_hooks.profiler import profiler
from stepscope.training.frameworks.torch_hooks.results import results
from stepscope.training.frameworks.torch_hooks.slow_numbers import slow_numbers
from stepscope.training.frameworks.torch_hooks.updates import updates
from stepscope.training.layout import (
    ANOMALY_DETECTION,
    DOUBLES,
    FIRST_LOOK,
    LOOKS_EVERY,
    OPERATORS,
    PROFILED,
    SYNCHRONISED,
    TENSORS,
    THREADS,
    UNUSED_PARAMETERS,
    WATCHED_EVERY,
)
from stepscope.training.recorder import COMPONENT_INDEX, NOT_OPENED
from stepscope.training.session import of_run, recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_OPTIMIZER = COMPONENT_INDEX["optimizer"]
_HOOK = "the optimizer's step"
# Optimizers may ask other objects, such as a model, for more than a call: they are passed on as they are.
_CLOSURES = FunctionType, MethodType, partial


def install() -> None:
    """Hooks the steps of all optimizers, and the steps that GradScaler skips."""
    automatic.end_compiled = _end_compiled
    register_before = getattr(optimizers, "register_optimizer_step_pre_hook", None)
    register_after = getattr(optimizers, "register_optimizer_step_post_hook", None)
    if register_before is None or register_after is None:
        debug("this torch has no global optimizer hooks: no training steps")
        return
    before, after = quick_hooks()
    on_removal(register_before(before).remove)
    on_removal(register_after(after).remove)
    after_import("torch._dynamo.eval_frame", _keep_hooks)
    scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler  # before PyTorch 2.3
    replace(scaler, "step", _timed_scaler_step)


def quick_hooks() -> tuple[Callable[..., Any], Callable[..., None]]:
    """Returns what optimizers call before and after their steps."""
    return recorder.time_steps(_before, _after, _steps, STEPS, automatic, is_compiling)


class _Steps:
    """The steps of the elected optimizer: the first that makes one, until it is gone or makes none any more.

    It makes none any more if another one makes two: an old optimizer may live long after its last step.
    """

    def __init__(self) -> None:
        self.elected: Callable[[], object] = lambda: None
        # Those that have made a step after the latest one of the elected optimizer: its begin and end.
        self.rivals: dict[int, tuple[tuple[float, ...], tuple[float, ...]] | None] = {}
        self.several = False  # optimizers: each may need a backward pass of its own
        self.ended = 0
        self.place = NOT_OPENED  # of the elected optimizer's step, while it is in it
        self.others: list[int] = []  # places of the steps that other optimizers are in
        self.looks = self.profiled = 0  # at settings, and at how many the script's own profiler ran
        self.looked = 0  # the step before the latest one
        self.known: dict[int, Callable[[], Any]] = {}  # all optimizers that made a step
        self.inner = 0  # steps that the elected optimizer is in, within its own: it calls `super().step()`


_steps = of_run(_Steps())
# The code of the function around each `step`, in which PyTorch calls the hooks.
_wraps = getattr(Optimizer, "profile_hook_step", None)
_WRAPPER = getattr(_wraps and _wraps(lambda _: None), "__code__", None)


def _keep_hooks() -> None:
    """Puts back the hooks that PyTorch 2.0 to 2.2 takes from all optimizers once something is compiled."""
    dynamo = sys.modules["torch._dynamo.eval_frame"]
    patcher = getattr(dynamo, "TorchPatcher", None)
    patch = vars(patcher).get("patch") if patcher is not None else None
    function = getattr(patch, "__func__", None)  # it has a cache
    code = getattr(getattr(function, "__wrapped__", None), "__code__", None)
    if function is None or "hooked" not in getattr(code, "co_names", ()):
        return

    def patch_and_hook() -> None:
        function()
        for each in vars(torch.optim).values():
            if isinstance(each, type) and issubclass(each, Optimizer):
                _hook_again(each)

    patcher.patch = staticmethod(patch_and_hook)  # type: ignore[union-attr]
    dynamo.skip_code(_WRAPPER)
    on_removal(lambda: setattr(patcher, "patch", patch))


def _hook_again(optimizer: Any) -> None:
    step = vars(optimizer).get("step")
    if getattr(step, "hooked", False) and getattr(step, "__code__", None) is not _WRAPPER:
        hooked = Optimizer.profile_hook_step(step)
        hooked.hooked = True  # as PyTorch marks it
        hooked._torchdynamo_inline = step  # what Dynamo compiles
        optimizer.step = hooked


def _is_inside_a_step() -> bool:
    """Returns whether this hook is of a step that another one calls, in this thread.

    A step that raised an error has no frame any more. PyTorch calls the hooks in a function that it puts
    around each `step`: these are nested as the steps are.
    """
    frame, steps = sys._getframe(1), 0
    while frame is not None and steps < 2:
        steps += frame.f_code is _WRAPPER
        frame = frame.f_back  # type: ignore[assignment]
    return steps > 1


def _elect(optimizer: object) -> None:
    """Lets this optimizer end the training steps, also the one that it has made before, if there is one."""
    _steps.elected = _steps.known[id(optimizer)] = ref(optimizer)
    updates.forget()
    if made := _steps.rivals.pop(id(optimizer), None):
        recorder.take_step_out("train", *made)


def has_optimizer() -> bool:
    """Returns whether an optimizer makes steps."""
    return _steps.elected() is not None


def ended() -> int:
    """Returns how many training steps have ended."""
    return _steps.ended


def updated() -> dict[int, Any]:
    """Returns the parameters that optimizers update, by their ids."""
    found: dict[int, Any] = {}
    for optimizer in _steps.known.values():
        for group in getattr(optimizer(), "param_groups", ()):
            for parameter in group["params"]:
                found[id(parameter)] = parameter
    return found


_trained: tuple[list[int], bool] = [], False  # the latest module and optimizers, and the answer


def trains(module: torch.nn.Module, soon: bool = False) -> bool:
    """Returns whether the elected optimizer updates any parameter of the module: others may be frozen.

    `soon`: or one that may take over, as in the second fold of a cross-validation.
    """
    global _trained
    optimizers = [_steps.elected(), *(_steps.known[each]() for each in _steps.rivals if soon)]
    asked = [id(module), *map(id, optimizers)]
    if _trained[0] != asked:
        _trained = asked, False
        with suppress(Exception):  # of classes that have their own idea of parameters
            known = set[int]()
            for optimizer in optimizers:
                for group in getattr(optimizer, "param_groups", ()):
                    known.update(map(id, group["params"]))
            _trained = asked, not known.isdisjoint(map(id, module.parameters()))
    return _trained[1]


_tracing = is_compiling  # until a hook fails


def _before(optimizer: Optimizer, arguments: tuple[Any, ...] = (), keywords: Any = None) -> Any:
    """Begins an optimizer's step. Returns its arguments with the closure timed, if it has one."""
    global _tracing
    if _tracing() or NESTED in automatic.unusual or not recorder.counts_here():
        return None
    try:
        elected = _steps.elected()
        is_open = _steps.place != NOT_OPENED
        if elected is not optimizer and (
            elected is None or (id(optimizer) in _steps.rivals and not (is_open and _is_inside_a_step()))
        ):
            _elect(optimizer)
            elected = optimizer
        if elected is optimizer and is_open:
            if _is_inside_a_step():
                _steps.inner += 1
                return None
            recorder.leave(_steps.place)  # its step before ended with an error
            _steps.inner = 0
        place = recorder.enter(_OPTIMIZER)
        if device.measures:
            device.begins(_OPTIMIZER)
        if elected is optimizer:
            _steps.place = place
        else:
            _steps.others.append(place)
        if len(arguments) > 1 and type(arguments[1]) in _CLOSURES:
            return (arguments[0], _timed_closure(arguments[1], optimizer), *arguments[2:]), keywords
        if keywords and type(closure := keywords.get("closure")) in _CLOSURES:
            return arguments, {**keywords, "closure": _timed_closure(closure, optimizer)}
    except Exception as error:  # noqa: BLE001 - nothing may raise into training
        _tracing = switched_off(_HOOK, error)
    return None


def _timed_closure(closure: Callable[..., Any], optimizer: Optimizer) -> Callable[..., Any]:
    """Returns the closure, whose time is not the optimizer's: frameworks run a whole step in it."""

    def begin(*_: object, **__: object) -> bool:
        is_elected = _steps.elected() is optimizer
        recorder.leave(_steps.place if is_elected else _steps.others.pop())
        if device.measures:
            device.begins(NOT_OPENED)
        return is_elected

    def end(is_elected: bool, _done: bool) -> None:
        place = recorder.enter(_OPTIMIZER)
        if is_elected:
            _steps.place = place
        else:
            _steps.others.append(place)
        if device.measures:
            device.begins(_OPTIMIZER)

    return wraps(closure)(timed(closure, _HOOK, begin, end, _is_off))


def _is_off() -> bool:
    return _tracing()


def _after(optimizer: Optimizer, *_: object) -> None:
    global _tracing
    if _tracing():
        if is_compiling():
            automatic.compiled = optimizer  # Dynamo compiles this line into the code of the step
        return
    if NESTED in automatic.unusual or not recorder.counts_here():
        return
    try:
        if _steps.elected() is not optimizer:
            _steps.several = True
            known = _steps.known.get(id(optimizer))
            if known is None or known() is not optimizer:  # it may have the id of one that is gone
                _steps.known[id(optimizer)] = ref(optimizer)
            if _steps.others:
                recorder.leave(_steps.others.pop())
            # For the batch of the step before it is a part of one, as of a GAN.
            is_one = automatic.waits is not None or not automatic.first
            _steps.rivals.setdefault(id(optimizer), recorder.open_step() if is_one else None)
            return
        if _steps.inner and _is_inside_a_step():
            _steps.inner -= 1
            return
        _steps.inner = 0
        if _steps.others or _steps.rivals:
            _steps.others.clear()  # their steps ended with errors, or are inside this one
            _steps.rivals.clear()
        _steps.ended = ended = _steps.ended + 1
        place, _steps.place = _steps.place, NOT_OPENED
        automatic.step_ended(place)
        if device.measures or ended % STEPS == 0:
            device.step_ended(ended)
        if not _steps.several or _steps.looked < ended - 1:  # others may clear gradients in the next step
            automatic.unusual.discard(OPERATORS)
        results.step_ended()
        looks, between = divmod(ended, FIRST_LOOK)
        if ended == 1:  # steps may take so long that there are few
            with suppress(Exception):
                publish_found(slow_numbers(optimizer))
        if between:
            return
        if looks_at_settings := ended % LOOKS_EVERY == 0 or looks & (looks - 1) == 0:  # takes all parameters
            automatic.unusual.add(OPERATORS)  # the next backward pass counts them
            _steps.looked = ended
            with suppress(Exception):  # of classes that are not PyTorch's own: then they are not known
                publish(_settings(optimizer))
                publish_found(slow_numbers(optimizer))
        if looks_at_settings or ended % WATCHED_EVERY == 0:
            results.begin()
    except Exception as error:  # noqa: BLE001 - nothing may raise into training
        _tracing = switched_off(_HOOK, error)


def _settings(optimizer: Optimizer) -> dict[str, float]:
    """Returns the gauges that tell what slows PyTorch, and is only a setting."""
    found = {THREADS: float(torch.get_num_threads()), TENSORS: float(_updated_one_by_one(optimizer))}
    found[DOUBLES] = float(
        sum(each.dtype == torch.float64 for group in optimizer.param_groups for each in group["params"])
    )
    _steps.looks += 1
    _steps.profiled += profiler.of_script
    if _steps.profiled:
        found[PROFILED] = _steps.profiled / _steps.looks
    if torch.is_anomaly_enabled():
        found[ANOMALY_DETECTION] = 1.0
    if (passes := distributed.per_step(_steps.ended)) and not _steps.several:
        found[SYNCHRONISED] = passes
    if (model := distributed.model()) is not None and model.find_unused_parameters:
        unused = model._get_ddp_logging_data().get("unused_parameter_size")
        found |= {} if unused is None else {UNUSED_PARAMETERS: float(unused)}
    return found


class _Distributed:
    """The process group, and the DistributedDataParallel that is trained, if there are any."""

    def __init__(self) -> None:
        self.is_initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.failed = False  # the hook of gradients
        self.model: Callable[[], Any] = lambda: None  # that searches for unused parameters
        self.latest: Callable[[], Any] = lambda: None  # that was called
        self.synchronised = self.looked_at = 0  # backward passes since a look, and the step of that

    def see(self, module: object) -> None:
        """Keeps a weak reference to a DistributedDataParallel."""
        if hasattr(module, "require_backward_grad_sync"):
            self.latest = ref(module)
            if getattr(module, "find_unused_parameters", False) and hasattr(module, "_get_ddp_logging_data"):
                self.model = ref(module)

    def passes_back(self) -> None:
        """Counts a backward pass in which ranks exchange gradients, outside of `no_sync`."""
        if (model := self.latest()) is not None:
            self.synchronised += model.require_backward_grad_sync

    def per_step(self, ended: int) -> float:
        """Returns how many of them a step had since the latest look; `ended`: steps so far."""
        passes, steps = self.synchronised, ended - self.looked_at
        self.synchronised, self.looked_at = 0, ended
        return passes / max(steps, 1)


distributed = of_run(_Distributed())


def _updated_one_by_one(optimizer: Optimizer) -> int:
    """Returns how many tensors the optimizer updates in a loop; 0 if all at once, or if that is not known.

    Without a setting, PyTorch updates tensors of a GPU at once (`foreach`), and others one by one. It never
    updates several groups at once: what is alone in its group is updated alone.
    """
    tensors = 0
    for group in optimizer.param_groups:
        if "foreach" not in group:
            continue
        on_cpu = [parameter.device.type == "cpu" for parameter in group["params"]]
        at_once = group["foreach"] or group.get("fused")
        alone = 0 if at_once else len(on_cpu) if group["foreach"] is False else sum(on_cpu)
        tensors += alone or len(on_cpu) == 1
    return tensors


def _end_compiled() -> None:
    """Ends the step of an optimizer whose compiled code no hook can time: when the next hook runs."""
    optimizer, automatic.compiled = automatic.compiled, None
    if type(optimizer) is ref:
        optimizer = optimizer()
    if optimizer is None:
        return
    if _steps.elected() is None or id(optimizer) in _steps.rivals:
        _elect(optimizer)
    _after(optimizer)


def _timed_scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def begin(_scaler: object, optimizer: Any, *_: object, **__: object) -> tuple[Any, int, int] | None:
        if not recorder.counts_here():
            return None
        if _steps.elected() is None:
            _elect(optimizer)
        return optimizer, _steps.ended, recorder.enter(_OPTIMIZER)

    def end(begun: tuple[Any, int, int], done: bool) -> None:
        optimizer, ended, place = begun
        recorder.leave(place)
        # It was skipped if gradients were not finite.
        if done and _steps.ended == ended and _steps.elected() is optimizer:
            _after(optimizer)

    return timed(original, "GradScaler.step", begin, end, _is_off)
