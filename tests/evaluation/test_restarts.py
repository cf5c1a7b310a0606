"""Restarts of a run by its launcher: what they cost, as the account, the finding and JSON have it."""

from dataclasses import asdict, replace

import pytest
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.problems import problems_of, small_problems
from stepscope.report.document import document
from stepscope.runs.model import Stay

from tests.support.source import START, MemorySource, node_steps, rank_facts, run_facts

RAISED = {"type": "RuntimeError", "message": "a node failed", "place": "train.py:28", "rank": "1"}


def run_of(
    attempts: int = 2,
    *,
    saved: int | None = 50,
    launched_again: bool = True,
    without_steps: int | None = None,
) -> Analysis:
    """A run of attempts with 100 steps of 1 s, each after 20 s; it saved a checkpoint before step `saved`."""
    ranks, steps = [], []
    for attempt in range(attempts):
        start, has_steps = START + 120 * attempt, attempt != without_steps
        ranks.append(
            rank_facts(
                0,
                pid=attempt + 1,
                start=start,
                first_step_start=start + 20 if has_steps else None,
                last_step_end=start + 120 if has_steps else None,
                end=start + 120,
                steps={"train": 100} if has_steps else {},
                phase_seconds={"train": 100.0} if has_steps else {},
                component_seconds={"forward": 99.0} if has_steps else {},
                attempt=attempt if launched_again else 0,
            )
        )
        saves = [0.5 * (step == saved) for step in range(100)]
        if has_steps:
            steps.append(node_steps([1.0] * 100, start=start + 20, forward=[0.99] * 100, checkpoint=saves))
    end = START + 120 * attempts
    facts = run_facts(start=START, end=end, ranks=ranks, restarted_after=RAISED)
    return evaluate(MemorySource(*steps, facts=facts))


def test_a_restart_costs_its_start_and_the_steps_that_were_not_saved() -> None:
    run = run_of()
    (problem,) = problems_of(run)
    assert problem.title == "Restarts"
    assert problem.seconds_lost == pytest.approx(20 + 49)
    assert "once, last after RuntimeError: a node failed, train.py:28." in problem.rule.finding
    assert "The last 49.0 s of steps were not saved" in problem.rule.finding
    assert run.account is not None
    assert run.account.by_rank("restart") == {0: pytest.approx(20)}
    assert run.account.by_rank("before_first_step") == {0: pytest.approx(20)}
    assert document(run)["run"]["restarts"] == [asdict(each) for each in run.restarts]


def test_a_hang_that_a_restart_ended_is_no_part_of_the_restart() -> None:
    """Rank 0 waits for rank 1 for 480 s, until the launcher starts both again, which takes 40 s."""
    ranks, steps = [], []
    for attempt, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
        start = START + 620 * attempt
        last, waits = start + 120, "data_wait" if rank else "communication"
        lived = last + (5 if attempt else 480)
        ranks.append(
            rank_facts(
                rank,
                pid=10 * attempt + rank,
                start=start,
                first_step_start=start + 20,
                last_step_end=last,
                last_alive=lived,
                end=lived,
                killed=not attempt,
                steps={"train": 100},
                phase_seconds={"train": 100.0},
                component_seconds={"forward": 99.0},
                attempt=attempt,
                world_size=2,
                stays=() if attempt else (Stay(waits, "", last, lived, "waiting"),),
            )
        )
        steps.append(node_steps([1.0] * 100, rank=rank, start=start + 20, forward=[0.99] * 100))
    run = evaluate(MemorySource(*steps, facts=run_facts(end=START + 745, ranks=ranks)))
    hang, restart = [*problems_of(run), *small_problems(run)]
    assert (hang.rule.rule, restart.title) == ("CollectiveHang", "Restarts")
    assert [hang.seconds_lost, restart.seconds_lost] == pytest.approx([480, 40])
    assert "8 min 40 s went by from the last step before to the first" in restart.rule.finding
    assert "8 min of that in a hang" in restart.rule.finding


def test_without_a_checkpoint_it_is_not_known_which_steps_are_repeated() -> None:
    (problem,) = problems_of(run_of(3, saved=None))
    assert problem.seconds_lost == pytest.approx(40)
    assert "which of 200 earlier steps are repeated is not known" in problem.rule.finding


def test_an_attempt_that_takes_no_step_belongs_to_the_restart() -> None:
    run = run_of(3, without_steps=1)
    (restart,) = run.restarts
    assert restart.steps == 100
    assert restart.seconds == pytest.approx(140)
    assert run.account is not None
    assert run.account.by_rank("restart") == {0: pytest.approx(140)}


@pytest.mark.parametrize("attempts", [1, 3])
def test_trainings_one_after_another_are_no_restarts(attempts: int) -> None:
    run = run_of(attempts, launched_again=False)
    assert run.restarts == []
    assert all(found.title != "Restarts" for found in (*problems_of(run), *small_problems(run)))
    assert "restarts" not in document(run)["run"]


def test_a_restart_that_costs_little_is_a_small_thing() -> None:
    run = run_of(saved=99)
    assert run.end is not None
    (small,) = small_problems(replace(run, end=run.end + 10_000))
    assert small.title == "Restarts"
