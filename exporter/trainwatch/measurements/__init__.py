"""Measures samples and steps: counts, sketches and bounded tails per node, device, rank and phase.

A measurement knows nothing of rules and thresholds: what it counted is judged elsewhere (trainwatch.rules),
and shown elsewhere (trainwatch.report).
"""
