"""What a run cost: nodes x hours x the price of a node for an hour.

Source: how clouds bill training, and how SageMaker's profiler case is reckoned: 3 nodes x 503 s x
$14.688/h = $6.16 against 2 nodes x 502 s x $3.825/h = $1.07.
"""

from __future__ import annotations

from trainwatch.evaluation.analysis import Analysis, RuleResult
from trainwatch.report import shares

SECONDS_AN_HOUR = 3600.0


def cost(nodes: int, seconds: float, price_per_hour: float) -> float:
    """Money for `nodes` that were all rented for `seconds`; the price is that of one node for an hour."""
    return nodes * seconds / SECONDS_AN_HOUR * price_per_hour


def cost_of_run(analysis: Analysis, price_per_hour: float | None) -> float | None:
    """From the run's start to its end, of the nodes that were seen; None: no price, or no known duration."""
    seconds = shares.run_seconds(analysis)
    if price_per_hour is None or seconds is None or not analysis.nodes:
        return None
    return cost(len(analysis.nodes), seconds, price_per_hour)


def cost_of_finding(analysis: Analysis, rule: RuleResult, price_per_hour: float | None) -> float | None:
    """What a finding cost: all nodes are paid for while one of them loses time; never more than the run.

    None: no price, no estimate of the time lost, or no known duration.
    """
    whole = shares.run_seconds(analysis)
    if price_per_hour is None or rule.seconds_lost <= 0 or whole is None or not analysis.nodes:
        return None
    return cost(len(analysis.nodes), min(rule.seconds_lost, whole), price_per_hour)


def saving(before: float, after: float) -> float:
    """The share that is saved, of amounts to the cent as on a bill: so the published case saves 82.6 %.

    Negative where it costs more; 0 where nothing was to be saved.
    """
    before, after = round(before, 2), round(after, 2)
    return (before - after) / before if before else 0.0
