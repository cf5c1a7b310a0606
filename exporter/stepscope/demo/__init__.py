"""A simulated node with the real exporter. Each scenario shows one reason why GPUs are idle, or none."""
