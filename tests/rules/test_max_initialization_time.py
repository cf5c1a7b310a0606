"""MaxInitializationTime: when the first step has finished, or that none has."""

from typing import Any

import numpy as np
import pytest
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.runs.model import NodeSamples, RunFacts, Steps

from tests.support.few_rules import judged, of_rule
from tests.support.source import START, MemorySource, node_samples, node_steps, rank_facts, run_facts


def result(*chunks: NodeSamples | Steps, facts: RunFacts | None = None, **parameters: float) -> RuleResult:
    facts = facts or run_facts(ranks=[rank_facts()])
    return judged("MaxInitializationTime", *chunks, facts=facts, **parameters)


def sampled(seconds: float, **more: Any) -> NodeSamples:
    """From the run's start on, every half second, the last one so many seconds later."""
    return node_samples(np.zeros((int(2 * seconds) + 1, 1)), **more)


@pytest.mark.parametrize(
    ("seconds", "status"), [(1199.5, "healthy"), (1200.0, "healthy"), (1200.5, "found"), (2000.0, "found")]
)
def test_without_a_step_it_fires_once_20_minutes_have_passed(seconds: float, status: str) -> None:
    found = result(sampled(seconds))
    assert found.status == status
    assert "no step had finished" in found.finding


@pytest.mark.parametrize(
    ("end", "status"), [(1199.9, "healthy"), (1200.0, "healthy"), (1200.1, "found"), (1500.0, "found")]
)
def test_a_first_step_that_finished_later_than_that_fires(end: float, status: str) -> None:
    found = result(sampled(3000), node_steps([0.25] * 4, start=START + end - 0.25))
    assert found.status == status
    assert "the first step finished" in found.finding
    assert found.seconds_lost == pytest.approx(end if status == "found" else 0.0)


def test_the_threshold_can_be_set() -> None:
    steps = node_steps([0.5] * 4, start=START + 89.5)
    assert result(sampled(100), steps, threshold=1.5).status == "healthy"
    assert result(sampled(100), steps, threshold=1.49).status == "found"


def test_each_scan_after_the_threshold_counts() -> None:
    """Scans end with the 21st to the 25th minute; what lies beyond them is a last one."""
    found = result(sampled(25 * 60 + 10))
    assert (found.triggered, found.violations) == (6, 6)


def test_datapoints_are_steps() -> None:
    assert result(sampled(60), node_steps([0.5] * 7)).datapoints == 7


def test_a_run_that_never_told_of_steps_is_not_judged() -> None:
    found = result(sampled(3000), facts=run_facts())
    assert (found.status, found.triggered) == ("not enough data", 0)
    assert "stepscope.step" in found.finding


def test_nodes_start_on_their_own() -> None:
    facts = run_facts(ranks=[rank_facts(), rank_facts(1, node="node-b"), rank_facts(2, node="node-c")])
    found = result(
        sampled(1500),
        sampled(1500, node="node-b"),
        sampled(1500, node="node-d"),  # no process trains there
        node_steps([0.5] * 9),
        facts=facts,
    )
    assert found.status == "found"
    assert "On node-b" in found.finding
    assert found.triggered == found.details["nodes"]["node-b"]["triggered"] > 0
    assert found.details["nodes"]["node-a"]["triggered"] == 0
    assert "node-d" not in found.details["nodes"]


def test_steps_that_were_counted_but_not_read_have_finished_too() -> None:
    rank = rank_facts(first_step_start=START + 5, steps={"train": 40})
    assert result(sampled(1500), facts=run_facts(ranks=[rank])).status == "healthy"
    began = rank_facts(first_step_start=START + 5, steps={"train": 0})  # and hangs ever since
    assert result(sampled(1500), facts=run_facts(ranks=[began])).status == "found"


def test_a_run_of_which_only_steps_are_known_is_looked_at_once() -> None:
    found = result(node_steps([0.5] * 9, start=START + 1300))
    assert (found.status, found.triggered) == ("found", 1)


def test_without_a_known_start_the_first_process_or_sample_is_the_start() -> None:
    steps = node_steps([0.5] * 9, start=START + 1300)
    assert (
        result(steps, facts=run_facts(start=None, ranks=[rank_facts(start=START + 600)])).status == "healthy"
    )
    assert result(sampled(1500), steps, facts=run_facts(start=None)).status == "found"


def test_details_have_the_jobs_times_as_debugger_writes_them() -> None:
    found = result(sampled(100), node_steps([0.5] * 10, start=START + 20), facts=run_facts(end=START + 101))
    assert (found.details["job_start"], found.details["job_end"]) == (START, START + 101)
    assert found.details["step_num"] == {"first": (START + 20) * 1e6, "last": (START + 24.5) * 1e6}
    assert result(sampled(100)).details["step_num"] == {}
    assert result(sampled(100)).details["job_end"] == START + 100


def test_a_first_step_that_compiles_for_40_minutes_is_over_when_it_ends() -> None:
    steps = node_steps(np.array([2400.0, 1.0, 1.0]))
    rank = rank_facts(first_step_start=float(steps.starts[0]), steps={"train": 3})
    analysis = evaluate(MemorySource(steps, facts=run_facts(start=float(steps.starts[0]), ranks=(rank,))))
    found = of_rule("MaxInitializationTime", analysis)
    assert found.status == "found"
    assert found.seconds_lost == pytest.approx(2400)


@pytest.mark.parametrize(("share", "status"), [(39, "found"), (40, "healthy"), (100, "healthy")])
def test_a_first_step_after_a_large_share_of_the_run_fires_once_that_has_ended(
    share: float, status: str
) -> None:
    steps = node_steps([0.5] * 100, start=START + 39.5)
    facts = run_facts(ranks=[rank_facts()], end=START + 100)
    found = result(sampled(100), steps, facts=facts, share=share)
    assert found.status == status
    assert ("40 % of the run" in found.finding) == (status == "found")
    assert "threshold" not in found.finding
    assert result(sampled(100), steps, share=share).status == "healthy"  # it goes on
