"""CommunicationBound: the share of the step time in which ranks communicate."""

from __future__ import annotations

import numpy as np
import pytest
from trainwatch.evaluation.analysis import RuleResult
from trainwatch.evaluation.engine import evaluate
from trainwatch.evaluation.settings import Settings
from trainwatch.runs.model import CollectiveTime, NodeSamples, RunFacts, Steps

from tests.support.source import MemorySource, node_samples, node_steps, run_facts


def result(*chunks: NodeSamples | Steps, facts: RunFacts | None = None, **parameters: float) -> RuleResult:
    settings = Settings.parse([f"CommunicationBound.{name}={value}" for name, value in parameters.items()])
    analysis = evaluate(MemorySource(*chunks, facts=facts or run_facts()), settings)
    return next(found for found in analysis.rules if found.rule == "CommunicationBound")


def traced(rank: int, *exposed: float | None) -> RunFacts:
    """A run of which a trace tells the exposed seconds of some collectives of a rank."""
    times = [CollectiveTime("node-a", rank, f"operation {i}", 1, 50.0, one) for i, one in enumerate(exposed)]
    return run_facts(collectives=tuple(times))


@pytest.mark.parametrize(
    ("share", "status"), [(0.19, "healthy"), (0.25, "healthy"), (0.25 + 1 / 1024, "found"), (0.9, "found")]
)
def test_it_fires_above_its_threshold_and_not_at_it(share: float, status: str) -> None:
    steps = node_steps(np.full(256, 1.0), communication=share)  # numbers that add up without rounding
    assert result(steps, threshold=25).status == status


@pytest.mark.parametrize(
    ("count", "status"), [(19, "not enough data"), (20, "not enough data"), (21, "found")]
)
def test_patience_delays_the_first_decision(count: int, status: str) -> None:
    assert result(node_steps(np.full(count, 1.0), communication=0.5)).status == status


def test_a_run_without_timed_communication_is_not_judged_and_says_how_to_time_it() -> None:
    found = result(node_steps(np.full(100, 1.0)))
    assert found.status == "not enough data"
    assert 'trainwatch.component("communication")' in found.finding
    assert "trainwatch.step" in result(node_samples(np.ones((50, 2)))).finding


def test_the_finding_says_that_what_computing_hid_is_not_known() -> None:
    found = result(node_steps(np.full(100, 1.0), rank=3, communication=0.5))
    assert found.finding == (
        "Rank 3 communicated for 50 % of its step time (50.0 s); "
        "how much of it was hidden by computing is unknown."
    )


@pytest.mark.parametrize(
    ("exposed", "status", "seconds"), [((24.0, 2.0), "found", 26.0), ((24.0, 1.0), "healthy", 0.0)]
)
def test_exposed_time_of_a_trace_goes_before_the_component(
    exposed: tuple[float, ...], status: str, seconds: float
) -> None:
    steps = node_steps(np.full(100, 1.0), communication=0.9)
    found = result(steps, facts=traced(0, *exposed), threshold=25)
    assert (found.status, found.seconds_lost) == (status, seconds)
    assert "is not known" not in found.finding


def test_a_trace_of_a_few_steps_is_enough() -> None:
    assert result(node_steps(np.full(5, 1.0)), facts=traced(0, 2.0)).status == "found"


def test_a_collective_whose_exposed_time_is_not_known_says_nothing() -> None:
    steps = node_steps(np.full(100, 1.0), communication=0.1)
    assert result(steps, facts=traced(0, None)).status == "healthy"


def test_ranks_that_wait_for_one_that_hardly_communicates_are_told_so() -> None:
    waiting = [node_steps(np.full(100, 1.0), rank=rank, communication=0.6) for rank in (0, 1, 2)]
    slow = node_steps(np.full(100, 1.0), rank=3, node="node-b", communication=0.05)
    found = result(*waiting, slow)
    assert "rank 3 did for only 5.0 %" in found.finding
    assert "Straggler" in found.finding
    assert found.seconds_lost == pytest.approx(5), "what all have to communicate; the rest is the straggler's"


def test_each_scan_of_each_rank_counts() -> None:
    late = np.concatenate((np.zeros(60), np.full(90, 0.9)))
    found = result(node_steps(np.full(150, 1.0), communication=late), node_steps(np.full(150, 1.0), rank=1))
    assert (found.triggered, found.violations, found.datapoints) == (2, 2, 300)
