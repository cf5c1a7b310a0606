"""The states: what a rule came to, in the words that every surface uses."""

import json
from typing import Any

import numpy as np
import pytest
from stepscope.common.status import Status
from stepscope.evaluation.account import Account, Key, Leaf
from stepscope.evaluation.engine import Evaluator, evaluate
from stepscope.measurements.gpu_errors import ErrorsOfGpu
from stepscope.measurements.heatmap import HeatmapOfNode
from stepscope.measurements.starved import StarvedSamples
from stepscope.measurements.timeline import StepsOfNode
from stepscope.report.sentences import counts
from stepscope.report.verdict import status_of_run
from stepscope.rules.cpu_bottleneck import CPUBottleneck
from stepscope.runs.model import Gap

from tests.support import analysis as made
from tests.support.source import START, MemorySource, node_samples, node_steps, run_facts


def test_a_state_is_its_word_wherever_it_is_written() -> None:
    words = ["found", "healthy", "not enough data", "collecting", "failed", "stopped"]
    assert [f"{state}" for state in Status] == [str(state) for state in Status] == words
    assert json.loads(json.dumps(list(Status))) == words


@pytest.mark.parametrize(("live", "state"), [(True, "collecting"), (False, "not enough data")])
@pytest.mark.parametrize("end", [None, START + 5], ids=["without an end", "ended"])
def test_only_a_live_run_collects(live: bool, state: str, end: float | None) -> None:
    samples = node_samples(np.full((10, 2), 1.0), np.full((10, 1), 0.0))
    evaluator = Evaluator(MemorySource(samples, facts=run_facts(end=end)))
    evaluator.advance()
    analysis = evaluator.analysis(live=live)
    assert {rule.status for rule in analysis.rules if rule.rule == "CPUBottleneck"} == {state}
    assert status_of_run(analysis) == state


@pytest.mark.parametrize("method", ["judge", "conclude"])
def test_a_rule_that_fails_does_not_take_the_others_with_it(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no samples")

    monkeypatch.setattr(CPUBottleneck, method, fail)
    samples = node_samples(np.full((1001, 2), 1.0), np.full((1001, 1), 0.0))
    rules = {rule.rule: rule for rule in evaluate(MemorySource(samples)).rules}
    failed = rules.pop("CPUBottleneck")
    assert (failed.status, failed.triggered) == (Status.FAILED, 0)
    assert failed.finding == "This rule failed with ZeroDivisionError: no samples"
    assert Status.FAILED not in {rule.status for rule in rules.values()}


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        (ErrorsOfGpu, {"GPUError"}),
        (StarvedSamples, {"CPUBottleneck", "IOBottleneck"}),
        (StepsOfNode, set()),
        (HeatmapOfNode, set()),
    ],
)
def test_a_measurement_that_fails_costs_only_the_rules_that_ask_for_it(
    kind: type[Any], failed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no samples")

    busy = node_samples(np.full((5000, 2), 1.0), np.full((5000, 1), 0.0)), node_steps(np.full(200, 0.5))
    whole = {rule.rule: rule for rule in evaluate(MemorySource(*busy)).rules}
    method = "observe_steps" if kind is StepsOfNode else "observe"
    monkeypatch.setattr(kind, method, fail)
    analysis = evaluate(MemorySource(*busy))
    for rule in analysis.rules:
        if rule.rule in failed:
            assert rule.status is Status.FAILED
            assert rule.finding == "This rule failed with ZeroDivisionError: no samples"
        else:
            assert rule == whole[rule.rule]
    [said] = analysis.unknowns
    assert "A measurement of node-a failed" in said
    assert bool(analysis.heatmaps) == (kind not in (StarvedSamples, HeatmapOfNode))
    assert bool(analysis.timelines) == (kind is not StepsOfNode)


def test_overviews_are_in_no_state() -> None:
    analysis = made.slow_loader(
        rules=[made.rule(), made.rule("IOBottleneck", Status.FOUND), made.rule("OverallSystemUsage")]
    )
    assert counts(analysis) == {Status.FOUND: 1, Status.HEALTHY: 1}


def test_a_run_has_failed_if_its_command_did_and_is_healthy_if_nothing_was_found() -> None:
    assert status_of_run(made.slow_loader(exit_status=137)) is Status.FAILED
    assert status_of_run(made.slow_loader(rules=[made.rule("A", Status.FOUND), made.rule()])) is Status.FOUND
    assert status_of_run(made.nothing_found()) is Status.HEALTHY
    assert status_of_run(made.one_sample()) is Status.COLLECTING


@pytest.mark.parametrize(("part", "lost"), [("before_first_step", 0), ("train", 700)])
def test_no_live_run_is_said_to_have_too_little_data_for_good(part: str, lost: int) -> None:
    """Nearly all of the run is before its first step, or nearly all of its samples are missing."""
    shares = {Key(part): 0.95, Key("train", "forward"): 0.05}
    leaves = tuple(Leaf(key, share, {0: 720 * share}) for key, share in shares.items())
    for status in (Status.NOT_ENOUGH_DATA, Status.COLLECTING):
        run = made.slow_loader(
            rules=[made.rule("IOBottleneck"), made.rule("LowGPUUtilization", status)],
            account=Account(720.0, 1, leaves),
            gaps=[Gap("samples", "not taken", count=lost)],
            end=None,
        )
        assert status_of_run(run) is status
