"""TrainingStalled: pauses between steps, and the one that lasts."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.evaluation.engine import Evaluator
from stepscope.runs.model import RankFacts, RunFacts, Span, Stay, Steps

from tests.support.few_rules import judged, of_rule
from tests.support.source import START, MemorySource, node_samples, node_steps, rank_facts, run_facts

result = partial(judged, "TrainingStalled")


def paused(after: int, seconds: float, count: int = 100, duration: float = 1.0, **components: Any) -> Steps:
    """Steps of which the one after `after` others begins so much later."""
    steps = node_steps(np.full(count, duration), **components)
    steps.starts[after:] += seconds
    return steps


def alive(until: float | None, **more: Any) -> RunFacts:
    """A run of one rank; steps of `node_steps(np.full(100, 1.0))` end 100 s after its start."""
    exit_status = more.pop("exit_status", None)
    last_alive = None if until is None else START + until
    return run_facts(ranks=[rank_facts(last_alive=last_alive, **more)], exit_status=exit_status)


@pytest.mark.parametrize(
    ("factor", "minimum", "seconds", "status"),
    [
        (20, 1, 58.9, "healthy"),  # the pause and the step after it: 59.9 s
        (20, 1, 59.0, "healthy"),  # exactly a minute
        (20, 1, 59.5, "found"),
        (100, 1, 99.0, "healthy"),  # exactly 100 times the usual second
        (100, 1, 99.5, "found"),
        (20, 0.1, 19.0, "healthy"),
        (20, 0.1, 19.5, "found"),
    ],
)
def test_a_pause_longer_than_both_bounds_is_a_stall(
    factor: float, minimum: float, seconds: float, status: str
) -> None:
    found = result(paused(50, seconds), factor=factor, minimum=minimum)
    assert (found.status, found.triggered) == (status, int(status == "found"))


def test_a_stall_is_a_band_from_when_it_is_too_long_to_the_next_step() -> None:
    """Without a step from 50 s to 651 s, which is allowed for a minute."""
    (band,) = result(paused(50, 600)).bands
    assert (band.start, band.end, band.lasts) == (START + 110, START + 651, False)
    assert (band.subject, band.worst, band.words) == ("rank 0", 601, "no step for 10 min 01 s")
    (lasting,) = result(node_steps(np.full(100, 1.0)), facts=alive(900)).bands
    assert (lasting.start, lasting.end, lasting.lasts) == (START + 160, START + 900, True)
    assert result(paused(50, 59)).bands == []


@pytest.mark.parametrize(("count", "status"), [(20, "not enough data"), (21, "found")])
def test_patience_delays_the_first_decision(count: int, status: str) -> None:
    assert result(paused(10, 600, count)).status == status


def test_a_long_step_is_a_stall_but_not_one_that_writes_a_checkpoint_or_compiles() -> None:
    durations = np.ones(100)
    durations[50] = 200
    assert result(node_steps(durations)).seconds_lost == pytest.approx(199, rel=0.01)
    known = np.where(durations > 1, 150.0, 0.0)
    assert result(node_steps(durations, checkpoint=known)).status == "healthy"
    assert result(node_steps(durations, compile=known)).status == "healthy"
    assert result(node_steps(durations, backward=known)).status == "found"


@pytest.mark.parametrize(
    ("stays", "status"),
    [
        ([], "found"),
        ([("checkpoint", 100, 210)], "healthy"),  # which lasts, so no step has it among its components yet
        ([("backward", 100, 210)], "found"),
        ([("host", 100, 210)], "found"),  # the first of its kind
        ([("host", 20, 60), ("host", 100, 210)], "found"),
        ([("host", 20, 80), ("host", 100, 210)], "healthy"),  # less than twice as long as before
    ],
)
def test_a_pause_that_is_spent_in_known_work_or_as_before_is_no_stall(
    stays: list[tuple[str, int, int]], status: str
) -> None:
    steps = node_steps(np.full(100, 1.0))
    known = tuple(Stay(component, "", START + begin, START + end) for component, begin, end in stays)
    assert result(steps, facts=alive(210, stays=known)).status == status


def test_no_steps_are_explained_by_a_first_one_that_was_still_compiling() -> None:
    known = "JAX was imported, but no function trained."
    for component, said in (
        ("compile", "The first step was still compiling after 1 min 50 s"),
        ("host", known),
    ):
        stays = (Stay(component, "", START + 100, START + 210),)
        evaluator = Evaluator(MemorySource(facts=replace(alive(210, stays=stays), no_steps=known)))
        evaluator.advance()
        assert evaluator.analysis(False).no_steps.startswith(said)


@pytest.mark.parametrize(
    ("component", "minutes", "status"),
    [
        ("host", 2, "healthy"),  # an evaluation without a loader, text generation
        ("host", 10, "healthy"),
        ("host", 11, "found"),
        ("communication", 2, "found"),
        ("data_wait", 2, "found"),
    ],
)
def test_live_code_of_the_script_is_no_stall_for_ten_minutes_as_its_alert_is_not_critical(
    component: str, minutes: int, status: str
) -> None:
    """A report on what ended has it as a stall: it cost the time."""
    end = 100 + 60 * minutes
    facts = alive(end, stays=(Stay(component, "", START + 100, START + end),))
    evaluator = Evaluator(MemorySource(node_steps(np.full(100, 1.0)), facts=facts))
    evaluator.advance()
    live, ended = (of_rule("TrainingStalled", evaluator.analysis(live)) for live in (True, False))
    assert (live.status, ended.status) == (status, "found")
    says = "Code of the script has run for" in live.finding
    assert says == (component == "host" and status == "healthy")


@pytest.mark.parametrize(
    ("before", "minutes", "status"), [(20, 10, "healthy"), (20, 11, "found"), (400, 11, "healthy")]
)
def test_a_checkpoint_of_more_than_ten_minutes_is_a_stall_unless_one_before_was_long(
    before: int, minutes: int, status: str
) -> None:
    end = 500 + 60 * minutes
    first = Stay("checkpoint", "", START + 10, START + 10 + before)
    last = Stay("checkpoint", "", START + 500, START + end)
    assert result(node_steps(np.full(500, 1.0)), facts=alive(end, stays=(first, last))).status == status


def test_a_stall_that_lasts_is_seen_while_the_process_lives() -> None:
    found = result(node_steps(np.full(100, 1.0)), facts=alive(900))
    assert (
        found.finding
        == "The training process has finished no step for 13 min 20 s (usually one every 1.00 s)."
    )
    assert found.details["stalls"][0]["end"] is None
    assert found.details["waited_for"] == 0
    assert found.seconds_lost == pytest.approx(799, rel=0.01)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        (alive(160), "healthy"),  # 60 s after the last step: exactly at the minimum
        (alive(161), "found"),
        (alive(None), "healthy"),  # not known whether it lived
        (alive(900, killed=True), "found"),  # killed after it had hung
        (alive(101, killed=True), "healthy"),
        (alive(900, end=START + 900), "healthy"),  # it had other things to do at its end
        (alive(900, end=START + 900, exit_status=0), "healthy"),
        (alive(900, end=START + 900, exit_status=1), "found"),  # interrupted by someone, after it had hung
    ],
)
def test_a_process_that_lives_without_a_step_stands_still_and_one_that_has_ended_does_not(
    facts: RunFacts, status: str
) -> None:
    assert result(node_steps(np.full(100, 1.0)), facts=facts).status == status


def test_steps_that_were_counted_but_not_recorded_are_no_stall() -> None:
    steps = paused(50, 600)
    lost = replace(steps, numbers=steps.numbers + np.where(np.arange(100) < 50, 0, 500))
    assert result(lost).status == "healthy"
    assert result(steps).status == "found"


def test_the_last_step_that_was_counted_ends_the_pause_though_its_record_was_lost() -> None:
    assert (
        result(node_steps(np.full(100, 1.0)), facts=alive(900, last_step_end=START + 890)).status == "healthy"
    )


def test_only_the_time_of_a_pause_that_no_capture_covers_is_no_stall() -> None:
    """A trace has a pause of 600 s after 50 of its steps, and an hour later another capture."""
    steps = paused(50, 600)
    steps.starts[90:] += 3600
    captures = (Span(START, START + 690, "node-a", 0), Span(START + 4290, START + 4300, "node-a", 0))
    found = result(steps, facts=run_facts(captures=captures))
    assert (found.status, found.triggered) == ("found", 1)
    assert "for 10 min 01 s" in found.finding


def test_the_time_between_two_processes_of_a_rank_is_no_stall() -> None:
    processes: list[RankFacts] = [
        rank_facts(end=START + 51),
        rank_facts(pid=2000, start=START + 640, end=START + 700),
    ]
    assert result(paused(50, 600), facts=run_facts(ranks=processes)).status == "healthy"
    assert result(paused(50, 600), facts=run_facts(ranks=processes[:1])).status == "found"


def test_a_new_process_that_has_made_no_step_yet_does_not_stand_still() -> None:
    begun = rank_facts(start=START + 200, last_alive=START + 900)
    assert result(node_steps(np.full(100, 1.0)), facts=run_facts(ranks=[begun])).status == "healthy"


def test_the_rank_that_stopped_first_is_named() -> None:
    ranks = [rank_facts(rank, last_alive=START + 900) for rank in (0, 1, 2)]
    steps = [node_steps(np.full(count, 1.0), rank=rank) for rank, count in enumerate((100, 90, 100))]
    found = result(*steps, facts=run_facts(ranks=ranks))
    assert found.finding == (
        "All 3 ranks have finished no step for 13 min 30 s (usually one every 1.00 s); "
        "rank 1 stopped first, 10.0 s before the next."
    )
    assert found.triggered == 3


def test_without_steps_it_is_not_judged() -> None:
    found = result(node_samples(np.ones((50, 2))))
    assert (found.status, "stepscope.step" in found.finding) == ("not enough data", True)


@given(st.floats(0.01, 100), st.integers(2, 400))
def test_scaling_time_and_the_minimum_alike_changes_nothing(scale: float, seconds: int) -> None:
    def run(by: float) -> int:
        steps = paused(50, seconds + 0.5)
        slow = replace(steps, starts=START + by * (steps.starts - START), durations=by * steps.durations)
        return result(slow, minimum=by).triggered

    assert run(scale) == run(1.0)


def test_only_the_longest_pauses_are_kept_but_all_of_a_thousand() -> None:
    steps = node_steps(np.full(3000, 1.0))
    steps.starts[:] += 100.0 * (np.arange(3000) // 3)
    assert result(steps).triggered == 999


def test_a_step_that_ended_after_the_process_was_last_seen_is_no_pause() -> None:
    facts = alive(50, first_step_start=START, last_step_end=START + 51)
    for steps in ((), (node_steps(np.full(1, 1.0)),)):
        assert result(*steps, facts=facts).status == "not enough data"
