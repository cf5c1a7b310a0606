"""Steps that take longer and longer: a note, and no problem, where batches may grow by design."""

from dataclasses import replace

import numpy as np
import pytest
from stepscope.common.status import Status
from stepscope.evaluation.analysis import Analysis, RunCores
from stepscope.evaluation.problems import problems_of, small_problems
from stepscope.measurements.timeline import StepMark, StepTimeline
from stepscope.report.verdict import verdict
from stepscope.runs.model import ThreadTime
from stepscope.training.layout import GROWTH

from tests.support.analysis import nothing_found, rule

MARKS, EVERY = 120, 10


def run(took: "np.ndarray[tuple[int], np.dtype[np.float64]]", phase: str = "train") -> Analysis:
    """Returns a run of 100 s whose marked steps took so many seconds, one after another."""
    marks = [StepMark(EVERY * place, phase, 1e9 + place, float(each)) for place, each in enumerate(took)]
    timeline = StepTimeline("a", 1e9, 1.0, 1, {}, 0, EVERY, marks)
    analysis = nothing_found()
    return replace(analysis, timelines=[timeline], start=1e9, end=1e9 + 100, rules=[], run_cores=[])


def found(analysis: Analysis) -> list[str]:
    return [problem.title for problem in small_problems(analysis) if "slower" in problem.title]


GROWING = np.linspace(0.01, 0.1, MARKS)


def test_steps_that_grow_are_noted_with_what_they_take_beyond_the_first_and_accuse_nobody() -> None:
    assert problems_of(run(GROWING)) == []
    (problem,) = small_problems(run(GROWING))
    assert problem.title == "Steps that get slower"
    first = float(np.median(GROWING[:20]))
    assert problem.seconds_lost == pytest.approx(EVERY * (GROWING - first).clip(0).sum())
    assert "took 17.2 ms at first and 92.8 ms at the end, 5.4 times as long" in problem.rule.finding
    (note,) = (each for each in verdict(run(GROWING)).details if problem.finding in each)
    assert "Profile windows" in note
    assert not any("Small things" in each for each in verdict(run(GROWING)).details)


@pytest.mark.parametrize(("growth", "is_found"), [(0.0, False), (0.9, True), (1.0, True), (1.2, False)])
def test_steps_that_grow_while_their_inputs_do_not_are_a_problem(growth: float, is_found: bool) -> None:
    problems = problems_of(replace(run(GROWING), gauges={GROWTH: growth}))
    assert [problem.title for problem in problems] == ["Steps that get slower"] * is_found
    for problem in problems:
        assert "What models get in a step has not grown" in problem.rule.finding


@pytest.mark.parametrize(
    "took",
    [
        np.full(MARKS, 0.05),
        np.linspace(0.1, 0.14, MARKS),  # by too little
        np.linspace(0.1, 0.01, MARKS),  # a warm-up
        np.linspace(0.1, 0.19, MARKS),  # a machine whose clock slows down
        np.repeat([0.01, 0.1], MARKS // 2),  # an event: one jump
        np.concatenate([np.full(MARKS // 2, 0.03), np.linspace(0.03, 0.09, MARKS // 2)]),  # for a while
        np.tile(np.linspace(0.01, 0.1, MARKS // 4), 4),  # in each epoch again
        np.linspace(0.01, 0.1, 89),  # too few
        np.random.default_rng(1).permutation(GROWING),  # of different lengths
    ],
)
def test_other_steps_do_not_grow(took: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> None:
    assert found(run(took)) == []


def test_steps_of_an_evaluation_say_nothing_about_training() -> None:
    assert found(run(GROWING, phase="eval")) == []


def test_what_was_found_explains_its_seconds_of_growing_steps() -> None:
    (growing,) = small_problems(run(GROWING))
    for seconds, left in ((0.9 * growing.seconds_lost, []), (10.0, [growing.seconds_lost - 10.0])):
        starved = rule("DataStarved", Status.FOUND, finding="It waited.", seconds_lost=seconds)
        every = small_problems(replace(run(GROWING), rules=[starved]))
        lost = [problem.seconds_lost for problem in every if problem.title == growing.title]
        assert lost == pytest.approx(left)


def test_processes_of_one_rank_that_lack_a_core_at_the_same_time_explain_it_once() -> None:
    (growing,) = small_problems(run(GROWING))
    waited = 6 * growing.seconds_lost / 2
    threads = [ThreadTime("a", 0, "training", 6, 600.0, 0.0, waited, 0.0)]
    (problem,) = small_problems(replace(run(GROWING), threads=threads))
    assert problem.seconds_lost == pytest.approx(growing.seconds_lost / 2)


def test_neighbours_may_be_why_steps_got_slower() -> None:
    assert found(replace(run(GROWING), run_cores=[RunCores("a", 4.0, 2.0, 0.5)])) == []
    assert found(replace(run(GROWING), run_cores=[RunCores("a", 4.0, 2.0, 0.3)]))
