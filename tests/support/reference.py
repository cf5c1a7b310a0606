"""The heuristics again, as plainly as they can be written: loops over values, everything anew at each scan.

Nothing here is shared with the package but the records that hold the data. Slow, and meant to be.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from stepscope.runs.model import COMPONENTS, PHASES, NodeSamples, Steps


def scan_ends(times: list[float], interval: float) -> list[int]:
    """How many rows have come at the end of each scan; the last, shorter scan ends with the last row."""
    if not times:
        return []
    origin = times[0] // 60 * 60
    scans = [(time - origin) // interval for time in times]
    return [*(row for row in range(1, len(times)) if scans[row] > scans[row - 1]), len(times)]


def percentile(values: list[float], percent: float) -> float:
    """Linear between the two closest ranks."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def starvation(
    samples: NodeSamples,
    cores: str,
    *,
    core_above: float,
    gpu_below: float,
    threshold: float,
    patience: int,
    interval: float,
) -> dict[str, int]:
    """`cores` is "cpu" or "io_wait"; all bounds in percent."""
    starved, low = [], []
    for core_row, gpu_row in zip(getattr(samples, cores).tolist(), samples.gpu.tolist(), strict=True):
        gpu_low = any(value < ratio(gpu_below) for value in gpu_row)
        low.append(gpu_low)
        starved.append(gpu_low and any(value > ratio(core_above) for value in core_row))
    triggered = 0
    for end in scan_ends(samples.times.tolist(), interval):
        if end > patience and sum(starved[:end]) / end * 100 > threshold:
            triggered += 1
    return {
        "triggered": triggered,
        "violations": sum(starved),
        "datapoints": len(starved),
        "low_gpu_utilization": sum(low),
    }


def low_gpu_utilization(
    samples: NodeSamples, *, p95_below: float, p5_below: float, window: int, patience: int, interval: float
) -> list[dict[str, int]]:
    """One dict a GPU: scans in which it was under-utilised, in which it fluctuated, and its readings."""
    found = []
    ends = scan_ends(samples.times.tolist(), interval)
    for column in samples.gpu.T.tolist():
        under = fluctuating = before = 0
        for end in ends:
            readings = [value for value in column[:end] if not math.isnan(value)]
            if len(readings) > patience and len(readings) > before:
                p95 = float(np.float32(percentile(readings[-window:], 95)))
                p5 = float(np.float32(percentile(readings[-window:], 5)))
                if p95 < ratio(p95_below):
                    under += 1
                elif p95 > ratio(p95_below) and p5 < ratio(p5_below):
                    fluctuating += 1
            before = len(readings)
        readings = [value for value in column if not math.isnan(value)]
        found.append({"under_utilised": under, "fluctuating": fluctuating, "readings": len(readings)})
    return found


def step_outlier(
    steps: Steps,
    phase: str,
    *,
    stddev: float,
    n_outliers: int,
    time_lost: float,
    interval: float,
    least: int = 100,
) -> dict[str, Any]:
    """Of one phase of one rank; `numbers` are those of the outliers that all steps together make.

    `triggered` by their number, `costly` by the time that they cost.
    """
    rows = [
        (float(duration), int(number), bool(PHASES[index] == phase))
        for duration, number, index in zip(steps.durations, steps.numbers, steps.phases, strict=True)
    ]
    triggered = costly = before = 0
    numbers: list[int] = []
    for end in scan_ends((steps.starts + steps.durations).tolist(), interval):
        own = [(duration, number) for duration, number, its in rows[:end] if its]
        numbers = []
        if len(own) >= least:
            mean = math.fsum(duration for duration, _ in own) / len(own)
            variance = math.fsum((duration - mean) ** 2 for duration, _ in own) / len(own)
            bound = mean + stddev * math.sqrt(variance)
            numbers = [number for duration, number in own if duration > bound]
            triggered += len(numbers) > n_outliers and len(own) > before
            excess = math.fsum(duration - mean for duration, _ in own if duration > bound)
            share = excess / math.fsum(duration for duration, _ in own)
            costly += len(numbers) >= 3 and share > time_lost / 100 and len(own) > before
        before = len(own)
    return {
        "triggered": triggered,
        "costly": costly,
        "numbers": numbers,
        "datapoints": sum(its for _, _, its in rows),
    }


def data_starved(steps: Steps, *, threshold: float, patience: int, interval: float) -> dict[str, float]:
    """Of one rank."""
    waits = steps.components[:, COMPONENTS.index("data_wait")].tolist()
    durations = steps.durations.tolist()
    triggered = 0
    for end in scan_ends((steps.starts + steps.durations).tolist(), interval):
        if end > patience and sum(waits[:end]) / sum(durations[:end]) * 100 > threshold:
            triggered += 1
    judged = len(waits) > patience
    if not triggered and judged and sum(waits) / sum(durations) * 100 > threshold / 2:
        triggered = 1  # the report, over the whole run
    return {"triggered": triggered, "seconds": sum(waits)}


def ratio(percent: float) -> float:
    """A bound as exact as the readings are (float32)."""
    return float(np.float32(percent / 100))
