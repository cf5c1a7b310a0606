"""The heuristics that Debugger lacks, again, as plainly as they can be written: see reference.py.

Everything anew at each scan, in loops; nothing is shared with the package but the records of the data.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from stepscope.runs.model import COMPONENTS, PHASES, NodeSamples, Steps

from tests.support.reference import percentile, ratio, scan_ends


def communication_bound(steps: Steps, *, threshold: float, patience: int, interval: float) -> dict[str, Any]:
    """Of one rank."""
    spent = steps.components[:, COMPONENTS.index("communication")].tolist()
    durations = steps.durations.tolist()
    triggered = 0
    for end in scan_ends((steps.starts + steps.durations).tolist(), interval):
        if end > patience and sum(spent[:end]) / sum(durations[:end]) * 100 > threshold:
            triggered += 1
    return {"triggered": triggered, "seconds": sum(spent)}


def training_stalled(steps: Steps, *, factor: float, minimum: float, patience: int) -> list[float]:
    """The seconds of each stall of one rank with one process, of which no step was lost."""
    if len(steps) <= patience:
        return []
    ends = (steps.starts + steps.durations).tolist()
    known = [COMPONENTS.index("checkpoint"), COMPONENTS.index("compile")]
    pauses = [after - before for before, after in pairwise(ends)]
    usual = percentile(pauses, 50)
    work = [sum(row[column] for column in known) for row in steps.components.tolist()]
    return [
        pause - done
        for pause, done in zip(pauses, work[1:], strict=True)
        if pause - done > max(factor * usual, 60 * minimum)
    ]


def straggler(
    ranks: list[Steps], *, threshold: float, minimum: float, deviations: float, waiting: float
) -> list[int]:
    """Of each rank in how many windows (of 30, 100 and 1000 steps) it was a straggler."""
    tens: list[dict[int, list[tuple[float, float]]]] = []  # by rank: own time and duration of steps, in tens
    for steps in ranks:
        spent = steps.components[:, COMPONENTS.index("communication")].tolist()
        rows = zip(
            steps.numbers.tolist(), steps.durations.tolist(), spent, steps.phases.tolist(), strict=True
        )
        train = PHASES.index("train")
        trained = [(number, max(took - out, 0), took) for number, took, out, phase in rows if phase == train]
        of_rank: dict[int, list[tuple[float, float]]] = {}
        for number, own, took in trained:
            of_rank.setdefault(number // 10, []).append((own, took))
        if trained and trained[-1][0] % 10 != 9:  # not over yet
            of_rank.pop(trained[-1][0] // 10)
        tens.append(of_rank)
    windows: list[list[int]] = []  # the tens of each
    for length in (3, 10, 100):
        places = sorted({ten // length for one in tens for ten in one})
        windows += [list(range(place * length, (place + 1) * length)) for place in places]
        if len(places) <= 1:
            break
    fired = [0 for _ in ranks]
    for window in windows:
        present = [rank for rank, one in enumerate(tens) if any(ten in one for ten in window)]
        common = [ten for ten in window if all(ten in tens[rank] for rank in present)]
        found = {rank: [step for ten in common for step in tens[rank][ten]] for rank in present}
        found = {rank: one for rank, one in found.items() if sum(took for _, took in one) >= 2}  # seconds
        if len(found) < 2:
            continue
        own = {rank: sum(mine for mine, _ in one) / len(one) for rank, one in found.items()}
        waits = {rank: sum(took - mine for mine, took in one) / len(one) for rank, one in found.items()}
        error = {
            rank: sum((mine - own[rank]) ** 2 for mine, _ in one) / len(one) ** 2
            for rank, one in found.items()
        }
        slowest = max(own, key=lambda rank: own[rank])
        others = [rank for rank in found if own[rank] < own[slowest]]
        if not others or len(found[slowest]) < 30:
            continue
        excess = own[slowest] - percentile([own[rank] for rank in others], 50)
        errors = math.sqrt(error[slowest] + percentile([error[rank] for rank in others], 50))
        less = percentile([waits[rank] for rank in others], 50) - waits[slowest]
        needed = math.sqrt(deviations**2 + 2 * math.log(len(windows)))
        fired[slowest] += (
            excess > threshold / 100 * (own[slowest] + waits[slowest])
            and excess > minimum / 1000
            and excess > needed * errors
            and less > waiting / 100 * excess
        )
    return fired


def thermal_throttling(
    samples: NodeSamples, *, threshold: float, patience: int, interval: float
) -> list[dict[str, float]]:
    """One dict a GPU."""
    found = []
    for column in samples.gpu_thermal_throttle_seconds.T.tolist():
        triggered = before = 0
        heat = 0.0
        for end in scan_ends(samples.times.tolist(), interval):
            known = [
                (time, value)
                for time, value in zip(samples.times[:end].tolist(), column[:end], strict=True)
                if not math.isnan(value)
            ]
            pairs = list(pairwise(known))
            heat = sum(max(0, later[1] - earlier[1]) for earlier, later in pairs)
            passed = sum(max(0, later[0] - earlier[0]) for earlier, later in pairs)
            if len(known) > max(patience, before) and 100 * heat > threshold * passed:
                triggered += 1
            before = len(known)
        found.append({"triggered": triggered, "heat": heat})
    return found


def gpu_errors(samples: NodeSamples, *, of_programs: set[int]) -> list[dict[int, int]]:
    """Of each GPU the errors by XID; 0 stands for memory errors, and those of programs are left out."""
    found = []
    for gpu in range(samples.gpu.shape[1]):
        errors: dict[int, int] = {}
        for name in ("gpu_xid_errors", "gpu_ecc_uncorrected_errors"):
            before = math.nan
            for row, value in enumerate(getattr(samples, name)[:, gpu].tolist()):
                if math.isnan(value):
                    continue
                more = value if value < before else value - before
                number = int(samples.gpu_last_xid[row, gpu]) if name == "gpu_xid_errors" else 0
                if more > 0 and number not in of_programs:
                    errors[number] = errors.get(number, 0) + int(more)
                before = value
        found.append(errors)
    return found


def steady_slope(times: list[float], lows: list[float]) -> float | None:
    """Theil and Sen's slope after the warm-up; None where it is not upwards, not steady, or levels off."""
    points = list(zip(times, lows, strict=True))[math.ceil(len(times) / 4) :]
    points = [(time, low) for time, low in points if not math.isnan(low)]
    half = len(points) // 2
    if half < 4 or points[-1][1] <= points[0][1]:
        return None
    slopes = pair_slopes(points)
    slope = percentile(slopes, 50)
    rises = sum(one > 0 for one in slopes) - sum(one < 0 for one in slopes)
    if rises / len(slopes) <= 0.8:
        return None
    halves = (points[:half], points[half:])
    return slope if all(percentile(pair_slopes(part), 50) > slope / 2 for part in halves) else None


