"""PromQL's `rate`, computed from the samples of its range."""

from __future__ import annotations

import numpy as np

from trainwatch.measurements.scraped import Moment, Points, Vector

FAR = 1.1  # of the mean time between samples: an end of the range beyond this was not sampled


def rates(now: Moment, name: str, matchers: str, seconds: float, of_run: bool = True) -> Vector:
    """Returns what counters gained per second in the last seconds; counters with one sample are left out."""
    found = {
        labels: _rate(points, now.milliseconds, seconds, now.limits_late)
        for labels, points in now.over(name, seconds, matchers, of_run).items()
    }
    return {labels: value for labels, value in found.items() if value is not None}


def _rate(points: Points, end: int, seconds: float, limits_late: bool) -> float | None:
    """Returns what a counter gained per second in the `seconds` up to `end` (ms); None with one sample.

    The increase is extrapolated to the whole range if samples are near its ends, otherwise by half the time
    between two. It is never extrapolated to before the counter was 0. `limits_late`: see Moment.limits_late.
    Source: Prometheus, promql/functions.go, extrapolatedRate.
    """
    times, values = points
    if len(times) < 2:
        return None
    fell = np.diff(values) < 0  # the counter was reset
    increase = float(values[-1] - values[0] + values[:-1][fell].sum())
    sampled = float(times[-1] - times[0]) / 1000
    between = sampled / (len(times) - 1)
    at_start = float(times[0] - (end - 1000 * seconds)) / 1000
    at_end = float(end - times[-1]) / 1000
    to_zero = sampled * (float(values[0]) / increase) if increase > 0 and values[0] >= 0 else np.inf
    if limits_late:
        at_start = min(_stretch(at_start, between), to_zero)
    else:
        at_start = _stretch(min(at_start, to_zero), between)
    return increase * (sampled + at_start + _stretch(at_end, between)) / sampled / seconds


def _stretch(to_end: float, between: float) -> float:
    return to_end if to_end < FAR * between else between / 2
