"""The profiler's part of SageMaker Debugger's client library (smdebug), over the runs of Stepscope.

In a notebook, write `stepscope.compat.smdebug` instead of `smdebug` in the imports. Modules, classes and
arguments are those of the library's public documentation. A path may be whatever `stepscope.analysis.open`
opens: a recording, its name in `stepscope-runs/`, or Debugger's `profiler-output/`, also at s3://.

Times are microseconds since the epoch, as the library's are. Everything comes from `stepscope.analysis`.
docs/migrating-from-debugger.md says what differs.
"""

import sys
from importlib import import_module
from types import ModuleType

# The modules of smdebug.profiler, by the module here that has their names.
_CHARTS, _UTILS = ".analysis.notebook_utils", ".analysis.utils"
MODULES = {
    "readers": ("", ".algorithm_metrics_reader", ".metrics_reader_base", ".system_metrics_reader", ".utils"),
    "charts": (
        *(_CHARTS, f"{_CHARTS}.heatmap", f"{_CHARTS}.metrics_histogram", f"{_CHARTS}.step_histogram"),
        *(f"{_CHARTS}.step_timeline_chart", f"{_CHARTS}.timeline_charts", f"{_CHARTS}.training_job"),
    ),
    "frames": (
        *(_UTILS, f"{_UTILS}.pandas_data_analysis", f"{_UTILS}.profiler_data_to_pandas"),
        f"{_UTILS}.pytorch_dataloader_analysis",
    ),
    "profiles": (
        *(".analysis", ".analysis.python_profile_analysis", ".python_profile_utils"),
        f"{_UTILS}.python_profile_analysis_utils",
    ),
    "timelines": (f"{_UTILS}.merge_timelines",),
}


def _add_modules() -> None:
    """Lets Python import the modules of the library below this one: they are no files."""
    for path, ours in sorted((path, ours) for ours, paths in MODULES.items() for path in paths):
        names = vars(import_module(f"{__name__}.{ours}"))
        module = ModuleType(f"{__name__}.profiler{path}", f"smdebug.profiler{path}, as in {ours}.py.")
        vars(module).update((name, each) for name, each in names.items() if not name.startswith("__"))
        parent, _, name = module.__name__.rpartition(".")
        setattr(sys.modules[parent], name, module)
        sys.modules[module.__name__] = module


_add_modules()
