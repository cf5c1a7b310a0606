"""Measures waste: GPU time that was idle, or in which steps only waited.

A GPU that waits in a collective counts as busy, and a GPU without work while data is late counts as idle.
Both shares may count the same time, so waste is the larger of them: at least so much is wasted.
"""

from stepscope.prometheus.rules.usage import RUN_UTILIZATION, RUN_WAITING


def wasted(matchers: str) -> str:
    """Returns the wasted share of the time range, by run; of runs without GPUs, the share of waiting."""
    idle, waiting = (
        f"avg by (cluster, run) (avg_over_time({series}{{{matchers}}}[$__range]))"
        for series in (RUN_UTILIZATION, RUN_WAITING)
    )
    return _larger(f"(1 - {idle})", f"({waiting} >= 0)")


def wasted_now(matchers: str) -> str:
    """Returns the wasted share at a moment, by run and node."""
    return _larger(f"(1 - {RUN_UTILIZATION}{{{matchers}}})", f"({RUN_WAITING}{{{matchers}}} >= 0)")


def _larger(one: str, other: str) -> str:
    """Returns the larger of two values, or the one that exists."""
    return f"({one} > {other} or {other} or {one})"
