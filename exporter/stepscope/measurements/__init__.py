"""Measures samples and steps: counts, sketches and bounded tails per node, device, rank and phase.

A measurement does not depend on rules and thresholds: stepscope.rules judges it, and stepscope.report
shows it.
"""
