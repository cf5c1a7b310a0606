"""A simulated node behind the real exporter: each scenario shows one reason why GPUs idle, or none."""
