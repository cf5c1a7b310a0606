"""What the ranks did when: seconds by phase and column, and marked steps, whatever the length of the run."""

import numpy as np
import pytest
from stepscope.evaluation.engine import evaluate
from stepscope.measurements.timeline import StepTimeline
from stepscope.runs.model import Steps

from tests.support.source import START, MemorySource, node_steps


def timeline(*steps: Steps) -> StepTimeline:
    (only,) = evaluate(MemorySource(*steps)).timelines
    return only


def test_a_step_counts_in_each_second_that_it_touches() -> None:
    found = timeline(node_steps([0.5, 2.0, 0.25], start=START + 0.25))
    assert (found.start, found.column_seconds, found.ranks) == (START, 1.0, 1)
    assert found.phase_seconds == {"train": pytest.approx([0.75, 1.0, 1.0])}


def test_phases_are_kept_apart_and_ranks_are_summed() -> None:
    found = timeline(
        node_steps([0.5]),
        node_steps([0.5], phase="eval", start=START + 0.5),
        node_steps([1.0], rank=1),
    )
    assert found.phase_seconds == {"train": [1.5], "eval": [0.5]}
    assert found.ranks == 2


@pytest.mark.parametrize("count", [1, 600, 5_000, 20_001])
def test_columns_and_marks_are_never_many_and_no_second_is_lost(count: int) -> None:
    durations = np.random.default_rng(count).uniform(0.05, 2.0, count)
    late = node_steps(durations, rank=1)
    early = node_steps(durations, start=START - 77.5)  # its steps are before all that was seen so far
    found = timeline(late, early)
    seconds = found.phase_seconds["train"]
    assert len(seconds) <= 600
    assert sum(seconds) == pytest.approx(2 * durations.sum(), abs=0.001 * len(seconds))
    assert found.start <= START - 77.5 < found.start + found.column_seconds
    assert len(found.marks) <= 512
    assert count < 512 or len(found.marks) > 200


def test_marks_are_every_so_many_th_step_of_the_lowest_rank_with_its_own_time() -> None:
    steps = node_steps(np.full(2000, 0.25), rank=3)
    found = timeline(node_steps([1.0], rank=5), steps)
    assert (found.rank, found.every) == (3, 4)
    assert [mark.number for mark in found.marks] == list(range(1, 2001, 4))
    assert found.marks[1].start == steps.starts[4]
    assert found.marks[1].seconds == 0.25
    assert found.marks[1].phase == "train"


def test_a_run_without_steps_has_no_timeline() -> None:
    assert evaluate(MemorySource()).timelines == []
