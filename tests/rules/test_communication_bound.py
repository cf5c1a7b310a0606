"""CommunicationBound: the share of the step time in which ranks communicate."""

from functools import partial

import numpy as np
import pytest
from stepscope.rules.step_outlier import LEAST_LOST
from stepscope.runs.model import LineTime, RunFacts, ThreadTime

from tests.support.few_rules import judged
from tests.support.source import node_samples, node_steps, rank_facts, rank_trace, run_facts

result = partial(judged, "CommunicationBound")


def traced(*exposed: float) -> RunFacts:
    """A run of which a trace has the exposed seconds of the steps, of 1 s each, of rank 0."""
    return run_facts(traces=(rank_trace(communicated=exposed),))


@pytest.mark.parametrize(
    ("share", "status"), [(0.19, "healthy"), (0.25, "healthy"), (0.25 + 1 / 1024, "found"), (0.9, "found")]
)
def test_it_fires_above_its_threshold_and_not_at_it(share: float, status: str) -> None:
    steps = node_steps(np.full(256, 1.0), communication=share)  # numbers that add up without rounding
    found = result(steps, threshold=25)
    assert found.status == status
    assert not found.cause_known, "without a trace, transfer and waiting are one"


@pytest.mark.parametrize(
    ("count", "status"), [(19, "not enough data"), (20, "not enough data"), (21, "found")]
)
def test_patience_delays_the_first_decision(count: int, status: str) -> None:
    assert result(node_steps(np.full(count, 1.0), communication=0.6)).status == status


def test_a_run_without_timed_communication_is_not_judged_and_says_how_to_time_it() -> None:
    found = result(node_steps(np.full(100, 1.0)))
    assert found.status == "not enough data"
    assert 'stepscope.component("communication")' in found.finding
    assert "stepscope.step" in result(node_samples(np.ones((50, 2)))).finding


def test_a_healthy_run_reports_its_communication_and_what_could_be_saved() -> None:
    """With gloo on shared cores, healthy runs spend 21 to 35 % in communication."""
    shares = (0.35, 0.21, 0.25)
    steps = [node_steps(np.full(100, 1.0), rank=rank, communication=one) for rank, one in enumerate(shares)]
    found = result(*steps)
    assert (found.status, found.seconds_lost) == ("healthy", 0.0)
    assert found.finding == (
        "Rank 0 waited in communication for 35 % of its step time (35.0 s); the other ranks: 21 % to 25 %. "
        "Communicating less, or while computing, could save up to 21.0 s, the least of all ranks; the rest "
        "is waiting for other ranks."
    )
    assert result(steps[0]).finding.endswith("could save up to 35.0 s.")


@pytest.mark.parametrize(
    ("exposed", "status", "seconds"), [((0.5, 0.25), "found", 0.75), ((0.25, 0.25), "healthy", 0.0)]
)
def test_exposed_time_of_a_trace_goes_before_the_component(
    exposed: tuple[float, ...], status: str, seconds: float
) -> None:
    steps = node_steps(np.full(2, 1.0), communication=0.9)
    found = result(steps, facts=traced(*exposed), threshold=25)
    assert (found.status, found.seconds_lost) == (status, seconds)


def test_a_trace_of_a_few_steps_is_enough() -> None:
    found = result(node_steps(np.full(5, 1.0)), facts=traced(*[0.6] * 5))
    assert (found.status, found.cause_known) == ("found", True)


def test_ranks_that_wait_for_one_that_hardly_communicates_are_told_so() -> None:
    waiting = [node_steps(np.full(100, 1.0), rank=rank, communication=0.6) for rank in (0, 1, 2)]
    slow = node_steps(np.full(100, 1.0), rank=3, node="node-b", communication=0.05)
    found = result(*waiting, slow)
    assert "rank 3 did for only 5.0 %" in found.finding
    assert "Straggler" in found.finding
    assert found.seconds_lost == pytest.approx(5), "what all have to communicate; the rest is the straggler's"


def test_ranks_that_wait_for_one_whose_communication_is_all_hidden_could_save_nothing() -> None:
    steps = [node_steps(np.full(30, 1.0), rank=rank) for rank in (0, 1)]
    traces = tuple(rank_trace(rank=rank, communicated=[share] * 30) for rank, share in enumerate((0.6, 0.0)))
    ranks = tuple(rank_facts(rank, world_size=2) for rank in (0, 1))
    found = result(*steps, facts=run_facts(ranks=ranks, traces=traces))
    assert (found.status, found.seconds_lost) == ("found", LEAST_LOST)
    assert "rank 1 did for only 0 %, so the others may only be waiting for it" in found.finding
    assert "ranks were seen" not in found.finding
    timed = node_steps(np.full(100, 1.0), rank=0, communication=0.6)
    assert result(timed, node_steps(np.full(100, 1.0), rank=1)).seconds_lost == LEAST_LOST
    not_begun = node_steps(np.empty(0), rank=1)
    assert result(timed, not_begun).seconds_lost == pytest.approx(60)


def test_what_ranks_wait_for_each_other_by_turns_is_no_communication() -> None:
    waits = np.resize([0.2, 0.9], 100)
    found = result(
        *(node_steps(np.full(100, 1.0), rank=r, communication=c) for r, c in enumerate((waits, 1.1 - waits)))
    )
    assert found.status == "found"
    assert found.seconds_lost == pytest.approx(20), "what the slowest of each step communicates"
    assert "save up to 20.0 s" in found.finding


def test_stages_of_a_pipeline_are_told_of_bubbles_and_not_of_less_communication() -> None:
    recv = "torch.distributed.distributed_c10d.recv"
    waits = LineTime("train", "communication", "train.py:9", "train", recv, "", "", {"other": 1.0})
    thread = ThreadTime("n1", 0, "training", 1, 100.0, 50.0, 0.0, 0.0, (waits,))
    steps = [node_steps(np.full(100, 1.0), rank=rank, communication=0.6) for rank in (0, 1)]
    found = result(*steps, facts=run_facts(threads=(thread,)))
    assert "Shorter waits for other stages could save up to 1 min" in found.finding
    assert "micro-batches" in found.recommendation


def test_ranks_of_nodes_that_were_not_seen_may_be_what_the_others_wait_for() -> None:
    steps = [node_steps(np.full(100, 1.0), rank=rank, communication=0.6) for rank in (0, 1)]
    ranks = tuple(rank_facts(rank, world_size=4) for rank in (0, 1))
    found = result(*steps, facts=run_facts(ranks=ranks))
    assert found.finding.endswith(
        "Only 2 of 4 ranks were seen, which may wait for one of the others: `stepscope report NODE1 NODE2` "
        "reports all nodes."
    )


def test_each_scan_of_each_rank_counts() -> None:
    late = np.concatenate((np.zeros(60), np.full(90, 0.9)))
    steps = node_steps(np.full(150, 1.0), communication=late), node_steps(np.full(150, 1.0), rank=1)
    found = result(*steps, threshold=20)
    assert (found.triggered, found.violations, found.datapoints) == (2, 2, 300)
