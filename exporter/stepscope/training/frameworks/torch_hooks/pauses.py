"""Work that is no part of a pass: checkpoints, compilation, and the garbage collector."""

from __future__ import annotations

import gc
import sys
from functools import partial
from weakref import ref

from stepscope.training.automatic import automatic
from stepscope.training.frameworks.torch_hooks.patches import after_import, failed, on_removal, time_calls
from stepscope.training.recorder import COMPONENT_INDEX, NOT_OPENED
from stepscope.training.session import recorder

_CHECKPOINT, _COMPILE, _GC = (COMPONENT_INDEX[name] for name in ("checkpoint", "compile", "gc"))

# Functions that save, by module.
_SAVES = {
    "torch": ("save",),
    "torch.serialization": ("save",),
    "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
}


def install() -> None:
    """Hooks the functions that save, the callbacks of Dynamo's compiler, and the garbage collector."""
    for module, names in _SAVES.items():
        after_import(module, partial(_time_saves, module, names))
    after_import("torch._dynamo.callback", _hook_compiler)
    gc.callbacks.append(_collects)
    on_removal(lambda: gc.callbacks.remove(_collects))


def _time_saves(module: str, names: tuple[str, ...]) -> None:
    for name in names:
        time_calls(sys.modules[module], name, _CHECKPOINT)


class _Open:
    """Places of open components that a callback closes."""

    compile = gc = NOT_OPENED


def _hook_compiler() -> None:
    handler = getattr(sys.modules["torch._dynamo.callback"], "callback_handler", None)
    if handler is None:
        return

    def begins(*_: object) -> None:
        try:
            _Open.compile = recorder.enter(_COMPILE)
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            failed("the compilation", error)

    def ends(*_: object) -> None:
        place, _Open.compile = _Open.compile, NOT_OPENED
        try:
            recorder.leave(place)
        except Exception as error:  # noqa: BLE001 - as above
            failed("the compilation", error)

    handler.register_start_callback(begins)
    handler.register_end_callback(ends)
    on_removal(lambda: handler.remove_start_callback(begins))
    on_removal(lambda: handler.remove_end_callback(ends))


def _collects(phase: str, info: dict[str, int]) -> None:
    """Times collections of the older generations: those of the youngest take microseconds.

    Lets go of an optimizer that only a hook keeps until the next hook runs.
    """
    if automatic.compiled is not None and type(automatic.compiled) is not ref:
        automatic.compiled = ref(automatic.compiled)
    if not info["generation"]:
        return
    if phase == "start":
        _Open.gc = recorder.enter(_GC)
    else:
        recorder.leave(_Open.gc)
        _Open.gc = NOT_OPENED
