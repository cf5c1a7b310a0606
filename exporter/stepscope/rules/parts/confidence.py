"""Decides early on a share that is clearly above or below its threshold, long before `patience` has passed.

Source: the score test of a share, which is Wilson's interval turned round: that interval leaves the threshold
out exactly where the share is further away from it than its margin. The same is one line of PromQL. Samples
500 ms apart are autocorrelated, so `CORRELATED` of them count as one: docs/heuristics.md says why.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runs.model import Times

EARLY = 120.0  # seconds of samples before which nothing is decided, unless a rule's patience is shorter
CORRELATED = 10  # samples that count as one
DEVIATIONS = 3.0  # of the share's standard error: 99.7 % of a normal distribution is closer


def margin(threshold: float) -> float:
    """Returns how far one sample's share must be from its threshold (0 to 1) to be clear.

    With n samples it is n ** -0.5 of that.
    """
    return DEVIATIONS * math.sqrt(CORRELATED * threshold * (1 - threshold))


def is_clear(share: NDArray[np.floating[Any]], samples: Times, threshold: float) -> NDArray[np.bool_]:
    """Returns where a share of that many samples is clearly above or below its threshold; never for NaN."""
    with np.errstate(divide="ignore"):
        clear = np.abs(share - threshold) > margin(threshold) * np.power(samples, -0.5)
    return np.asarray(clear)
