"""The steps that a comparison keeps: all of a short run, a fair sample of a long one."""

import numpy as np
import pytest
from stepscope.compare.compared_run import STRETCH, STRETCHES_KEPT, StepSeries, mean_over_ranks
from stepscope.runs.model import COMPONENTS, Times

ALL_KEPT = STRETCH * STRETCHES_KEPT


def series(durations: Times, chunk: int = 1000) -> StepSeries:
    one = StepSeries()
    for start in range(0, len(durations), chunk):
        piece = durations[start : start + chunk]
        components = np.zeros((len(piece), len(COMPONENTS)))
        components[:, 0] = piece / 2
        one.add(piece, components)
    return one


@pytest.mark.parametrize("chunk", [1, 7, STRETCH, 1000])
def test_all_steps_of_a_short_run_are_kept_in_their_order(chunk: int) -> None:
    durations = np.random.default_rng(1).uniform(0.1, 0.2, 333)
    assert series(durations, chunk).kept().tolist() == durations.tolist()


def test_of_a_long_run_every_second_stretch_is_kept_and_sums_stay_exact() -> None:
    durations = np.arange(ALL_KEPT + STRETCH, dtype=np.float64)
    one = series(durations)
    kept = one.kept()
    assert one.every == 2
    assert kept[: 2 * STRETCH].tolist() == [*range(STRETCH), *range(2 * STRETCH, 3 * STRETCH)]
    assert (one.count, one.seconds) == (len(durations), durations.sum())
    assert one.component_seconds[0] == pytest.approx(durations.sum() / 2)


def test_memory_is_bounded_however_long_the_run() -> None:
    one = series(np.full(20 * ALL_KEPT, 0.1), chunk=100_000)
    assert len(one.kept()) <= ALL_KEPT + STRETCH
    assert one.count == 20 * ALL_KEPT


def test_ranks_are_averaged_step_by_step_though_one_of_them_kept_fewer_stretches() -> None:
    long = np.arange(ALL_KEPT + 5 * STRETCH, dtype=np.float64)
    shorter = long[: 4 * STRETCH + 3]
    mean = mean_over_ranks([series(long), series(shorter)])
    expected = [*range(STRETCH), *range(2 * STRETCH, 3 * STRETCH), *range(4 * STRETCH, 4 * STRETCH + 3)]
    assert mean[: len(expected)].tolist() == expected
    assert mean.tolist() == series(long).kept().tolist()


def test_ranks_that_wait_for_each_other_make_one_series() -> None:
    first, second = np.full(50, 0.1), np.full(60, 0.3)
    mean = mean_over_ranks([series(first), series(second)])
    assert mean.tolist() == pytest.approx([0.2] * 50 + [0.3] * 10)


def test_no_rank_has_no_steps() -> None:
    assert len(mean_over_ranks([])) == 0
