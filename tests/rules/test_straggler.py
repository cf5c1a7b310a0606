"""Straggler: the rank that computes longer than its peers, never one that waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainwatch.evaluation.analysis import RuleResult
from trainwatch.evaluation.engine import evaluate
from trainwatch.evaluation.settings import Settings
from trainwatch.runs.model import NodeSamples, Steps

from tests.support.source import MemorySource, node_samples, node_steps


def result(*chunks: NodeSamples | Steps, **parameters: float) -> RuleResult:
    settings = Settings.parse([f"Straggler.{name}={value}" for name, value in parameters.items()])
    analysis = evaluate(MemorySource(*chunks), settings)
    return next(found for found in analysis.rules if found.rule == "Straggler")


def synchronous(own: np.ndarray, **components: np.ndarray) -> list[Steps]:
    """Ranks that wait for each other at each step; `own` (steps, ranks): what each computes."""
    longest = own.max(axis=1) + 0.01
    ranks = []
    for rank in range(own.shape[1]):
        parts: dict[str, Any] = {name: seconds[:, rank] for name, seconds in components.items()}
        parts["communication"] = longest - own[:, rank]
        ranks.append(node_steps(longest, rank=rank, node=f"node-{rank // 4}", first_number=0, **parts))
    return ranks


def cluster(*own: float, steps: int = 100) -> list[Steps]:
    """Ranks that compute for so many seconds at each step."""
    return synchronous(np.tile(own, (steps, 1)))


def fired_ranks(found: RuleResult) -> dict[int, int]:
    """Windows that fired, by rank."""
    return {row["rank"]: row["triggered"] for row in found.details["ranks"] if row["triggered"]}


@pytest.mark.parametrize(("peers", "ranks"), [(0.74, {3: 1}), (0.75, {}), (0.76, {}), (1.0, {}), (1.5, {})])
def test_a_rank_is_a_straggler_where_its_peers_take_below_three_quarters_of_its_time(
    peers: float, ranks: dict[int, int]
) -> None:
    assert fired_ranks(result(*cluster(peers, peers, peers, 1.0))) == ranks


def test_ranks_on_several_nodes_are_one_peer_group() -> None:
    found = result(*cluster(0.5, 0.5, 0.5, 0.5, 0.5, 1.0))
    assert fired_ranks(found) == {5: 1}
    assert found.finding == (
        "Rank 5 on node-1 computed for 1.00 s per step, and its peers for 500 ms, "
        "in 1 of 1 windows of 100 steps."
    )
    assert found.seconds_lost == pytest.approx(50)


def test_a_rank_that_only_waits_is_no_straggler_although_its_step_takes_as_long() -> None:
    steps = cluster(0.2, 1.0, 0.2, 0.2, steps=300)
    assert len({float(one.durations.sum()) for one in steps}) == 1
    assert fired_ranks(result(*steps)) == {1: 3}


def test_where_no_communication_is_timed_waiting_cannot_be_told_from_computing() -> None:
    found = result(*(node_steps(np.full(100, 1.0), rank=rank, first_number=0) for rank in range(4)))
    assert found.status == "healthy"
    assert "communication was not timed" in found.finding


@pytest.mark.parametrize(("slow", "fired"), [(40, 0), (50, 0), (60, 1)])
def test_it_is_the_slowest_for_more_than_half_of_the_window(slow: int, fired: int) -> None:
    """In the rest of the window another rank is slower by a hair."""
    own = np.tile([0.1, 0.1, 2.01, 2.0], (100, 1))
    own[:slow, 3] = 2.1
    assert fired_ranks(result(*synchronous(own))).get(3, 0) == fired


def test_equal_stragglers_are_both_found() -> None:
    assert fired_ranks(result(*cluster(0.5, 0.5, 0.5, 1.0, 1.0))) == {3: 1, 4: 1}


def test_of_two_ranks_each_is_the_others_peer() -> None:
    assert fired_ranks(result(*cluster(0.5, 1.0))) == {1: 1}


@pytest.mark.parametrize(("steps", "status"), [(99, "not enough data"), (100, "found"), (199, "found")])
def test_only_whole_windows_are_judged(steps: int, status: str) -> None:
    found = result(*cluster(0.5, 0.5, 1.0, steps=steps))
    assert (found.status, found.triggered) == (status, int(status == "found"))


@pytest.mark.parametrize(("window", "windows"), [(10, 20), (95, 2), (100, 2), (200, 1)])
def test_the_window_is_rounded_up_to_tens(window: int, windows: int) -> None:
    assert result(*cluster(0.5, 0.5, 1.0, steps=200), window=window).triggered == windows


def test_one_rank_alone_has_no_peers() -> None:
    found = result(*cluster(1.0))
    assert (found.status, "only one rank" in found.finding) == ("not enough data", True)
    assert "no rank" in result(node_samples(np.ones((50, 2)))).finding


def test_a_rank_takes_part_only_in_windows_of_which_it_has_steps_everywhere() -> None:
    steps = cluster(0.5, 0.5, 1.0, steps=300)
    keep = (steps[2].numbers < 110) | (steps[2].numbers >= 120)
    arrays = ("numbers", "phases", "starts", "durations", "components")
    steps[2] = replace(steps[2], **{name: getattr(steps[2], name)[keep] for name in arrays})
    assert fired_ranks(result(*steps)) == {2: 2}


def test_a_step_or_two_that_were_lost_do_not_matter() -> None:
    steps = cluster(0.5, 0.5, 1.0, steps=300)
    keep = steps[2].numbers % 10 != 3
    arrays = ("numbers", "phases", "starts", "durations", "components")
    steps[2] = replace(steps[2], **{name: getattr(steps[2], name)[keep] for name in arrays})
    assert fired_ranks(result(*steps)) == {2: 3}


def test_after_a_restart_of_all_ranks_their_steps_are_compared_anew() -> None:
    first, second = cluster(0.5, 0.5, 1.0), cluster(1.0, 0.5, 0.5)
    later = [replace(steps, starts=steps.starts + 1000) for steps in second]
    assert fired_ranks(result(*first, *later)) == {0: 1, 2: 1}


def test_only_training_steps_are_compared() -> None:
    evaluation = node_steps(np.full(500, 9.0), phase="eval", first_number=0)
    assert result(*cluster(0.5, 0.5, 0.5), evaluation).status == "healthy"


def test_the_component_that_holds_the_difference_is_named_with_its_mend() -> None:
    own = np.tile([0.5, 0.5, 0.5, 1.0], (100, 1))
    found = result(*synchronous(own, data_wait=own - 0.45, forward=np.full_like(own, 0.4)))
    assert found.finding.endswith("most of the difference is data_wait.")
    assert "prefetch" in found.recommendation


@given(st.floats(0.01, 1000), st.integers(2, 12))
def test_a_uniformly_slower_cluster_has_no_straggler(slower: float, ranks: int) -> None:
    assert result(*cluster(*[slower] * ranks)).status == "healthy"


seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.integers(2, 9), st.sampled_from([1.0, 1.1, 1.8, 3.0]))
def test_healthy_ranks_added_change_nothing(seed: int, ranks: int, slower: float) -> None:
    """Healthy ranks differ by a tenth at the most; the first one is `slower` times as slow."""
    own = np.random.default_rng(seed).uniform(0.95, 1.05, (200, ranks + 3))
    own[:, 0] *= slower
    few, more = (fired_ranks(result(*synchronous(own[:, :count]))) for count in (ranks, ranks + 3))
    assert few == more == ({0: 2} if slower > 1.5 else {})


@given(seeds, st.floats(0.001, 1000))
def test_scaling_time_changes_nothing(seed: int, scale: float) -> None:
    own = np.random.default_rng(seed).lognormal(0, 0.3, (200, 4))
    own[:, 1] *= 1.4
    before, after = result(*synchronous(own)), result(*synchronous(scale * own))
    assert fired_ranks(before) == fired_ranks(after)


@given(seeds)
def test_what_all_ranks_wait_for_changes_nothing(seed: int) -> None:
    """A slower network lengthens each step and its communication alike."""
    own = np.random.default_rng(seed).lognormal(0, 0.3, (200, 4))
    steps = synchronous(own)
    slow = [
        replace(
            one,
            durations=one.durations + 5,
            components=one.components + 5 * (np.arange(9) == 4),
            starts=one.starts,
        )
        for one in steps
    ]
    assert fired_ranks(result(*steps)) == fired_ranks(result(*slow))
