"""Reads traces of the PyTorch profiler (Kineto), JAX and TensorFlow (XLA) and Nsight Systems."""
