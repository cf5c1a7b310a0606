"""The cost of a run: nodes x hours x the price of a node per hour.

Source: how clouds bill training, and how SageMaker's profiler case computes it: 3 nodes x 503 s x
$14.688/h = $6.16 against 2 nodes x 502 s x $3.825/h = $1.07.
"""

from __future__ import annotations

from trainwatch.evaluation.analysis import Analysis, RuleResult
from trainwatch.report import shares

SECONDS_PER_HOUR = 3600.0


def cost(nodes: int, seconds: float, price_per_hour: float) -> float:
    """Returns the cost of `nodes` that are all rented for `seconds`; the price is per node and hour."""
    return nodes * seconds / SECONDS_PER_HOUR * price_per_hour


def cost_of_run(analysis: Analysis, price_per_hour: float | None) -> float | None:
    """Returns the cost of all nodes that were seen; None without a price or a known duration."""
    seconds = shares.run_seconds(analysis)
    if price_per_hour is None or seconds is None or not analysis.nodes:
        return None
    return cost(len(analysis.nodes), seconds, price_per_hour)


def cost_of_finding(analysis: Analysis, rule: RuleResult, price_per_hour: float | None) -> float | None:
    """Returns the cost of a finding: all nodes are paid while one of them loses time. At most the run's cost.

    None without a price, an estimate of the lost time, or a known duration.
    """
    whole = shares.run_seconds(analysis)
    if price_per_hour is None or rule.seconds_lost <= 0 or whole is None or not analysis.nodes:
        return None
    return cost(len(analysis.nodes), min(rule.seconds_lost, whole), price_per_hour)


def saving(before: float, after: float) -> float:
    """Returns the saved share of amounts in whole cents, as on a bill: the published case saves 82.6 %.

    Negative if `after` is more; 0 if `before` is 0.
    """
    before, after = round(before, 2), round(after, 2)
    return (before - after) / before if before else 0.0
