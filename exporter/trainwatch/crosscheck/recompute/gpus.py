"""The rules of each GPU's memory, as far as a run uses it."""

from __future__ import annotations

import math
from typing import Any

from trainwatch.crosscheck.readings import Moment
from trainwatch.crosscheck.recompute.expected import Expected, above, below
from trainwatch.measurements.scraped import (
    GPU_SAMPLES,
    Vector,
    both,
    divided,
    going_on,
    lowest,
    without,
)
from trainwatch.rules.gpu_memory_leak import LONGER
from trainwatch.rules.gpu_memory_nearly_full import FORECAST_ROWS
from trainwatch.rules.promql import MINUTE, Scraping, time_span

QUARTER_OF_GROWTH = 0.125  # of all growth: what each quarter of the time must have


def gpu_memory_leak(now: Moment, its: Any, scraping: Scraping) -> Expected:
    """Over the longest time over which memory grew in each quarter."""
    used = "run_instance_gpu:trainwatch_gpu_memory_used:ratio"
    low = "run_instance_gpu:trainwatch_gpu_memory_used:min_ratio"
    growth = "run_instance_gpu:trainwatch_gpu_memory_leak:growth_ratio"
    interval = max(MINUTE, scraping.interval)
    shortest = interval * max(4, math.ceil(scraping.window(its.patience) / interval))
    readings = now(f"{GPU_SAMPLES}_count")
    records = {
        used: _of_run(now, readings, _memory_in_use(now)),
        low: lowest(now.recorded_over(used, scraping.reach(shortest / 4))),
    }
    grown: Vector = {}
    for factor in LONGER:  # the longest one comes last
        quarter = shortest * factor / 4
        gain = f"run_instance_gpu:trainwatch_gpu_memory_used:gain{time_span(quarter)}"
        records[gain] = _gained_in(now, low, quarter, its.increase / 100)
        grown |= _grown(now, gain, quarter)
    fires = above(now.recorded(growth), its.increase / 100) & above(readings, its.patience)
    return Expected({**records, growth: grown}, readings, (fires,))


def gpu_memory_nearly_full(now: Moment, its: Any, scraping: Scraping) -> Expected:
    used = "run_instance_gpu:trainwatch_gpu_memory_in_use:ratio"
    low = "run_instance_gpu:trainwatch_gpu_memory_in_use:min_ratio"
    full_in = "run_instance_gpu:trainwatch_gpu_memory_full_in:seconds"
    interval = max(MINUTE, scraping.interval)
    quarter = interval * math.ceil(scraping.window(FORECAST_ROWS) / interval / 4)
    seconds = 4 * quarter
    gain = f"run_instance_gpu:trainwatch_gpu_memory_in_use:gain{time_span(quarter)}"
    # Of what is not full yet, all that is left would have to be used up within the horizon.
    least = (1 - its.threshold / 100) * seconds / (60 * its.horizon) if its.horizon else 1.0
    in_use, readings = now.recorded(used), now(f"{GPU_SAMPLES}_count")
    left = both(in_use, _grown(now, gain, quarter), lambda share, grew: divided((1 - share) * seconds, grew))
    records = {
        used: _of_run(now, readings, _memory_in_use(now)),
        low: lowest(now.recorded_over(used, quarter + interval / 2)),
        gain: _gained_in(now, low, quarter, least),
        full_in: left,
    }
    full, patient = above(in_use, its.threshold / 100), above(readings, its.patience)
    soon = below(now.recorded(full_in), 60 * its.horizon)
    return Expected(records, readings, (full & patient, (soon - full) & patient))


def _memory_in_use(now: Moment) -> Vector:
    used, total = (now(f"trainwatch_gpu_memory_{which}_bytes", of_run=False) for which in ("used", "total"))
    return both(used, total, divided)


def _gained_in(now: Moment, low: str, quarter: float, least: float) -> Vector:
    """What the lowest values gained in a quarter, where all four such quarters could gain `least`."""
    gains = both(now.recorded(low), now.recorded(low, ago=quarter), lambda late, early: late - early)
    return {labels: gain for labels, gain in gains.items() if gain > QUARTER_OF_GROWTH * least}


def _grown(now: Moment, gain: str, quarter: float) -> Vector:
    """What was gained in four quarters, where each of them has its part of that."""
    gains = [now.recorded(gain, ago=quarter * number) for number in range(4)]
    found: Vector = {}
    for labels in gains[0]:
        steps = [its[labels] for its in gains if labels in its]
        if len(steps) == len(gains) and all(step > QUARTER_OF_GROWTH * sum(steps) for step in steps):
            found[labels] = sum(steps)
    return found


def _of_run(now: Moment, readings: Vector, values: Vector) -> Vector:
    """A value of each GPU, for each run that uses it and has not ended."""
    return {
        labels: values[gpu]
        for labels in going_on(now, frozenset(readings))
        if (gpu := without(labels, "run")) in values
    }
