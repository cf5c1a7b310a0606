"""Reads what SageMaker Debugger's profiler wrote: a local copy of a job's `profiler-output/`.

The layout and the meaning of the fields are those of the public smdebug library
(github.com/awslabs/sagemaker-debugger, smdebug/profiler) and of the files among its tests.
"""

from trainwatch.runs.debugger.source import DebuggerOutput

__all__ = ["DebuggerOutput"]
