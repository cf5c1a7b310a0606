"""Parts of a difference sum to it, whatever the runs are like."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.compare.compared_run import ComparedRun
from stepscope.compare.comparison import compare
from stepscope.compare.parts import (
    Difference,
    difference_of_a_step,
    difference_of_the_run,
    main_phase,
    step_time,
)

from tests.support.compared import idle_run, run_of

SECONDS = st.floats(0.01, 2.0)
RUNS = st.builds(
    lambda steps, share, evals, other, outside, ranks: run_of(
        steps,
        eval_durations=evals,
        other=other,
        outside=outside,
        ranks=ranks,
        data_wait=share * np.asarray(steps),
        forward=(1 - share) / 2 * np.asarray(steps),
    ),
    st.lists(SECONDS, min_size=1, max_size=30),
    st.floats(0, 1),
    st.lists(SECONDS, max_size=5),
    st.floats(0, 10),
    st.floats(0, 10),
    st.integers(1, 3),
)


def seconds(difference: Difference) -> dict[str, float]:
    return {part.key: part.difference for part in difference.parts}


@given(RUNS, RUNS)
def test_parts_of_a_run_and_of_a_step_sum_to_the_difference(a: ComparedRun, b: ComparedRun) -> None:
    whole = difference_of_the_run(a, b, "train")
    assert whole is not None
    for difference in (whole, difference_of_a_step(a, b, "train")):
        summed = math.fsum(part.difference for part in difference.parts)
        assert summed == pytest.approx(difference.b - difference.a, abs=1e-6)  # moments are read to 0.2 us
    for total, parts in (
        (whole.a, [part.a for part in whole.parts]),
        (whole.b, [part.b for part in whole.parts]),
    ):
        assert math.fsum(parts) == pytest.approx(total, abs=1e-6)


def test_faster_loading_is_the_part_that_changed_and_no_other() -> None:
    a = run_of([0.5] * 100, data_wait=0.3, forward=0.2)
    b = run_of([0.3] * 100, data_wait=0.1, forward=0.2)
    assert seconds(difference_of_a_step(a, b, "train")) == pytest.approx(
        {"data_wait": -0.2, "forward": 0.0, "rest": 0.0}
    )
    whole = difference_of_the_run(a, b, "train")
    assert whole is not None
    assert (whole.a, whole.b) == pytest.approx((56.0, 36.0))
    assert seconds(whole)["data_wait"] == pytest.approx(-20.0)
    assert whole.largest is not None
    assert whole.largest.key == "data_wait"


def test_the_steps_of_a_count_as_often_as_b_did_its_work() -> None:
    a = run_of([0.5] * 100, data_wait=0.1)
    b = run_of([0.6] * 50, data_wait=0.2)
    whole = difference_of_the_run(a, b, "train", work=0.5)
    assert whole is not None
    assert whole.measured_a == pytest.approx(56.0)
    assert (whole.a, whole.b) == pytest.approx((31.0, 36.0))  # 50 steps at the pace of A
    assert seconds(whole)["data_wait"] == pytest.approx(5.0)  # 50 steps, each 0.1 s longer
    assert whole.total == pytest.approx(5.0), "B is slower, though it took less time"


def test_steps_with_different_numbers_of_items_are_split_per_item() -> None:
    a, b = run_of([0.5] * 30, data_wait=0.1), run_of([0.8] * 30, data_wait=0.1)
    difference = difference_of_a_step(a, b, "train", (100, 200))
    assert (difference.a, difference.b) == pytest.approx((0.005, 0.004))
    assert seconds(difference)["data_wait"] == pytest.approx(0.0005 - 0.001)


def test_ranks_work_side_by_side_so_their_times_are_not_added_up() -> None:
    a, b = run_of([0.5] * 10, ranks=4, nodes=("n1", "n2")), run_of([0.4] * 10, ranks=2)
    whole = difference_of_the_run(a, b, "train")
    assert whole is not None
    assert (whole.a, whole.b) == pytest.approx((11.0, 10.0))
    assert seconds(whole)["rest"] == pytest.approx(-1.0)


def test_time_before_the_ranks_start_is_a_part_of_its_own() -> None:
    whole = difference_of_the_run(run_of([0.5] * 10, outside=20.0), run_of([0.5] * 10), "train")
    assert whole is not None
    assert seconds(whole)["outside"] == pytest.approx(-20.0, abs=1e-6)


def test_steps_without_components_are_one_part() -> None:
    difference = difference_of_a_step(run_of([0.5] * 3), run_of([0.4] * 3), "train")
    assert [(part.name, round(part.difference, 9)) for part in difference.parts] == [("The steps", -0.1)]


def test_evaluation_is_compared_as_a_whole() -> None:
    a, b = run_of([0.1] * 5, eval_durations=[1.0] * 2), run_of([0.1] * 5, eval_durations=[1.0] * 5)
    whole = difference_of_the_run(a, b, "train")
    assert whole is not None
    assert seconds(whole)["eval"] == pytest.approx(3.0)


def test_runs_without_steps_cannot_be_split() -> None:
    assert difference_of_the_run(idle_run(10, 1), idle_run(20, 1), None) is None
    assert main_phase(idle_run(10, 1), run_of([0.1])) is None


def test_the_phase_that_both_have_is_compared_training_first() -> None:
    both = run_of([0.1] * 3, eval_durations=[1.0])
    assert main_phase(both, both) == "train"
    assert main_phase(both, run_of(eval_durations=[1.0])) == "eval"


def test_steps_whose_record_was_lost_count_with_the_time_that_the_ledger_has() -> None:
    run = run_of([0.5] * 10, data_wait=0.25)
    (rank,) = run.ranks
    rank.steps["train"], rank.phase_seconds["train"] = 40, 24.0
    its = step_time(run, "train")
    assert (its.count, its.seconds) == (40, 0.6)
    assert its.components["data_wait"] == pytest.approx(0.3)


def test_the_steps_of_a_rank_whose_records_were_all_lost_make_no_other_rank_slower() -> None:
    run = run_of([0.5] * 100, ranks=2)
    lost = replace(run, steps={"train": run.steps["train"][:1]})
    assert step_time(lost, "train").count == 100


def test_steps_that_were_marked_without_a_length_are_not_compared() -> None:
    a, b = run_of([0.5] * 30), run_of([0.0] * 30)
    assert main_phase(a, b) is None
    assert "step_mean" not in compare(a, b).figures
