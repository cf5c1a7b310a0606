"""Sums over steps: blocks add up to the whole, and the difference of two moments is the window between."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.measurements.steps import Durations, StepSums
from stepscope.runs.model import COMPONENTS, Times

seconds = st.floats(1e-4, 1e3)
some_steps = st.lists(st.tuples(seconds, seconds), max_size=30)


def columns(steps: list[tuple[float, float]]) -> tuple[Times, Times]:
    """Durations, and components of which the first is some time."""
    rows = np.array(steps, np.float64).reshape(-1, 2)
    return rows[:, 0], np.pad(rows[:, 1:], ((0, 0), (0, len(COMPONENTS) - 1)))


def sums(steps: list[tuple[float, float]]) -> StepSums:
    """As they are summed: shifted by the first duration, which differs from block to block."""
    return StepSums.of(*columns(steps), steps[0][0]) if steps else StepSums()


def assert_same(found: StepSums, expected: StepSums) -> None:
    def numbers(of: StepSums) -> list[Any]:
        spread = of.count * of.standard_deviation**2 if of.count else 0.0
        return [of.count, of.seconds, spread, *of.components]

    assert numbers(found) == pytest.approx(numbers(expected), rel=1e-9, abs=1e-5)


@given(some_steps, some_steps, some_steps)
def test_blocks_add_up_to_the_whole(
    one: list[tuple[float, float]], other: list[tuple[float, float]], last: list[tuple[float, float]]
) -> None:
    assert_same(sums(one) + sums(other) + sums(last), sums(one + other + last))


@given(some_steps, some_steps)
def test_a_window_is_the_difference_of_two_moments(
    before: list[tuple[float, float]], window: list[tuple[float, float]]
) -> None:
    early = sums(before)
    assert_same(early + sums(window) - early, sums(window))


@given(some_steps.filter(bool))
def test_mean_and_deviation_are_numpys(steps: list[tuple[float, float]]) -> None:
    durations = columns(steps)[0]
    found = sums(steps)
    assert found.mean == pytest.approx(durations.mean())
    assert found.standard_deviation == pytest.approx(durations.std(), abs=1e-4)


@given(some_steps.filter(bool), st.lists(st.integers(0, 30)), seconds)
def test_durations_do_not_depend_on_where_scans_end(
    steps: list[tuple[float, float]], ends: list[int], limit: float
) -> None:
    took, components = columns(steps)
    scans = np.array(sorted(min(end, len(took)) for end in ends), np.intp)
    durations = Durations()
    view = durations.observe(np.arange(len(took)), took, components, scans)
    assert view.steps.tolist() == scans.tolist()
    assert view.steps[view.new].tolist() == sorted({end for end in scans.tolist() if end})
    assert durations.sorted().tolist() == sorted(took)
    assert durations.above(limit) == np.count_nonzero(took > limit)
    assert durations.seconds_above(limit) == pytest.approx(took[took > limit].sum())
