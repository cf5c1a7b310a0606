"""NVML: the library, its one thread, the GPUs of a node and their errors."""
