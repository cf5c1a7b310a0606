"""Judges the scraped counters again, and lists where Prometheus's rules recorded something else."""
