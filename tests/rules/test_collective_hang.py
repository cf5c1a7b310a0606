"""CollectiveHang: who waits in a collective, who is missing, and what that rank does."""

from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stepscope.commands.run.command import add_arguments
from stepscope.common.durations import parse_duration
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.measurements.hangs import CollectiveWaits
from stepscope.rules.collective_hang import NOW, SAID_AFTER, CollectiveHang
from stepscope.runs.model import RankFacts, Stay, Steps

from tests.support.few_rules import of_rule, only
from tests.support.source import START, MemorySource, node_steps, rank_facts, run_facts

STEPS = 100.0  # seconds of steps before the hang, one per second
MINUTE = 60.0


def stay(
    component: str, minutes: float, operation: str = "", state: str = "waiting", at: float = STEPS
) -> Stay:
    return Stay(component, operation, START + at, START + at + minutes * MINUTE, state)


def waits(minutes: float, operation: str = "gradients") -> Stay:
    return stay("communication", minutes, operation)


def trained(rank: int, *stays: Stay, minutes: float = 8, **more: Any) -> RankFacts:
    """A rank that finished its last step 100 s after the start, and lived so much longer."""
    alive = {"last_alive": START + STEPS + minutes * MINUTE, "world_size": 4}
    step_ends = {"first_step_start": START, "last_step_end": START + STEPS}
    return rank_facts(rank, stays=stays, **{**step_ends, **alive, **more})


def result(
    *ranks: RankFacts,
    steps: tuple[Steps, ...] | None = None,
    end: float | None = None,
    rule: str = "CollectiveHang",
    **parameters: float,
) -> RuleResult:
    words = [f"CollectiveHang.{name}={value}" for name, value in parameters.items()]
    chunks = (
        tuple(node_steps(np.full(100, 1.0), rank=each.rank) for each in ranks) if steps is None else steps
    )
    facts = run_facts(ranks=ranks, end=None if end is None else START + STEPS + end * MINUTE)
    analysis = evaluate(MemorySource(*chunks, facts=facts), only("CollectiveHang", rule).parse(words))
    return of_rule(rule, analysis)


def test_the_rank_in_the_data_loader_is_missing_and_those_that_wait_are_not_named() -> None:
    found = result(*(trained(rank, waits(8)) for rank in (0, 1, 2)), trained(3, stay("data_wait", 8)))
    assert found.status == "found"
    assert found.finding == (
        "Rank 3 on node-a has been in the data loader for 8 min; 3 ranks wait for it in backward (8 min)."
    )
    assert (found.details["rank"], found.details["node"], found.details["component"]) == (
        3,
        "node-a",
        "data_wait",
    )
    (hang,) = found.details["hangs"]
    assert [rank["waits"] for rank in hang["ranks"]] == [True, True, True, False]
    assert found.seconds_lost == pytest.approx(480)


def test_the_missing_rank_is_named_within_30_s_in_the_live_page_and_on_the_terminal() -> None:
    """Steps take a second; a live evaluation every ten seconds."""
    parser = ArgumentParser()
    add_arguments(parser)
    (interval,) = (each.default for each in parser._actions if each.dest == "live_interval")
    assert SAID_AFTER + parse_duration(interval) <= 30

    def at(seconds: float) -> str:
        waiting = [trained(rank, waits(seconds / 60), minutes=seconds / 60) for rank in (0, 1, 2)]
        missing = trained(3, stay("data_wait", seconds / 60), minutes=seconds / 60)
        found = result(*waiting, missing)
        assert found.status == "healthy"
        return found.finding.partition(NOW)[2]

    assert at(SAID_AFTER - 1) == ""
    assert at(SAID_AFTER + 1) == (
        "Rank 3 on node-a has been in the data loader for 16.0 s; 3 ranks wait for it in backward (16.0 s)."
    )


@pytest.mark.parametrize("minutes", [2, 8])
def test_a_stall_says_who_is_missing_also_before_it_is_a_hang(minutes: float) -> None:
    waiting = [trained(rank, waits(minutes), minutes=minutes) for rank in (0, 1, 2)]
    missing = trained(3, stay("data_wait", minutes), minutes=minutes)
    found = result(*waiting, missing, rule="TrainingStalled")
    assert found.finding == (
        f"All 4 ranks have finished no step for {minutes} min (usually one every 1.00 s). Rank 3 on node-a "
        f"has been in the data loader for {minutes} min; 3 ranks wait for it in backward ({minutes} min)."
    )
    assert found.details["waited_for"] == 3


@pytest.mark.parametrize(("others", "who"), [
    (1, "1 of 2 ranks has finished no step"),
    (3, "3 of 4 ranks have finished no step"),
])  # fmt: skip
def test_a_stall_names_the_killed_rank_and_none_that_waits_for_it(others: int, who: str) -> None:
    waiting = [trained(rank, waits(2), minutes=2) for rank in range(others)]
    killed = trained(others, stay("backward", 0.01), minutes=0.01, killed=True)
    found = result(*waiting, killed, rule="TrainingStalled")
    assert found.status == "found"
    assert found.finding == (
        f"{who} for 2 min (usually one every 1.00 s). Rank {others} on node-a is dead: it ended without "
        f"saying so, last seen in the backward pass; {others} rank{'s' * (others > 1)} "
        f"wait{'s' * (others == 1)} for it in backward (2 min)."
    )


