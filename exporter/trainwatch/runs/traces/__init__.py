"""Reads traces of the PyTorch profiler (Kineto): `*.pt.trace.json[.gz]`, one file per rank."""

from trainwatch.runs.traces.source import KinetoTraces, trace_files

__all__ = ["KinetoTraces", "trace_files"]
