"""The rules of snapshots: what the sample counters say of cores and GPUs."""

from __future__ import annotations

from typing import Any

from trainwatch.crosscheck.readings import Moment
from trainwatch.crosscheck.recompute.expected import Expected, above
from trainwatch.measurements.scraped import (
    GPU_SAMPLES,
    Vector,
    divided,
    grouped,
    without,
)
from trainwatch.rules.promql import Scraping


def load_balancing(now: Moment, its: Any, _: Scraping) -> Expected:
    """The widest gap between cumulative distributions is that between the extremes at some bound."""
    readings = now(f"{GPU_SAMPLES}_count")
    patient = above(readings, its.patience)
    shares: Vector = {}
    for labels, count in now(f"{GPU_SAMPLES}_bucket").items():
        gpu = without(labels, "le")
        if gpu in patient:
            shares[labels] = divided(count, readings[gpu])
    gaps = {labels: max(values) - min(values) for labels, values in grouped(shares, "gpu").items()}
    distance = {labels: round(max(values), 12) for labels, values in grouped(gaps, "le").items()}
    fires = above(distance, its.threshold)
    # The rule divides bucket by bucket only where the GPUs of a node differ in their readings.
    uneven = {labels for labels, counts in grouped(readings, "gpu").items() if max(counts) != min(counts)}
    one_by_one = {labels: share for labels, share in shares.items() if without(labels, "le", "gpu") in uneven}
    return Expected(
        {
            "run_instance_gpu_le:trainwatch_gpu_utilization_samples:ratio": one_by_one,
            "run_instance:trainwatch_gpu_load_distance:max": distance,
        },
        now("trainwatch_samples_total"),
        (fires,),
    )
