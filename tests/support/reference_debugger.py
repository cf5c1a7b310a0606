"""More of Debugger's heuristics as plain loops, as in reference.py: everything anew at each scan."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from stepscope.runs.model import COMPONENTS, PHASES, NodeSamples, Steps

from tests.support.reference import percentile, ratio, scan_ends

BIN_BOUNDS = [number / 50 for number in range(1, 51)]
TENTHS = [number / 10 for number in range(1, 11)]


def batch_size(
    samples: NodeSamples,
    *,
    cpu: float,
    gpu: float,
    memory: float,
    window: int,
    patience: int,
    interval: float,
) -> list[dict[str, int]]:
    """One dict a GPU; all bounds in percent. A reading is a snapshot that has all three quantities."""
    found = []
    ends = scan_ends(samples.times.tolist(), interval)
    rows = samples.cpu.tolist()
    for utilisations, memories in zip(samples.gpu.T.tolist(), samples.gpu_memory.T.tolist(), strict=True):
        triggered = judged = before = 0
        for end in ends:
            readings = []
            for row in range(end):
                cores = [value for value in rows[row] if not math.isnan(value)]
                mean = float(np.float32(math.fsum(cores) / len(cores))) if cores else math.nan
                reading = (utilisations[row], memories[row], mean)
                if not any(math.isnan(value) for value in reading):
                    readings.append(reading)
            if len(readings) > patience and len(readings) > before:
                judged += 1
                low = True
                for quantity, bound in enumerate((gpu, memory, cpu)):
                    values = [reading[quantity] for reading in readings[-window:]]
                    low = low and float(np.float32(percentile(values, 95))) < ratio(bound)
                triggered += low
            before = len(readings)
        found.append({"triggered": triggered, "judged": judged})
    return found


def gpu_memory_increase(
    samples: NodeSamples,
    *,
    increase: float,
    window: int,
    horizon: float,
    hold: float,
    baseline: float,
    patience: int,
    interval: float,
) -> dict[str, int]:
    """`horizon`, `hold` and `baseline` in minutes. Violations: readings of all GPUs above the lowest average
    of the horizon; triggered: scans that some of them precede; lasting: scans that lasting rises precede.
    """
    times = samples.times.tolist()
    concerned_rows: list[int] = []
    lasting_rows: list[int] = []
    for column in samples.gpu_memory.T.tolist():
        readings = [(row, value) for row, value in enumerate(column) if not math.isnan(value)]
        averages: list[tuple[float, float]] = []  # time, average
        for number in range(window, len(readings) + 1):
            row = readings[number - 1][0]
            average = math.fsum(value for _, value in readings[number - window : number]) / window
            averages.append((times[row], average))
            lowest = min(value for time, value in averages if time >= times[row] - 60 * horizon)
            if number > patience and round(100 * (average - lowest), 4) > increase:
                concerned_rows.append(row)
            ended = times[row] - 60 * (hold + horizon)
            held = min(value for time, value in averages if time >= times[row] - 60 * hold)
            before = [value for time, value in averages if ended - 60 * baseline <= time <= ended]
            earlier = window - 1 + sum(time <= ended for time, _ in averages)
            if before and earlier > patience and round(100 * (held - max(before)), 4) > increase:
                lasting_rows.append(row)
    counts = {"triggered": concerned_rows, "lasting": lasting_rows}
    scans = dict.fromkeys(counts, 0)
    start = 0
    for end in scan_ends(times, interval):
        for name, rows in counts.items():
            scans[name] += any(start <= row < end for row in rows)
        start = end
    return {**scans, "violations": len(concerned_rows)}


def load_balancing(
    samples: NodeSamples, *, threshold: float, patience: int, interval: float
) -> dict[str, int]:
    triggered = violations = before = 0
    columns = samples.gpu.T.tolist()
    for end in scan_ends(samples.times.tolist(), interval):
        readings = [[value for value in column[:end] if not math.isnan(value)] for column in columns]
        apart = 0
        for one, other in combinations(readings, 2):
            if len(one) > patience and len(other) > patience:
                apart += largest_gap(one, other) > threshold
        if sum(map(len, readings)) > before:
            triggered += apart > 0
            violations += apart
        before = sum(map(len, readings))
    return {"triggered": triggered, "violations": violations}


def largest_gap(one: list[float], other: list[float]) -> float:
    """Kolmogorov-Smirnov: shares of readings at or below each whole ten per cent."""
    gaps = []
    for bound in TENTHS:
        shares = [sum(round(value, 4) <= bound for value in values) / len(values) for values in (one, other)]
        gaps.append(abs(shares[0] - shares[1]))
    return round(max(gaps), 12)


def histogram(values: list[float]) -> list[int]:
    """Counts in bins of two points: a reading belongs to the first bound that it is at or below."""
    counts = [0] * len(BIN_BOUNDS)
    for value in values:
        counts[next(number for number, bound in enumerate(BIN_BOUNDS) if round(value, 4) <= bound)] += 1
    return counts


def jensen_shannon(one: list[int], other: list[int]) -> float:
    total = 0.0
    for count, other_count in zip(one, other, strict=True):
        p, q = count / sum(one), other_count / sum(other)
        total += sum(share * math.log(share / ((p + q) / 2)) for share in (p, q) if share) / 2
    return math.sqrt(max(total, 0.0))


def max_initialization_time(
    samples: NodeSamples, steps: Steps | None, *, start: float, threshold: float, interval: float
) -> int:
    """Scans that fired; `threshold` in minutes."""
    times = samples.times.tolist()
    first = min((steps.starts + steps.durations).tolist()) if steps is not None else math.inf
    return sum(
        times[end - 1] - start > 60 * threshold and first - start > 60 * threshold
        for end in scan_ends(times, interval)
    )


def what_ran(moments: list[float], steps: Steps) -> dict[str, dict[str, float]]:
    """Percentages by phase ("others": between steps) and by component, of steps of half a second or more."""
    ends = (steps.starts + steps.durations).tolist()
    phases: dict[str, float] = {}
    components: dict[str, float] = {}
    for moment in moments:
        if not steps.starts[0] <= moment < ends[-1]:
            continue
        phase = "others"
        for row, end in enumerate(ends):
            if steps.starts[row] <= moment < end:
                phase = PHASES[steps.phases[row]]
                for name, seconds in zip(COMPONENTS, steps.components[row].tolist(), strict=True):
                    components[name] = components.get(name, 0.0) + seconds / float(steps.durations[row])
        phases[phase] = phases.get(phase, 0.0) + 1
    return {"phases": _percent(phases), "components": _percent(components)}


def _percent(amounts: dict[str, float]) -> dict[str, float]:
    return {name: 100 * amount / sum(amounts.values()) for name, amount in amounts.items() if amount}
