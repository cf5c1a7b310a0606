"""The tools that are on in this process and slow what it does, such as a tracer, a profiler or a debugger.

A trace or profile function is of one thread. So the one that makes the steps is asked: before the first of
them, and after a step that follows each look of the line sampler. All else is of the whole process.
"""

from __future__ import annotations

import os
import sys

from stepscope.training.other_threads import frame_of
from stepscope.training.proc_files import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from stepscope.training.main_stack import Frame

# Settings for debugging: the host waits for each kernel, or ranks compare each collective before it begins.
_FOR_DEBUGGING = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
}

noted: list[Frame | str] = []  # what was on when the thread was asked last
of_window: object = None  # the profile function of the latest profile window


def note() -> None:
    """Asks the calling thread for its trace and profile functions."""
    on = [tool for tool in (sys.gettrace(), sys.getprofile()) if tool is not None and tool is not of_window]
    # "<class 'cProfile.Profile'>" for what is written in C, without asking the object.
    noted[:] = [frame_of(tool) or type.__repr__(type(tool))[8:-2] for tool in on]


def tools() -> Iterator[Frame | str]:
    """Yields what is on now: the function that Python calls, or a name."""
    import _tracemalloc  # of CPython alone, as the sampler that asks

    yield from noted
    if _tracemalloc.is_tracing():
        yield "tracemalloc"
    monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
    if monitoring is not None and (name := monitoring.get_tool(monitoring.PROFILER_ID)):
        yield str(name)
    for name, value in _FOR_DEBUGGING.items():
        if os.environ.get(name, "").upper() == value:
            yield f"{name}={value}"
    tracer = read("self/status").partition(b"TracerPid:\t")[2].partition(b"\n")[0].decode()
    if tracer not in ("", "0"):
        yield read(f"{tracer}/comm").decode("utf-8", "replace").strip() or "another process"
