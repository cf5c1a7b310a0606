"""Times mpi4py: what Python waits for in a communicator or a request is communication.

The types of mpi4py are compiled, and `setattr` refuses them. So functions are replaced in their dictionaries.
Each communicator stays the object that it is, and nothing here calls MPI before the script has started it.
"""

from __future__ import annotations

import gc
import sys
from functools import partial, wraps

from stepscope.training.frameworks.around import timed
from stepscope.training.frameworks.horovod_hooks import begin_collective, end_collective
from stepscope.training.off import is_off
from stepscope.training.session import session, start_as, start_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_METHODS = {  # by operation; those with a capital take buffers, the others any object
    "all_reduce": "Allreduce allreduce",
    "reduce": "Reduce reduce Scan scan Exscan exscan",
    "broadcast": "Bcast bcast",
    "all_gather": "Allgather Allgatherv allgather Neighbor_allgather Neighbor_allgatherv neighbor_allgather",
    "gather": "Gather Gatherv gather",
    "scatter": "Scatter Scatterv scatter",
    "reduce_scatter": "Reduce_scatter Reduce_scatter_block",
    "all_to_all": "Alltoall Alltoallv Alltoallw alltoall "
    "Neighbor_alltoall Neighbor_alltoallv Neighbor_alltoallw neighbor_alltoall",
    "barrier": "Barrier barrier",
    "send": "Send Bsend Ssend Rsend send bsend ssend",
    "recv": "Recv recv Sendrecv sendrecv Sendrecv_replace Probe probe Mprobe mprobe",
    "wait": "Wait Waitany Waitall Waitsome wait waitany waitall waitsome",
}
_TYPES = "Comm", "Intracomm", "Topocomm", "Request", "Message"


def install() -> None:
    """Hooks mpi4py.MPI, which must be imported completely. Does nothing if Stepscope is off.

    Raises TypeError if this Python shows no type's dictionary.
    """
    if is_off():
        return
    from ctypes import py_object, pythonapi

    for name in _TYPES:
        kind = getattr(sys.modules["mpi4py.MPI"], name)
        [attributes] = gc.get_referents(vars(kind))
        if type(attributes) is not dict:
            raise TypeError(f"the attributes of {name} cannot be replaced")
        for operation, methods in _METHODS.items():
            for method in methods.split():
                if method in attributes:
                    attributes[method] = _timed(attributes[method], method, operation)
        pythonapi.PyType_Modified(py_object(kind))


def _timed(original: Any, name: str, operation: str) -> Any:
    begin = partial(_begin, operation)
    if not isinstance(original, classmethod):
        return wraps(original)(timed(original, name, begin, end_collective))

    def function(kind: type, *arguments: Any, **keywords: Any) -> Any:
        call: Callable[..., Any] = original.__get__(None, kind)
        return timed(call, name, begin, end_collective)(*arguments, **keywords)

    return classmethod(wraps(original.__func__)(function))


class _World:
    """Whether the run has the ranks of MPI."""

    is_known = False


def _begin(operation: str, *_: object, **__: object) -> int | None:
    if not _World.is_known:
        _start()
    return begin_collective(operation)


def _start() -> None:
    """Starts the run, if it has several processes. Their ranks are MPI's unless a launcher gave some."""
    mpi = sys.modules["mpi4py.MPI"]
    if mpi.Is_initialized() and not mpi.Is_finalized():
        _World.is_known = True
        rank, processes = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
        if processes > 1 and start_run() and session.ranks == (0, 1):
            start_as(rank, processes)
