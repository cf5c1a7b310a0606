"""The interval of a change of step times: it finds what is there, and finds nothing where nothing is."""

import numpy as np
import pytest
from stepscope.compare.bootstrap import STEPS_NEEDED, Interval, intervals, statistics
from stepscope.runs.model import Times

STEPS = 400


def alike(random: np.random.Generator, mean: float = 0.1, steps: int = STEPS) -> Times:
    """Steps whose noise lasts: what is slow stays so for some ten steps."""
    noise = np.empty(steps)
    noise[0] = random.normal()
    for step in range(1, steps):
        noise[step] = 0.8 * noise[step - 1] + 0.6 * random.normal()
    return np.asarray(mean * (1 + 0.05 * noise))


def test_a_run_compared_with_itself_shows_no_difference() -> None:
    durations = alike(np.random.default_rng(1))
    assert not any(interval.seen for interval in intervals(durations, durations).values())


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_a_change_by_a_fifth_is_seen_and_lies_in_the_interval(factor: float) -> None:
    random = np.random.default_rng(2)
    for interval in intervals(alike(random), alike(random, 0.1 * factor)).values():
        assert interval.seen
        assert interval.low < factor - 1 < interval.high


def test_two_runs_alike_show_a_difference_as_rarely_as_promised_though_their_noise_lasts() -> None:
    """Drawing single steps would find a difference in most of such pairs; blocks do in few."""
    random = np.random.default_rng(3)
    pairs = 60
    found = sum(intervals(alike(random), alike(random))["mean"].seen for _ in range(pairs))
    naive = 0
    for _ in range(pairs):
        a, b = alike(random), alike(random)
        error = np.hypot(a.std(), b.std()) / np.sqrt(STEPS)
        naive += abs(a.mean() - b.mean()) > 1.96 * error
    assert found <= 0.2 * pairs
    assert naive >= 2 * max(found, 1)


def test_the_same_runs_always_give_the_same_interval() -> None:
    random = np.random.default_rng(4)
    a, b = alike(random), alike(random)
    assert intervals(a, b) == intervals(a, b)


def test_the_runs_may_have_different_numbers_of_steps() -> None:
    random = np.random.default_rng(8)
    interval = intervals(alike(random, steps=100), alike(random, 0.2, steps=333))["mean"]
    assert interval.low < 1.0 < interval.high


def test_too_few_steps_have_no_interval() -> None:
    few, many = np.full(STEPS_NEEDED - 1, 0.1), np.full(STEPS_NEEDED, 0.1)
    assert intervals(few, many) == intervals(many, few) == {}
    assert intervals(many, many)["p50"] == Interval(0.0, 0.0)


def test_steps_that_take_no_time_have_no_interval_in_percent() -> None:
    assert intervals(np.zeros(50), np.ones(50)) == {}


def test_no_interval_of_few_steps_with_a_slow_first_one_says_that_steps_took_less_than_no_time() -> None:
    random = np.random.default_rng(7)
    a, b = (np.concatenate(([5.0], alike(random, steps=STEPS_NEEDED - 1))) for _ in range(2))
    found = intervals(a, b)
    assert all(-1 < interval.low < interval.high for interval in found.values())
    assert not found["mean"].seen


def test_statistics_are_numpys() -> None:
    durations = np.arange(1.0, 102.0)
    assert statistics(durations) == {"mean": 51.0, "p50": 51.0, "p95": 96.0}


def test_a_stall_each_fortieth_step_shows_in_the_mean_and_not_in_the_median() -> None:
    steady = alike(np.random.default_rng(6), steps=1600)
    stalled = steady + np.where(np.arange(1600) % 40 == 39, 0.4, 0.0)
    found = intervals(steady, stalled)
    assert found["mean"].seen
    assert not found["p50"].seen
