"""Trainwatch: why a training job leaves its GPUs idle. This module is what a training script imports."""

__version__ = "0.1.0"
