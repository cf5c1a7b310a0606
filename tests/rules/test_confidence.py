"""A share that is clear of its threshold may be judged early; one near its threshold must wait for more."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from stepscope.rules.parts.judgement import CORRELATED, DEVIATIONS, is_clear, margin


def wilson(share: float, samples: float) -> tuple[float, float]:
    """Wilson's interval as textbooks write it, of `samples` independent ones."""
    z = DEVIATIONS
    middle = (share + z**2 / (2 * samples)) / (1 + z**2 / samples)
    reach = z / (1 + z**2 / samples) * math.sqrt(share * (1 - share) / samples + z**2 / (4 * samples**2))
    return middle - reach, middle + reach


def clear(share: float, samples: float, threshold: float) -> bool:
    return bool(is_clear(np.array([share]), np.array([samples]), threshold)[0])


@given(st.integers(0, 2000), st.integers(240, 2000), st.sampled_from([0.05, 0.2, 0.5, 0.95]))
def test_a_share_is_clear_where_wilsons_interval_leaves_the_threshold_out(
    part: int, samples: int, threshold: float
) -> None:
    share = min(part, samples) / samples
    low, high = wilson(share, samples / CORRELATED)
    if min(abs(low - threshold), abs(high - threshold)) > 1e-9:  # a tie is a matter of rounding
        assert clear(share, samples, threshold) == (not low <= threshold <= high)


def test_a_share_at_its_margin_is_not_clear() -> None:
    assert margin(0.5) * 360**-0.5 == 0.25
    assert [clear(part / 360, 360, 0.5) for part in (89, 90, 180, 270, 271)] == [True, *[False] * 3, True]


def test_a_share_of_nothing_is_not_clear() -> None:
    assert not clear(math.nan, 0, 0.5)
