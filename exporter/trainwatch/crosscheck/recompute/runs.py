"""The rules of a run as a whole: its start, its loaders, its standstill."""

from __future__ import annotations

from typing import Any

from trainwatch.crosscheck.readings import Moment
from trainwatch.crosscheck.recompute.expected import Expected, above, below
from trainwatch.measurements.scraped import STEPS, both, divided, grouped, summed, without
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


def training_stalled(now: Moment, its: Any, _: Scraping) -> Expected:
    most = "run_instance:trainwatch_steps:max"
    usual = "run_instance:trainwatch_time_between_steps:mean_seconds"
    idle = "run_instance:trainwatch_time_since_last_step:seconds"
    first, last = (now(f"trainwatch_run_{which}_step_time_seconds") for which in ("first", "last"))
    steps = grouped(summed(now(f"{STEPS}_count"), "phase"), "rank")
    ended = now("trainwatch_run_end_time_seconds")
    trained = both(last, first, lambda late, early: late - early)
    records = {
        most: {labels: max(counts) for labels, counts in steps.items()},
        usual: both(trained, now.recorded(most), divided),
        idle: {labels: now.time - moment for labels, moment in last.items() if labels not in ended},
    }
    usually, patient = now.recorded(usual), above(now.recorded(most), its.patience)
    stalled = frozenset(
        labels
        for labels, seconds in now.recorded(idle).items()
        if labels in usually and seconds > its.factor * usually[labels] and seconds > 60 * its.minimum
    )
    return Expected(records, now("trainwatch_run_start_time_seconds"), (stalled & patient,))
