"""The rules of a run as a whole: its start, its loaders, its standstill."""

from __future__ import annotations

from typing import Any

from trainwatch.crosscheck.readings import Moment
from trainwatch.crosscheck.recompute.expected import Expected, above, below
from trainwatch.measurements.scraped import divided, grouped, summed, without
from trainwatch.rules.promql import Scraping


def max_initialization_time(now: Moment, its: Any, _: Scraping) -> Expected:
    start = now("trainwatch_run_start_time_seconds")
    over = {**now("trainwatch_run_end_time_seconds"), **now("trainwatch_run_first_step_time_seconds")}
    lasted = {labels: over.get(labels, now.time) - began for labels, began in start.items()}
    late = above(lasted, 60 * its.threshold)
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
        for labels, count in summed(of_rank, "rank").items()
        if without(labels, "run") in cores
    }
    few = below(share, its.min_threshold / 100)
    return Expected(
        {"run_instance:trainwatch_dataloader_workers_per_core:ratio": share},
        now("trainwatch_samples_total"),
        (few | above(share, its.max_threshold / 100),),
    )
