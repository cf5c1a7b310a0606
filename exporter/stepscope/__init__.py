"""Stepscope: why a training job leaves its GPUs idle. This module is what a training script imports.

Standard library only. With the environment variable STEPSCOPE=off all of it does nothing.
"""

from stepscope.training.off import is_off

TYPE_CHECKING = False
if TYPE_CHECKING or not is_off():
    from stepscope.training.fetch import fetch
    from stepscope.training.loader import watch
    from stepscope.training.session import count, finish, gauge, instrument, recorder, start
    from stepscope.training.steps import component, step

    begin_step = recorder.begin_step
    end_step = recorder.end_step
    mark = recorder.mark
    record_step = recorder.record_step
    begin_component = recorder.begin_component
    end_component = recorder.end_component
else:
    from stepscope.training.off import (
        begin_component,
        begin_step,
        component,
        count,
        end_component,
        end_step,
        fetch,
        finish,
        gauge,
        instrument,
        mark,
        record_step,
        start,
        step,
        watch,
    )

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Imports `stepscope.analysis` when a notebook asks for it: it needs numpy and pyarrow."""
        if name != "analysis":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return importlib.import_module("stepscope.analysis")


__version__ = "0.1.0"

__all__ = [
    "__version__",
    "begin_component",
    "begin_step",
    "component",
    "count",
    "end_component",
    "end_step",
    "fetch",
    "finish",
    "gauge",
    "instrument",
    "mark",
    "record_step",
    "start",
    "step",
    "watch",
]
