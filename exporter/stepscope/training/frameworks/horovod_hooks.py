"""Times Horovod with PyTorch and TensorFlow: collectives that Python waits for are communication.

Horovod sends gradients in another thread. What is exposed is the wait for them, when the optimizer
steps. Nobody can time collectives inside a graph of TensorFlow: one of collectives alone, as Horovod makes
it for gradients and variables outside of `tf.function`, is communication. Otherwise they are a part of it.
"""

from __future__ import annotations

import sys
from functools import partial

from stepscope.training.automatic import NESTED, automatic
from stepscope.training.frameworks.around import around
from stepscope.training.layout import OPERATIONS
from stepscope.training.off import is_off
from stepscope.training.recorder import COMPONENT_INDEX, NOT_OPENED
from stepscope.training.session import recorder, start_as, start_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_COMMUNICATION = COMPONENT_INDEX["communication"]
_COLLECTIVES = {  # by operation; those that begin with "_" are TensorFlow's
    "all_reduce": "allreduce allreduce_ grouped_allreduce grouped_allreduce_ _allreduce _grouped_allreduce",
    "all_gather": "allgather grouped_allgather allgather_object",
    "broadcast": "broadcast broadcast_ broadcast_parameters broadcast_optimizer_state broadcast_object",
    "all_to_all": "alltoall",
    "reduce_scatter": "reducescatter grouped_reducescatter _reducescatter _grouped_reducescatter",
    "barrier": "barrier join",
    "wait": "synchronize",  # for one that was started before
}
_OPTIMIZERS = "_DistributedOptimizer", "_DistributedAdasumOptimizer"  # their functions are copied


def _install(name: str) -> None:
    """Hooks what a module defines, which must be imported completely. Does nothing if Stepscope is off."""
    if is_off():
        return
    module = sys.modules[name]
    if hasattr(module, "init"):
        around(module, "init", _init_begins, partial(_init_ended, module))
    for operation, functions in _COLLECTIVES.items():
        for function in functions.split():
            if getattr(vars(module).get(function), "__module__", "") == name:
                around(module, function, partial(begin_collective, operation), end_collective)
    for optimizer in (vars(module).get(each) for each in _OPTIMIZERS):
        if optimizer is not None:
            around(optimizer, "step", _step_begins, _step_ended)
            around(optimizer, "synchronize", partial(begin_collective, "all_reduce"), end_collective)


install_torch = partial(_install, "horovod.torch.mpi_ops")
install_torch_functions = partial(_install, "horovod.torch.functions")
install_torch_optimizer = partial(_install, "horovod.torch.optimizer")
install_tensorflow = partial(_install, "horovod.tensorflow.mpi_ops")


# -- collectives ---------------------------------------------------------------------------------------


class _Collective:
    """Whether one is timed now: what it calls is a part of it."""

    is_open = False


def begin_collective(operation: str, *_: object, **__: object) -> int | None:
    """Begins to time one of OPERATIONS. Returns its place, or None inside another one."""
    number = OPERATIONS.index(operation) + 1.0
    if _Collective.is_open or _is_traced(number):
        return None
    place = recorder.enter(_COMMUNICATION, number)
    if place == NOT_OPENED:
        return None
    _Collective.is_open = True
    return place


def end_collective(place: int, _done: bool) -> None:
    """Ends the operation at this place."""
    _Collective.is_open = False
    recorder.leave(place)


def _is_traced(operation: float) -> bool:
    context = sys.modules.get("tensorflow.python.eager.context")
    if context is None or context.executing_eagerly():
        return False
    from stepscope.training.frameworks.tensorflow_hooks import collective_is_traced

    collective_is_traced(operation)
    return True


def _init_begins(*_: object, **__: object) -> tuple[int | None]:
    start_run()
    return (begin_collective("init_process_group"),)


def _init_ended(module: Any, begun: tuple[int | None], done: bool) -> None:
    if begun[0] is not None:
        end_collective(begun[0], done)
    if done:
        start_as(int(module.rank()), int(module.size()))


# -- steps of optimizers -------------------------------------------------------------------------------


def _step_begins(*_: object, **__: object) -> bool:
    """Says that the step of PyTorch's optimizer is inside the one of Horovod, which is the same."""
    is_outermost = NESTED not in automatic.unusual
    automatic.unusual.add(NESTED)
    return is_outermost


def _step_ended(is_outermost: bool, _done: bool) -> None:
    if is_outermost:
        automatic.unusual.discard(NESTED)