def test_a_stall_says_that_collectives_do_not_match() -> None:
    ranks = [trained(rank, waits(2, "all_gather" if rank else "all_reduce"), minutes=2) for rank in range(4)]
    assert result(*ranks, rule="TrainingStalled").finding.endswith(
        " Ranks have waited in different collectives for 2 min: 1 rank in all_reduce, 3 ranks in all_gather. "
        "They do not match."
    )


def test_a_stall_accuses_nobody_if_all_wait_or_nobody_knows_where_they_are() -> None:
    for stays in ([waits(2)], []):
        ranks = [trained(rank, *stays, minutes=2) for rank in range(4)]
        found = result(*ranks, rule="TrainingStalled")
        assert found.finding.endswith("(usually one every 1.00 s).")
        assert found.details["waited_for"] is None


@pytest.mark.parametrize(("minutes", "status"), [(1.24, "healthy"), (1.25, "healthy"), (1.26, "found")])
def test_a_wait_of_more_than_a_minute_and_a_quarter_is_a_hang(minutes: float, status: str) -> None:
    ranks = (
        trained(0, waits(minutes), minutes=minutes),
        trained(1, stay("data_wait", minutes), minutes=minutes),
    )
    assert result(*ranks).status == status


@pytest.mark.parametrize(("seconds", "missing", "fired"), [
    (119.0, 1, False), (120.0, 1, False), (121.0, 1, True), (121.0, 0, True), (np.nan, 0, False),
])  # fmt: skip
def test_the_judgement_is_that_of_the_threshold(seconds: float, missing: int, fired: bool) -> None:
    rule = CollectiveHang(replace(CollectiveHang().parameters, threshold=2))
    ranks = np.array([float(missing)])
    view = CollectiveWaits(np.array([seconds]), ranks, ranks, np.array([np.nan]))
    assert rule.judge(view).fired.any() == fired


@pytest.mark.parametrize(
    ("seconds", "usual", "fired"),
    [(75.0, 1.0, False), (75.1, 1.0, True), (119.0, 6.0, False), (121.0, 6.0, True), (299.0, 90.0, False)],
)
def test_a_hang_is_seen_in_the_time_of_steps(seconds: float, usual: float, fired: bool) -> None:
    one = np.array([1.0])
    view = CollectiveWaits(np.array([seconds]), one, one, np.array([usual]))
    assert CollectiveHang().judge(view).fired.any() == fired


def test_if_all_wait_in_the_same_collective_nobody_is_accused() -> None:
    found = result(*(trained(rank, waits(8)) for rank in range(4)))
    assert (
        found.finding == "All 4 ranks have waited in backward for 8 min, so it is not known who is missing."
    )
    assert (found.details["rank"], found.details["node"]) == (None, None)
    assert "flight recorder" in found.recommendation


def test_ranks_that_wait_in_different_collectives_do_not_match() -> None:
    found = result(trained(0, waits(8, "barrier")), trained(1, waits(8)))
    assert found.finding == (
        "Ranks have waited in different collectives for 8 min: 1 rank in barrier, 1 rank in backward. "
        "They do not match."
    )


def test_ranks_that_were_never_seen_are_not_accused() -> None:
    found = result(*(trained(rank, waits(8)) for rank in range(3)))
    assert "3 of 4 ranks have waited in backward for 8 min; the other ranks are on nodes" in found.finding
    assert found.details["rank"] is None


def test_a_stopped_rank_is_missing_even_in_a_collective() -> None:
    stopped = stay("communication", 8, "gradients", state="stopped")
    found = result(trained(0, waits(8)), trained(1, stopped))
    assert found.finding == (
        "Rank 1 on node-a is stopped (SIGSTOP or a debugger), last seen in a collective; 1 rank waits for it "
        "in backward (8 min)."
    )


def test_a_killed_rank_is_missing() -> None:
    killed = trained(1, stay("forward", 0.5), minutes=0.5, killed=True)
    found = result(trained(0, waits(8)), killed)
    assert found.finding.startswith("Rank 1 on node-a is dead: it ended without saying so, last seen in")
    assert found.details["hangs"][0]["ranks"][1]["state"] == "dead"


def test_a_rank_that_ended_early_is_missing() -> None:
    ended = trained(1, minutes=0.1, end=START + STEPS + 6)
    assert result(trained(0, waits(8)), ended).finding.startswith("Rank 1 on node-a has ended; 1 rank waits")


def test_a_rank_that_moves_on_without_finishing_a_step_is_missing() -> None:
    found = result(trained(0, waits(8)), trained(1))
    assert found.finding.startswith(
        "Rank 1 on node-a does not wait, and finishes no step; 1 rank waits for it"
    )


