"""The value and state of rules, computed anew from raw counters and the rules' parameters.

Nothing of the rules' PromQL is used here: each function says in plain Python what its rule means, so that a
wrong expression and a wrong threshold both show. The expected states are in the order of the rule's alerts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from trainwatch.crosscheck.readings import Moment, both, dropped, grouped, without
from trainwatch.crosscheck.server import Labels, Vector
from trainwatch.heuristics.promql import Scraping
from trainwatch.heuristics.step_outlier import STEPS_NEEDED

GPU_SAMPLES = "trainwatch_gpu_utilization_samples"
STEPS = "trainwatch_step_duration_seconds"


@dataclass(frozen=True)
class Expected:
    """What a rule must say at one moment: the values it records, and where each alert's condition holds."""

    records: Mapping[str, Vector]
    targets: Collection[Labels]
    conditions: tuple[frozenset[Labels], ...]

    def status(self) -> Vector:
        """1 where the condition of some alert holds, else 0."""
        holds = frozenset().union(*self.conditions)
        return {labels: float(labels in holds) for labels in (*self.targets, *holds)}


Recompute = Callable[[Moment, Any, Scraping], Expected]


def _starved(now: Moment, its: Any, cause: str, above: float) -> Expected:
    cells = f'cause="{cause}",cause_above=~"{_spellings(above)}",gpu_below=~"{_spellings(its.gpu_threshold)}"'
    counted = dropped(now("trainwatch_gpu_starved_samples_total", cells), "cause", "cause_above", "gpu_below")
    samples = now("trainwatch_samples_total")
    share = both(counted, samples, divided)
    fires = _above(share, its.threshold / 100) & _above(samples, its.patience)
    return Expected({f"run_instance:trainwatch_{cause}_starved:ratio": share}, samples, (fires,))


def cpu_bottleneck(now: Moment, its: Any, _: Scraping) -> Expected:
    return _starved(now, its, "cpu", its.cpu_threshold)


def io_bottleneck(now: Moment, its: Any, _: Scraping) -> Expected:
    return _starved(now, its, "io", its.io_threshold)


def low_gpu_utilization(now: Moment, its: Any, scraping: Scraping) -> Expected:
    low = _share_of_window(now, GPU_SAMPLES, its.threshold_p95, its, scraping)
    idle = _share_of_window(now, GPU_SAMPLES, its.threshold_p5, its, scraping)
    readings = now(f"{GPU_SAMPLES}_count")
    enough = _above(readings, its.patience)
    under_utilised = _above(low, 0.95) & enough
    busy_at_times = frozenset(labels for labels, share in low.items() if share <= 0.95)
    return Expected(
        {
            "run_instance_gpu:trainwatch_gpu_low_utilization:ratio": low,
            "run_instance_gpu:trainwatch_gpu_idle_utilization:ratio": idle,
        },
        readings,
        (under_utilised, _above(idle, 0.05) & busy_at_times & enough),
    )


def batch_size(now: Moment, its: Any, scraping: Scraping) -> Expected:
    gpu = _share_of_window(now, GPU_SAMPLES, its.gpu_threshold_p95, its, scraping)
    memory = _share_of_window(
        now, "trainwatch_gpu_memory_samples", its.gpu_memory_threshold_p95, its, scraping
    )
    cpu = _share_of_window(now, "trainwatch_cpu_utilization_samples", its.cpu_threshold_p95, its, scraping)
    readings = now(f"{GPU_SAMPLES}_count")
    idle_cores = _above(cpu, 0.95)
    idle = _above(gpu, 0.95) & _above(memory, 0.95) & _above(readings, its.patience)
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
    patient = _above(readings, its.patience)
    shares: Vector = {}
    for labels, count in now(f"{GPU_SAMPLES}_bucket").items():
        gpu = without(labels, "le")
        if gpu in patient:
            shares[labels] = divided(count, readings[gpu])
    gaps = {labels: max(values) - min(values) for labels, values in grouped(shares, "gpu").items()}
    distance = {labels: round(max(values), 12) for labels, values in grouped(gaps, "le").items()}
    fires = _above(distance, its.threshold)
    return Expected(
        {"run_instance:trainwatch_gpu_load_distance:max": distance}, now("trainwatch_samples_total"), (fires,)
    )


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
    below: dict[Labels, float] = {}
    for labels, count in now(f"{STEPS}_bucket", phase).items():
        series = without(labels, "le")
        bound = float(dict(labels)["le"])
        if series in limit and math.inf > bound >= limit[series]:
            below[series] = min(count, below.get(series, math.inf))
    outliers = both(steps, below, lambda count, rest: count - rest)
    enough = frozenset(labels for labels, count in steps.items() if count >= STEPS_NEEDED)
    return Expected(
        {
            "run_instance_rank_phase:trainwatch_step_duration:mean_seconds": mean,
            "run_instance_rank_phase:trainwatch_step_outlier_limit:seconds": limit,
            "run_instance_rank_phase:trainwatch_step_outliers:count": outliers,
        },
        steps,
        (_above(outliers, its.n_outliers) & enough,),
    )


