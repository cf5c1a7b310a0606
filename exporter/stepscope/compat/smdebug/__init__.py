"""The profiler's part of SageMaker Debugger's client library (smdebug), over the runs of Stepscope.

In a notebook, write `stepscope.compat.smdebug` instead of `smdebug` in the imports. Modules, classes and
arguments are those of the library's public documentation. A path may be whatever `stepscope.analysis.open`
opens: a recording, its name in `stepscope-runs/`, or Debugger's `profiler-output/`, also at s3://.

Times are microseconds since the epoch, as the library's are. Everything comes from `stepscope.analysis`.
docs/migrating-from-debugger.md says what differs.
"""
