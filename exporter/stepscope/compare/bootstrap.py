"""Confidence intervals for a difference of step times: a block bootstrap over both runs.

Consecutive steps are correlated: a slow disk stays slow for a while, checkpoints come at regular distances.
Resampling single steps would treat them as independent and give intervals that are too narrow. So whole
blocks of consecutive steps are resampled.

Source: Politis and Romano, "A circular block-resampling procedure for stationary data" (1992). The length of
a block is the square root of the number of steps: it grows with that number, but slower, as the method asks.
"""

import math
from dataclasses import dataclass

import numpy as np

from stepscope.runs.model import Times

STEPS_NEEDED = 20  # of either run: fewer make fewer than four blocks
REPLICATES = 1000
CONFIDENCE = 0.95
SEED = 20_261_120  # fixed: the same two runs always give the same interval
STATISTICS = ("mean", "p50", "p95")
VALUES_AT_ONCE = 1_000_000  # of replicates: 8 MB, however long the run


@dataclass(frozen=True)
class Interval:
    """The 95 % confidence interval of the change from A to B: (B - A) / A."""

    low: float
    high: float

    @property
    def seen(self) -> bool:
        """Returns whether a difference is seen: the interval does not contain zero."""
        return self.low > 0 or self.high < 0


def intervals(a: Times, b: Times) -> dict[str, Interval]:
    """Returns the interval of each statistic of the step durations; empty if a run has too few steps."""
    if min(len(a), len(b)) < STEPS_NEEDED:
        return {}
    random = np.random.default_rng(SEED)
    drawn_a, drawn_b = _draw(a, random), _draw(b, random)
    measured_a, measured_b = statistics(a), statistics(b)
    tail = (1 - CONFIDENCE) / 2
    wider = _for_few_blocks(min(_blocks(a), _blocks(b)))
    found = {}
    for column, name in enumerate(STATISTICS):
        before, after = drawn_a[:, column], drawn_b[:, column]
        if min(before.min(), after.min()) > 0:
            ratio = measured_b[name] / measured_a[name]
            low, high = np.quantile(after / before, (tail, 1 - tail)).tolist()
            # Wider by the logarithm: a ratio of times is above 0.
            found[name] = Interval(*(ratio * (bound / ratio) ** wider - 1 for bound in (low, high)))
    return found


def statistics(durations: Times) -> dict[str, float]:
    """Returns each of STATISTICS for at least one step."""
    return dict(zip(STATISTICS, _statistics(durations[None, :])[0].tolist(), strict=True))


def _statistics(runs: Times) -> Times:
    """Returns statistics (runs, len(STATISTICS)) of the durations (runs, steps)."""
    p50, p95 = np.percentile(runs, (50, 95), axis=1)
    return np.stack([runs.mean(axis=1), p50, p95], axis=1)


def _draw(durations: Times, random: np.random.Generator) -> Times:
    """Returns statistics (REPLICATES, len(STATISTICS)) of runs that are resampled from its blocks."""
    length, blocks = len(durations), _blocks(durations)
    within = np.arange(-(-length // blocks))
    starts = random.integers(0, length, size=(REPLICATES, blocks))
    at_once = max(1, VALUES_AT_ONCE // length)
    drawn = []
    for first in range(0, REPLICATES, at_once):
        steps = (starts[first : first + at_once, :, None] + within) % length
        drawn.append(_statistics(durations[steps.reshape(len(steps), -1)[:, :length]]))
    return np.concatenate(drawn)


def _blocks(durations: Times) -> int:
    """Returns the number of blocks in a run: about as many as a block has steps."""
    return math.isqrt(len(durations))


def _for_few_blocks(blocks: int) -> float:
    """Returns the factor that widens an interval of few blocks: 1.8 for 4 blocks, 1.1 for 20, 1 for many.

    A bootstrap of n values has the variance of n - 1, and treats it as known, unlike Student's t.
    """
    normal, freedom = 1.96, blocks - 1
    # Student's quantile after Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    student = (
        normal
        + (normal**3 + normal) / (4 * freedom)
        + (5 * normal**5 + 16 * normal**3 + 3 * normal) / (96 * freedom**2)
    )
    return student / normal * math.sqrt(blocks / freedom)
