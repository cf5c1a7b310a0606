"""Readers of the metrics of a run (smdebug.profiler)."""

from stepscope.compat.smdebug.profiler.algorithm_metrics_reader import (
    LocalAlgorithmMetricsReader,
    S3AlgorithmMetricsReader,
)
from stepscope.compat.smdebug.profiler.system_metrics_reader import (
    LocalSystemMetricsReader,
    S3SystemMetricsReader,
)

__all__ = [
    "LocalAlgorithmMetricsReader",
    "LocalSystemMetricsReader",
    "S3AlgorithmMetricsReader",
    "S3SystemMetricsReader",
]
