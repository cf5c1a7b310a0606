"""Stands for Horovod, whose release does not build for the PyTorch of the tests: its documented API."""
