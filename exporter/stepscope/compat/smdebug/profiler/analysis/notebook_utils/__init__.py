"""Charts of a run (smdebug.profiler.analysis.notebook_utils)."""

from stepscope.compat.smdebug.profiler.analysis.notebook_utils.metrics_histogram import MetricsHistogram
from stepscope.compat.smdebug.profiler.analysis.notebook_utils.step_histogram import StepHistogram
from stepscope.compat.smdebug.profiler.analysis.notebook_utils.training_job import TrainingJob

__all__ = ["MetricsHistogram", "StepHistogram", "TrainingJob"]
