"""Communication that Python starts or waits for: collectives, `Work.wait`, and the start of a process group.

What DDP's reducer sends, C++ starts; the backward pass knows when training waits for that.
"""

from __future__ import annotations

import torch

from stepscope.training.frameworks.around import timed
from stepscope.training.frameworks.torch_hooks.patches import counted, replace, time_calls
from stepscope.training.frameworks.torch_hooks.steps import distributed
from stepscope.training.layout import OPERATIONS
from stepscope.training.recorder import COMPONENT_INDEX
from stepscope.training.session import complain, recorder, start_as, start_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_COMMUNICATION = COMPONENT_INDEX["communication"]
_OPERATION = {name: i + 1.0 for i, name in enumerate(OPERATIONS)}

# Parts of names of the process group's methods, the most telling first, without underscores: torch 2 has
# allgather, allgather_into_tensor_coalesced, all_gather_single, _allgather_base and more.
_NAMES = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("recv", "recv"),
    ("send", "send"),
)


def install() -> None:
    """Hooks torch.distributed, if this torch has it."""
    if not torch.distributed.is_available():
        return
    from torch._C import _distributed_c10d as c10d
    from torch.distributed import distributed_c10d

    for name in dir(c10d.ProcessGroup):
        operation = _operation(name)
        if operation:
            replace(c10d.ProcessGroup, name, _timed_collective(_OPERATION[operation]))
    replace(c10d.Work, "wait", lambda wait: counted(wait, "Work.wait", _COMMUNICATION, _waited_for))
    for name in ("_broadcast_coalesced", "_verify_params_across_processes"):  # buffers; DDP's start
        time_calls(torch.distributed, name, _COMMUNICATION, _OPERATION["broadcast"])
    for module in (distributed_c10d, torch.distributed):
        replace(module, "init_process_group", _timed_init)


def _operation(method: str) -> str:
    """Returns the operation of a process group's method; "" for one that does not communicate."""
    plain = method.replace("_", "")
    if method.startswith("__") or not callable(getattr(torch.distributed.ProcessGroup, method)):
        return ""
    return next((operation for part, operation in _NAMES if part in plain), "")


class _Started:
    """The collective that was started last: a wait for it right afterwards has its name."""

    work = 0
    operation = 0.0


def _timed_collective(operation: float) -> Callable[..., Callable[..., Any]]:
    def started(_place: object, work: object) -> None:
        _Started.work, _Started.operation = id(work), operation

    return lambda original: counted(original, "a collective", _COMMUNICATION, lambda *_: operation, started)


def _waited_for(work: object) -> float:
    return _Started.operation if _Started.work == id(work) else _OPERATION["wait"]


def _timed_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def begin(*arguments: Any, **keywords: Any) -> int:
        world_size, rank = (*arguments[3:5], -1, -1)[:2]  # as its signature has them
        _start(keywords.get("rank", rank), keywords.get("world_size", world_size))
        return recorder.enter(_COMMUNICATION, _OPERATION["init_process_group"])

    def end(place: int, done: bool) -> None:
        recorder.leave(place)
        if done:
            distributed.is_initialized = True
            _start(torch.distributed.get_rank(), torch.distributed.get_world_size())

    return timed(original, "init_process_group", begin, end)


def _start(rank: Any, world_size: Any) -> None:
    """Starts the run, with the ranks if they are known."""
    try:
        if 0 <= rank < world_size:
            start_as(rank, world_size)
        else:
            start_run()
    except Exception as error:  # noqa: BLE001 - nothing may raise into training
        complain("init_process_group", f"the run is not recorded: {type(error).__name__}: {error}")
