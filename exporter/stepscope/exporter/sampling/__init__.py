"""Samples the node every 500 ms: sampler, sample counters, metric families and their exposition."""
