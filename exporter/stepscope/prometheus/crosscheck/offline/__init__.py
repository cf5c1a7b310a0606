"""Replays a recording into a temporary Prometheus, and evaluates the rules there."""
