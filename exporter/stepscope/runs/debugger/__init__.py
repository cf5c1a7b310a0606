"""Reads the output of SageMaker Debugger's profiler: a local copy of a job's `profiler-output/`.

The source for its layout and fields is the public smdebug library (github.com/awslabs/sagemaker-debugger,
smdebug/profiler) and the files in its tests.
"""