def _component(now: Moment, its: Any, component: str) -> Expected:
    spent = dropped(now("trainwatch_step_component_seconds_total", f'component="{component}"'), "component")
    steps = _summed(now(f"{STEPS}_count"), "phase")
    share = both(spent, _summed(now(f"{STEPS}_sum"), "phase"), divided)
    fires = _above(share, its.threshold / 100) & _above(steps, its.patience)
    return Expected({f"run_instance_rank:trainwatch_{component}:ratio": share}, steps, (fires,))


def data_starved(now: Moment, its: Any, _: Scraping) -> Expected:
    return _component(now, its, "data_wait")


def communication_bound(now: Moment, its: Any, _: Scraping) -> Expected:
    return _component(now, its, "communication")


def max_initialization_time(now: Moment, its: Any, _: Scraping) -> Expected:
    start = now("trainwatch_run_start_time_seconds")
    over = {**now("trainwatch_run_end_time_seconds"), **now("trainwatch_run_first_step_time_seconds")}
    lasted = {labels: over.get(labels, now.time) - began for labels, began in start.items()}
    late = _above(lasted, 60 * its.threshold)
    return Expected(
        {"run_instance:trainwatch_initialization:seconds": lasted},
        start,
        (late - over.keys(), late & over.keys()),
    )


def dataloader(now: Moment, its: Any, _: Scraping) -> Expected:
    workers = now("trainwatch_dataloader_workers")
    training = {labels: value for labels, value in workers.items() if ("phase", "train") in labels}
    of_rank = {
        labels: max(values)
        for chosen in (workers, training)  # the training loader counts, where a rank has one
        for labels, values in grouped(chosen, "phase").items()
    }
    cores = {
        labels: float(len(values))
        for labels, values in grouped(now("trainwatch_cpu_utilization_ratio", of_run=False), "cpu").items()
    }
    share = {
        labels: divided(count, cores[without(labels, "run")])
        for labels, count in _summed(of_rank, "rank").items()
        if without(labels, "run") in cores
    }
    few = frozenset(labels for labels, value in share.items() if value < its.min_threshold / 100)
    return Expected(
        {"run_instance:trainwatch_dataloader_workers_per_core:ratio": share},
        now("trainwatch_samples_total"),
        (few | _above(share, its.max_threshold / 100),),
    )


CHECKED: Mapping[str, Recompute] = {
    "BatchSize": batch_size,
    "CPUBottleneck": cpu_bottleneck,
    "CommunicationBound": communication_bound,
    "DataStarved": data_starved,
    "Dataloader": dataloader,
    "IOBottleneck": io_bottleneck,
    "LoadBalancing": load_balancing,
    "LowGPUUtilization": low_gpu_utilization,
    "MaxInitializationTime": max_initialization_time,
    "StepOutlier": step_outlier,
}


def divided(dividend: float, divisor: float) -> float:
    """As PromQL divides: nothing by nothing is no number."""
    if divisor:
        return dividend / divisor
    return math.copysign(math.inf, dividend) if dividend else math.nan


def _above(vector: Vector, bound: float) -> frozenset[Labels]:
    return frozenset(labels for labels, value in vector.items() if value > bound)


def _summed(vector: Vector, *names: str) -> Vector:
    return {labels: sum(values) for labels, values in grouped(vector, *names).items()}


def _share_of_window(now: Moment, histogram: str, percent: float, its: Any, scraping: Scraping) -> Vector:
    """The share of the last `window` samples, in whole scrapes, at or below a bound."""
    seconds = scraping.window(its.window)
    whole = its.patience >= its.window  # else a younger histogram counts from its beginning
    bucket = f'le=~"{_spellings(percent)}"'
    at_most = _gained(now, f"{histogram}_bucket", bucket, seconds, whole)
    return both(dropped(at_most, "le"), _gained(now, f"{histogram}_count", "", seconds, whole), divided)


def _gained(now: Moment, name: str, matchers: str, seconds: float, whole: bool) -> Vector:
    current, before = now(name, matchers), now(name, matchers, ago=seconds)
    if not whole:
        before = {**dict.fromkeys(current, 0.0), **before}
    return both(current, before, lambda late, early: late - early)


def _spellings(percent: float) -> str:
    """How servers and libraries write so many percent as a bound: 0.7, 0.70; 1, 1.0."""
    bound = round(percent / 100, 12)
    return "|".join(
        dict.fromkeys(text.replace(".", "[.]") for text in (f"{bound:g}", f"{bound:.1f}", f"{bound:.2f}"))
    )
