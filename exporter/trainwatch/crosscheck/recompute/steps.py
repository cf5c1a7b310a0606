"""The rules of training steps, by rank."""

from __future__ import annotations

import math
from typing import Any

from trainwatch.crosscheck.readings import Moment
from trainwatch.crosscheck.recompute.expected import Expected, above, below
from trainwatch.measurements.scraped import STEPS, Labels, both, divided, dropped, gained, summed, without
from trainwatch.rules.promql import Scraping
from trainwatch.rules.step_outlier import STEPS_NEEDED
from trainwatch.rules.straggler import MINUTES_COMPARED


def step_outlier(now: Moment, its: Any, _: Scraping) -> Expected:
    """Outliers that are certain: the steps beyond the first bound of the histogram at or above the limit.

    Where the limit is beyond all bounds, nothing is certain, and nothing recorded.
    """
    phase = f'phase="{its.mode}"' if its.mode else ""
    steps = now(f"{STEPS}_count", phase)
    mean = both(now(f"{STEPS}_sum", phase), steps, divided)
    squares = both(now("trainwatch_step_duration_squared_seconds_total", phase), steps, divided)
    variance = both(squares, mean, lambda square, average: max(square - average**2, 0))
    limit = both(mean, variance, lambda average, spread: average + its.stddev * math.sqrt(spread))
    buckets = now(f"{STEPS}_bucket", phase)
    below: dict[Labels, float] = {}
    for labels, count in buckets.items():
        series = without(labels, "le")
        bound = float(dict(labels)["le"])
        if series in limit and math.inf > bound >= limit[series]:
            below[series] = min(count, below.get(series, math.inf))
    outliers = both(steps, below, lambda count, rest: count - rest)
    enough = frozenset(labels for labels, count in steps.items() if count >= STEPS_NEEDED)
    some = {
        labels: count for labels, count in buckets.items() if 0 < count < steps.get(without(labels, "le"), 0)
    }
    return Expected(
        {
            "run_instance_rank_phase_le:trainwatch_step_duration_seconds_bucket:some": some,
            "run_instance_rank_phase:trainwatch_step_duration:mean_seconds": mean,
            "run_instance_rank_phase:trainwatch_step_outlier_limit:seconds": limit,
            "run_instance_rank_phase:trainwatch_step_outliers:count": outliers,
        },
        steps,
        (above(outliers, its.n_outliers) & enough,),
    )


def straggler(now: Moment, its: Any, scraping: Scraping) -> Expected:
    """Ranks of one run are peers, also those of other nodes."""
    own = "run_instance_rank:trainwatch_step_self_time:mean_seconds"
    peers = "run_instance_rank:trainwatch_peers_self_time:ratio"
    seconds = scraping.interval * math.ceil(60 * MINUTES_COMPARED / scraping.interval)
    took, steps = (
        dropped(gained(now, f"{STEPS}_{part}", 'phase="train"', seconds, whole=False), "phase")
        for part in ("sum", "count")
    )
    communicated = dropped(
        gained(
            now, "trainwatch_step_component_seconds_total", 'component="communication"', seconds, whole=False
        ),
        "component",
    )
    enough = {labels: count for labels, count in steps.items() if count >= its.window}
    by_itself = both(took, communicated, lambda whole, waited: max(whole - waited, 0))
    recorded = now.recorded(own)
    by_run: dict[Labels, list[float]] = {}
    for labels, mean in recorded.items():
        by_run.setdefault(_run(labels), []).append(mean)
    shares = {
        labels: divided(divided(sum(ranks) - mean, len(ranks) - 1), mean)
        for labels, mean in recorded.items()
        for ranks in (by_run[_run(labels)],)
    }
    slowest = {labels for labels, mean in recorded.items() if mean >= max(by_run[_run(labels)])}
    slow = below(now.recorded(peers), its.threshold / 100)
    return Expected(
        {own: both(by_itself, enough, divided), peers: shares},
        summed(now(f"{STEPS}_count"), "phase"),
        (slow & slowest,),
    )


def _run(labels: Labels) -> Labels:
    return frozenset(label for label in labels if label[0] in ("job", "run"))