def test_processes_that_the_end_of_the_hang_kills_one_by_one_are_not_dead_in_it() -> None:
    loading = trained(0, stay("data_wait", 8), minutes=8, killed=True)
    waiting = [trained(rank, waits(8 + rank / 60), minutes=8 + rank / 60, killed=True) for rank in (1, 2, 3)]
    found = result(loading, *waiting, end=8.1)
    assert found.finding == (
        "Rank 0 on node-a was in the data loader for 8 min; 3 ranks waited for it in backward (8 min 01 s)."
    )


def test_waiting_for_a_checkpoint_or_a_compiler_is_no_hang() -> None:
    for work in ("checkpoint", "compile"):
        assert result(trained(0, waits(8)), trained(1, stay(work, 8))).status == "healthy"


def test_while_another_rank_finishes_steps_it_is_no_hang() -> None:
    evaluating = node_steps(np.full(50, 10.0), rank=1, phase="eval", start=START + STEPS)
    steps = node_steps(np.full(100, 1.0), rank=0), node_steps(np.full(100, 1.0), rank=1), evaluating
    ranks = trained(0, waits(8)), trained(1, last_step_end=START + STEPS + 500)
    assert result(*ranks, steps=steps).status == "healthy"


def test_a_hang_before_the_first_step() -> None:
    starting = stay("communication", 8, "init_process_group", at=5)
    more: dict[str, Any] = {"first_step_start": None, "last_step_end": None, "minutes": 8}
    late = stay("initialization", 8, at=0)
    found = result(trained(0, starting, **more), trained(1, late, **more), steps=())
    assert found.finding.startswith("Rank 1 on node-a has been before its first step for 8 min; 1 rank waits")
    assert "in init_process_group" in found.finding


@pytest.mark.parametrize("lost", [0, 7])
def test_a_hang_that_training_recovered_from_is_told_in_the_past_also_if_records_of_steps_are_lost(
    lost: int,
) -> None:
    steps = []
    for rank in (0, 1):
        after = np.full(100, 1.0)
        after[0] = 481.0
        steps += [
            node_steps(np.full(100, 1.0), rank=rank),
            node_steps(after, rank=rank, start=START + STEPS, first_number=101 + lost),
        ]
    ranks = [
        replace(trained(rank, each, minutes=12), last_step_end=START + 680)
        for rank, each in enumerate((waits(8), stay("data_wait", 8)))
    ]
    found = result(*ranks, steps=tuple(steps), end=10)
    assert found.finding == (
        "Rank 1 on node-a was in the data loader for 8 min; 1 rank waited for it in backward (8 min)."
    )


def test_a_hang_is_found_after_a_clock_was_set_back() -> None:
    an_hour = 60 * MINUTE
    ends = {"minutes": 8 - 60, "last_step_end": START + STEPS - an_hour}
    ranks = [
        trained(rank, stay("data_wait" if rank == 3 else "communication", 8, at=STEPS - an_hour), **ends)
        for rank in range(4)
    ]
    steps = tuple(node_steps(np.full(100, 1.0), rank=rank, start=START - an_hour) for rank in range(4))
    found = result(*ranks, steps=steps)
    assert found.finding == (
        "Rank 3 on node-a has been in the data loader for 8 min; 3 ranks wait for it in a collective (8 min)."
    )
    assert result(*ranks, rule="TrainingStalled").status != "failed"


@pytest.mark.parametrize("work", ["data_wait", "checkpoint"])
def test_a_clock_that_is_set_back_after_the_last_step_hides_no_hang(work: str) -> None:
    an_hour = 60 * MINUTE
    ranks = [
        trained(rank, stay(work if rank == 3 else "communication", 8, at=STEPS - an_hour), minutes=8 - 60)
        for rank in range(4)
    ]
    found, stalled = (result(*ranks, rule=rule) for rule in ("CollectiveHang", "TrainingStalled"))
    if work == "checkpoint":
        assert (found.status, stalled.status) == ("healthy", "healthy")
        return
    assert found.finding == (
        "Rank 3 on node-a has been in the data loader for 8 min; 3 ranks wait for it in a collective (8 min)."
    )
    assert stalled.finding.startswith("All 4 ranks have finished no step for 8 min")
    alone = replace(ranks[3], rank=0)
    assert result(alone, rule="TrainingStalled").finding.startswith(
        "The training process has finished no step for 8 min (usually one every 1.00 s)."
    )


def test_a_standstill_without_places_is_not_healthy() -> None:
    found = result(trained(0), trained(1))
    assert (found.status, "where the ranks were was not recorded" in found.finding) == (
        "not enough data",
        True,
    )


@pytest.mark.parametrize(
    ("size", "finding"),
    [
        (1, "Only runs with several ranks wait in collectives."),
        (4, "Only one of the run's 4 ranks was recorded: where the others were is not known."),
    ],
)
def test_a_rank_alone_is_not_judged(size: int, finding: str) -> None:
    found = result(trained(0, world_size=size, minutes=0))
    assert (found.status, found.finding) == ("not enough data", finding)
