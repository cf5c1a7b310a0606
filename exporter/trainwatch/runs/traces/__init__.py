"""Reads traces of the PyTorch profiler (Kineto): `*.pt.trace.json[.gz]`, one file per rank."""
