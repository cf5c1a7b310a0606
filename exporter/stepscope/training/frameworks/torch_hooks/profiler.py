"""PyTorch's profiler for the windows of training/windows.py, and whether the script uses it itself.

`torch.autograd.profiler` starts all profilers of PyTorch by three functions of its module. They are replaced:
while the script's own profiler runs, or warms up, no window begins; an open window ends before it starts.

A scope of `record_function` may last longer than the profiler in which it began. If another profiler is on
when it ends, PyTorch writes into what the first one has freed. So all scopes end before a profiler starts.

Once a profiler was used, kineto has a thread, for which its library waits when the process ends. A forked
process has no such thread and would wait forever: so it ends as multiprocessing ends its processes.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
from contextlib import suppress

import torch

from stepscope.training import layout
from stepscope.training.automatic import automatic
from stepscope.training.frameworks.torch_hooks.device import device
from stepscope.training.frameworks.torch_hooks.module_calls import ModuleCalls
from stepscope.training.frameworks.torch_hooks.patches import failed, on_removal, replace
from stepscope.training.session import session
from stepscope.training.window_files import TRACE
from stepscope.training.window_plans import MEMORY, OPERATORS, SHAPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WINDOW = "a profile window"  # why hooks are careful
_STARTS = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
_STOPS = ("_disable_profiler", "_disable_profiler_legacy")


def install() -> None:
    """Makes the profiler available for windows."""
    module = torch.autograd.profiler
    for names, runs in ((_STARTS, True), (_STOPS, False)):
        for name in names:
            if hasattr(module, name):
                replace(module, name, _noting(runs))
    session.profiler, session.captures = profiler, device.captures
    on_removal(_remove)


def _remove() -> None:
    session.profiler = None
    profiler.forget_modules()


def _noting(runs: bool) -> Callable[..., Callable[..., Any]]:
    """Notes that a profiler starts, or stops, unless it is that of a window."""

    def wrapper_of(original: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arguments: Any, **keywords: Any) -> Any:
            if not profiler.is_ours:
                try:
                    if runs and session.windows is not None:
                        session.windows.by_the_script()
                    if runs and profiler.used and not torch.autograd._profiler_enabled():
                        _end_scopes()
                except Exception as error:  # noqa: BLE001 - nothing may raise into training
                    failed("the script's profiler", error)
                profiler.of_script = runs
            return original(*arguments, **keywords)

        return noting

    return wrapper_of


class TorchProfiler:
    """The profiler of a window. The only instance is `profiler`."""

    ending = TRACE

    def __init__(self) -> None:
        self.of_script = False  # whether the script's own profiler runs or warms up
        self.is_ours = False  # within a call from here
        self._profile: Any = None
        self._modules: ModuleCalls | None = None
        self.used = False  # in this process
        self._counted: Any = None  # the ledger of the run in which a window had the shapes for its FLOPs
        self._has_shapes = False

    def why_not(self) -> str:
        if not (hasattr(torch, "profiler") and torch.autograd.kineto_available()):
            return f"PyTorch {torch.__version__} has no torch.profiler: use PyTorch 2.0 or later"
        if self.of_script or torch.autograd._profiler_enabled():
            return "the script's own profiler is active"
        return ""

    def start(self, kind: str = OPERATORS) -> None:
        self.is_ours = True
        try:
            if not self.used:
                self.used = True
                _let_forked_processes_end()
            _end_scopes()
            # A peak, but no FLOPs are known: from the script, or a window of this run.
            ledger = session.ledger if session.ledger is not self._counted else None
            known = {*ledger.gauges, *ledger.counts} if ledger is not None else {layout.FLOPS}
            needs_flops = layout.PEAK in known and layout.FLOPS not in known
            self._has_shapes = kind == SHAPES or (kind == OPERATORS and needs_flops)
            self._profile = torch.profiler.profile(
                profile_memory=kind == MEMORY, record_shapes=self._has_shapes
            )
            self._profile.start()
            automatic.unusual.add(_WINDOW)
            with suppress(Exception):  # modules are then not known
                self._modules = ModuleCalls()
                self._modules.start()
        finally:
            self.is_ours = False

    def wait(self) -> None:
        pass  # PyTorch's profiler waits for devices when it stops

    def stop(self) -> None:
        self.is_ours = True
        try:
            if self._modules is not None:
                self._modules.stop()
            automatic.unusual.discard(_WINDOW)
            if torch.autograd._profiler_enabled():  # otherwise Ctrl-C came after it was off
                self._profile.stop()
        finally:
            self.is_ours = False

    def forget(self) -> None:
        self._profile = self._modules = None

    def forget_modules(self) -> None:
        """Ends what is noted about modules: the hooks are removed, or this process was forked."""
        if self._modules is not None:
            self._modules.stop()
            self._modules = None

    def write(self, path: str) -> list[dict[str, Any]]:
        profile, modules = self._profile, self._modules
        self.forget()
        profile.export_chrome_trace(path)
        if self._has_shapes:
            self._counted = session.ledger
        return modules.events() if modules is not None else []

    def knows_rank(self) -> bool:
        return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _end_scopes() -> None:
    """Ends the scopes that are open, while no profiler is on: when they end again, PyTorch does nothing.

    They are found in C, which writes to no other object: there may be millions, shared with forked workers.
    """
    scope = torch.autograd.profiler.record_function
    kinds = scope, *type.__subclasses__(scope)
    for each in gc.get_referrers(*kinds):
        if type(each) in kinds and (record := getattr(each, "record", None)) is not None:
            torch.ops.profiler._record_function_exit._RecordFunction(record)


def _let_forked_processes_end() -> None:
    """Lets processes that are forked from now on leave out what C++ libraries do at their end.

    Their exit status stays. All names are looked up here: a forked process may find the loader's lock held.
    """
    libc = ctypes.CDLL(None)
    on_exit, end, flush = libc.on_exit, libc._exit, libc.fflush

    def in_child() -> None:
        try:
            atexit.register(flush, None)
            profiler.forget_modules()
            on_exit(end, None)  # it gets the exit status, and runs before what was registered earlier
        except Exception as error:  # noqa: BLE001 - nothing may raise into training
            failed("the end of a forked process", error)

    os.register_at_fork(after_in_child=in_child)


profiler = TorchProfiler()
