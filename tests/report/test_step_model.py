"""The formulas of right-sizing: their bounds, and what no prediction may ever say."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from stepscope.report.step_model import (
    SOME,
    Factor,
    batch_times,
    cores_enough,
    enough_of,
    faster_loading,
    fewer_cores,
    fewer_devices,
    larger_batch,
    loading_in_workers,
)

WELL = 0.7
SHARES = st.floats(0, 1)
BELOW_ONE = st.floats(0, 0.999)
TIMES = st.floats(1, 100)
COUNTS = st.integers(1, 128)
FRACTIONS = st.floats(0.01, 1)


@given(BELOW_ONE, TIMES)
def test_no_loader_makes_a_step_shorter_than_what_is_no_waiting(waiting: float, times: float) -> None:
    for factor in (faster_loading(waiting, times), loading_in_workers(waiting, math.ceil(times))):
        assert 1 - waiting <= factor.low <= factor.expected <= factor.high <= 1


def test_a_loader_twice_as_fast_halves_steps_that_wait_for_more_than_half_of_their_time() -> None:
    assert faster_loading(0.8, 2).expected == 0.5
    assert faster_loading(0.4, 2).expected == 0.6


def test_two_workers_make_batches_while_the_rank_computes() -> None:
    assert loading_in_workers(0.5, 2).expected == 0.5
    assert loading_in_workers(0.8, 2).expected == 0.4


@given(SHARES, st.integers(1, 64), SHARES)
def test_a_larger_batch_never_costs_time_and_never_saves_more_than_its_size(
    utilisation: float, times: int, loading: float
) -> None:
    factor = larger_batch(utilisation, times, loading)
    assert 1 / times <= factor.low <= factor.expected <= factor.high == 1
    assert factor.low >= loading


def test_a_batch_twice_as_large_halves_the_gaps_between_kernels_and_nothing_else() -> None:
    assert larger_batch(0.4, 2).expected == pytest.approx(0.7)
    assert larger_batch(1.0, 2).expected == 1
    assert larger_batch(0.4, 2, loading=0.9).expected == 0.9


@given(SHARES, FRACTIONS, st.booleans())
def test_fewer_devices_never_save_time_and_at_worst_do_all_one_after_the_other(
    utilisation: float, fraction: float, waits: bool
) -> None:
    factor = fewer_devices(utilisation, fraction, waits)
    assert factor.low >= 1
    assert factor.high == pytest.approx(max(1, 1 - utilisation + utilisation / fraction))
    assert factor.low >= utilisation / fraction  # kernels alone take as long


def test_a_gpu_used_a_quarter_does_the_work_of_two_while_data_is_waited_for() -> None:
    assert fewer_devices(0.25, 0.5, waits_for_data=True).expected == 1
    assert fewer_devices(0.25, 0.5, waits_for_data=False).expected == 1.25


@given(SHARES, FRACTIONS)
def test_fewer_cores_take_at_most_as_much_longer_as_all_their_work(
    utilisation: float, fraction: float
) -> None:
    factor = fewer_cores(utilisation, fraction)
    assert factor.low == factor.expected == 1
    assert factor.high <= 1 / fraction + 1e-9
    assert fewer_cores(utilisation, 1.0).high == 1


@given(COUNTS, st.floats(WELL, 1))
def test_devices_that_are_well_used_are_all_needed(current: int, use: float) -> None:
    assert enough_of(current, use, WELL) == current
    assert cores_enough(current, use, WELL, least=1) == current


@given(COUNTS, SHARES)
def test_what_is_enough_is_a_divisor_above_nothing_that_is_not_overused(current: int, use: float) -> None:
    enough = enough_of(current, use, WELL)
    assert 1 <= enough <= current
    assert current % enough == 0
    assert enough == current or current * use / enough <= WELL + 1e-9


@given(COUNTS, SHARES, SHARES, st.integers(0, 16))
def test_who_uses_more_is_never_told_that_less_is_enough(
    current: int, one: float, other: float, least: int
) -> None:
    low, high = sorted((one, other))
    assert enough_of(current, low, WELL) <= enough_of(current, high, WELL)
    assert cores_enough(current, low, WELL, least) <= cores_enough(current, high, WELL, least)


@given(COUNTS, SHARES, st.integers(0, 256))
def test_cores_are_never_none_never_more_than_there_are_and_as_many_as_there_must_be(
    cores: int, use: float, least: int
) -> None:
    enough = cores_enough(cores, use, WELL, least)
    assert min(least, cores) <= enough <= cores
    assert enough >= 1
    assert enough == cores or cores * use / enough <= WELL + 1e-9


@given(SHARES, SHARES)
def test_a_batch_that_is_suggested_fits_and_is_not_smaller(utilisation: float, memory: float) -> None:
    times = batch_times(utilisation, memory, WELL, 0.9)
    assert times >= 1
    assert times == 1 or times * memory <= 0.9 + 1e-9


@given(SHARES, SHARES, st.floats(0.01, 1))
def test_a_gpu_that_is_used_more_needs_no_larger_batch(one: float, other: float, memory: float) -> None:
    low, high = sorted((one, other))
    assume(low >= SOME)
    assert batch_times(low, memory, WELL, 0.9) >= batch_times(high, memory, WELL, 0.9)


def test_a_batch_that_makes_the_gpu_well_used_is_large_enough() -> None:
    times = batch_times(0.43, 0.1, WELL, 0.9)
    assert times == 4
    three, four = (n * 0.43 / (1 - 0.43 + n * 0.43) for n in (3, 4))
    assert three < WELL <= four
    assert batch_times(0.43, 0.24, WELL, 0.9) == 3
    assert batch_times(0.43, 0.5, WELL, 0.9) == 1


def test_bounds_that_are_not_in_order_are_refused() -> None:
    with pytest.raises(ValueError, match="not in order"):
        Factor(expected=1.0, low=1.1, high=1.2)
