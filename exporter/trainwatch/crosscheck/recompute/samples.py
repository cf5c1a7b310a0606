"""The rules of snapshots: what the sample counters say of cores and GPUs."""

from __future__ import annotations

from typing import Any

from trainwatch.crosscheck.readings import Moment, both, dropped, grouped, without
from trainwatch.crosscheck.recompute.expected import GPU_SAMPLES, Expected, above, divided, gained, going_on
from trainwatch.crosscheck.server import Vector
from trainwatch.rules.promql import Scraping


def _starved(now: Moment, its: Any, cause: str, bound: float) -> Expected:
    cells = f'cause="{cause}",cause_above=~"{_spellings(bound)}",gpu_below=~"{_spellings(its.gpu_threshold)}"'
    counted = dropped(now("trainwatch_gpu_starved_samples_total", cells), "cause", "cause_above", "gpu_below")
    samples = now("trainwatch_samples_total")
    share = both(counted, samples, divided)
    fires = above(share, its.threshold / 100) & above(samples, its.patience)
    return Expected({f"run_instance:trainwatch_{cause}_starved:ratio": share}, samples, (fires,))


def cpu_bottleneck(now: Moment, its: Any, _: Scraping) -> Expected:
    return _starved(now, its, "cpu", its.cpu_threshold)


def io_bottleneck(now: Moment, its: Any, _: Scraping) -> Expected:
    return _starved(now, its, "io", its.io_threshold)


def low_gpu_utilization(now: Moment, its: Any, scraping: Scraping) -> Expected:
    low = _share_of_window(now, GPU_SAMPLES, its.threshold_p95, its, scraping)
    idle = _share_of_window(now, GPU_SAMPLES, its.threshold_p5, its, scraping)
    readings = now(f"{GPU_SAMPLES}_count")
    enough = going_on(now, above(readings, its.patience))
    under_utilised = above(low, 0.95) & enough
    busy_at_times = frozenset(labels for labels, share in low.items() if share <= 0.95)
    return Expected(
        {
            "run_instance_gpu:trainwatch_gpu_low_utilization:ratio": low,
            "run_instance_gpu:trainwatch_gpu_idle_utilization:ratio": idle,
        },
        readings,
        (under_utilised, above(idle, 0.05) & busy_at_times & enough),
    )


def batch_size(now: Moment, its: Any, scraping: Scraping) -> Expected:
    gpu = _share_of_window(now, GPU_SAMPLES, its.gpu_threshold_p95, its, scraping)
    memory = _share_of_window(
        now, "trainwatch_gpu_memory_samples", its.gpu_memory_threshold_p95, its, scraping
    )
    cpu = _share_of_window(now, "trainwatch_cpu_utilization_samples", its.cpu_threshold_p95, its, scraping)
    readings = now(f"{GPU_SAMPLES}_count")
    idle_cores = above(cpu, 0.95)
    enough = going_on(now, above(readings, its.patience))
    idle = above(gpu, 0.95) & above(memory, 0.95) & enough
    return Expected(
        {
            "run_instance_gpu:trainwatch_small_batch_gpu:ratio": gpu,
            "run_instance_gpu:trainwatch_small_batch_gpu_memory:ratio": memory,
            "run_instance:trainwatch_small_batch_cpu:ratio": cpu,
        },
        readings,
        (frozenset(labels for labels in idle if without(labels, "gpu") in idle_cores),),
    )


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


def _share_of_window(now: Moment, histogram: str, percent: float, its: Any, scraping: Scraping) -> Vector:
    """The share of the last `window` samples, in whole scrapes, at or below a bound."""
    seconds = scraping.window(its.window)
    whole = its.patience >= its.window  # else a younger histogram counts from its beginning
    bucket = f'le=~"{_spellings(percent)}"'
    at_most = gained(now, f"{histogram}_bucket", bucket, seconds, whole)
    return both(dropped(at_most, "le"), gained(now, f"{histogram}_count", "", seconds, whole), divided)


def _spellings(percent: float) -> str:
    """How servers and libraries write so many percent as a bound: 0.7, 0.70; 1, 1.0."""
    bound = round(percent / 100, 12)
    return "|".join(
        dict.fromkeys(text.replace(".", "[.]") for text in (f"{bound:g}", f"{bound:.1f}", f"{bound:.2f}"))
    )