def pair_slopes(points: list[tuple[float, float]]) -> list[float]:
    return [
        (points[second][1] - points[first][1]) / (points[second][0] - points[first][0])
        for first in range(len(points))
        for second in range(first + 1, len(points))
        if points[second][0] > points[first][0]
    ]


def stretches(times: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    """The lowest value of each stretch of rows: at most 64 of them, of 1, 2, 4... rows."""
    length = 1
    while len(values) > 64 * length:
        length *= 2
    starts = range(0, len(values), length)
    lows = []
    for start in starts:
        known = [value for value in values[start : start + length] if not math.isnan(value)]
        lows.append(min(known) if known else math.nan)
    return [times[start] for start in starts], lows


def gpu_memory_leak(samples: NodeSamples, *, increase: float, patience: int, interval: float) -> list[int]:
    """Scans that fired, of each GPU."""
    found = []
    for column in samples.gpu_memory.astype(np.float64).T.tolist():
        triggered = 0
        for end in scan_ends(samples.times.tolist(), interval):
            times, lows = stretches(samples.times[:end].tolist(), column[:end])
            slope = steady_slope(times, lows)
            if end > patience and slope is not None:
                elapsed = times[-1] - times[math.ceil(len(times) / 4)]
                triggered += slope * elapsed > increase / 100
        found.append(triggered)
    return found


def gpu_memory_nearly_full(
    samples: NodeSamples,
    *,
    threshold: float,
    horizon: float,
    patience: int,
    interval: float,
    forecast_rows: int = 600,
) -> list[int]:
    """Scans that fired, of each GPU."""
    found = []
    for column in samples.gpu_memory.astype(np.float64).T.tolist():
        triggered = start = 0
        for end in scan_ends(samples.times.tolist(), interval):
            recent = [value for value in column[start:end] if not math.isnan(value)]
            start = end
            if end <= patience or not recent:
                continue
            times, lows = stretches(samples.times[:end].tolist(), column[:end])
            slope = steady_slope(times, lows) if end > forecast_rows else None
            left = 1 - [low for low in lows if not math.isnan(low)][-1]
            soon = slope is not None and left / slope < 60 * horizon
            triggered += max(recent) > ratio(threshold) or soon
        found.append(triggered)
    return found
