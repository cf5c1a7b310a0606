"""Looks at the node every 500 ms: sampler, sample counters, metric families and how they are written."""
