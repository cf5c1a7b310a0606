"""Prometheus rule files: what the heuristics say in PromQL, rendered, checked, ready to drop in."""
