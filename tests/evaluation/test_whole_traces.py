"""A trace is judged once, over its span, however few steps it has; and what it lacks is not judged."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stepscope.common.status import Status
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.problems import problems_of
from stepscope.report import sentences, shares
from stepscope.report.html import render_html
from stepscope.report.markdown import render_markdown
from stepscope.report.summary import at_a_glance
from stepscope.report.verdict import verdict
from stepscope.runs.model import IDLE_REASONS, DeviceTime, Span, Steps
from stepscope.runs.traces.source import KinetoTraces

from tests.support.few_rules import of_rule
from tests.support.rank_traces import Job
from tests.support.smallest import smallest
from tests.support.source import START, MemorySource, node_steps, run_facts


def whole(*steps: Steps, captures: Sequence[Span] = ()) -> Analysis:
    facts = run_facts(captures=tuple(captures))
    return evaluate(MemorySource(*steps, facts=facts, judged_whole=True))


@pytest.mark.parametrize("ranks", [1, 8])
def test_no_rule_asks_for_more_steps_than_the_6_of_a_trace(ranks: int, tmp_path: Path) -> None:
    analysis = evaluate(KinetoTraces(Job(ranks=ranks, steps=6).write(tmp_path)))
    states = {rule.rule: rule.status for rule in analysis.rules}
    assert {states[name] for name in ("StepOutlier", "TrainingStalled", "DataStarved")} == {Status.HEALTHY}
    assert not [rule.finding for rule in analysis.rules if "Too few" in rule.finding]
    assert not [rule.finding for rule in analysis.rules if "scans" in rule.finding]
    assert "6 steps" in " ".join(verdict(analysis).sentences)
    assert sentences.run_summary(analysis)[0].startswith("The trace covers")


def test_a_trace_says_nothing_about_the_start_of_its_run(tmp_path: Path) -> None:
    analysis = evaluate(KinetoTraces(Job(ranks=1, steps=6).write(tmp_path)))
    start = of_rule("MaxInitializationTime", analysis)
    assert (start.status, start.finding) == ("not enough data", "A trace does not contain the run's start.")
    assert not shares.parts_of_the_run(analysis).parts
    assert "No samples of cores and GPUs were taken." in render_markdown(analysis)


def test_the_use_of_a_gpu_is_that_of_its_traced_time_and_no_size_of_machine_fits_it(tmp_path: Path) -> None:
    job = Job(ranks=1, steps=6, layer=0.0015, synchronised=True, slow=(0,), cause="host")
    analysis = evaluate(KinetoTraces(job.write(tmp_path)))
    (device,) = analysis.devices
    used = next(figure for figure in at_a_glance(analysis) if figure.name == "GPU in use")
    assert (used.value, used.note) == (f"{100 * device.busy / device.seconds:.0f} %", "of its traced time")
    page = render_html(analysis)
    assert "The use of the machine was not measured" in page
    assert "suggests no other size" not in page


# -- idle devices -----------------------------------------------------------------------------------------


def device(rank: int, **waits: float) -> DeviceTime:
    """A GPU of one second, which waits for these reasons and computes otherwise."""
    idle_for = dict.fromkeys(IDLE_REASONS, 0.0) | waits
    idle = sum(waits.values())
    return DeviceTime("gpu0", 1 - idle, 0.0, 0.0, idle, idle_for, node="node-a", rank=rank, steps=10)


@pytest.mark.parametrize(
    ("starved", "waited", "idle"),
    [
        (0, 0.3, None),  # the rule has found all of it
        (0, 0.6, "was idle for another 30 %"),
        (1, 0.3, "was idle for 30 %"),  # the rule is about the other rank
    ],
)
def test_a_rule_explains_the_idle_seconds_that_it_measured_and_no_others(
    starved: int, waited: float, idle: str | None
) -> None:
    """Ranks 0 and 1 take 10 steps of 100 ms; one of them waits for data for 30 % of them."""
    steps = [
        node_steps(np.full(10, 0.1), rank=rank, data_wait=0.03 if rank == starved else 0.0) for rank in (0, 1)
    ]
    facts = run_facts(devices=(device(0, data=waited), device(1)))
    analysis = evaluate(MemorySource(*steps, facts=facts, judged_whole=True))
    assert of_rule("DataStarved", analysis).status == "found"
    found = [problem for problem in problems_of(analysis) if problem.title == "Idle GPU"]
    assert len(found) == (idle is not None)
    if idle is not None:
        assert idle in found[0].rule.finding
        assert found[0].seconds_lost == pytest.approx(0.3)


# -- single long steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("longest", "status"), [(1.4, "healthy"), (1.5, "healthy"), (1.501, "found")])
def test_one_of_6_steps_is_an_outlier_if_it_takes_half_as_long_again_as_the_others(
    longest: float, status: str
) -> None:
    found = of_rule("StepOutlier", whole(node_steps([1.0, 1.0, longest, 1.0, 1.0, 1.0])))
    assert found.status == status, found.finding


def test_a_long_step_of_a_trace_is_named_with_its_component() -> None:
    analysis = whole(node_steps([1.0, 1.0, 10.0, 1.0, 1.0, 1.0], checkpoint=[0, 0, 9.0, 0, 0, 0]))
    found = of_rule("StepOutlier", analysis)
    assert found.finding == (
        "1 of 6 train steps took longer than 1.50 s (mean 2.50 s). Beyond the mean, they cost "
        "7.50 s, 50 % of the steps' time; most of the excess is checkpoint."
    )
    details = found.details["step_details"]["node-a, rank 0, train"]
    assert (details["number_of_outliers"], details["step_numbers"]) == (1, [3])


def test_two_long_steps_do_not_hide_each_other() -> None:
    found = of_rule("StepOutlier", whole(node_steps([1.0, 9.0, 1.0, 1.0, 9.0, 1.0])))
    assert (found.status, found.violations) == ("found", 2)


def test_what_more_than_a_third_of_the_steps_take_is_usual() -> None:
    assert of_rule("StepOutlier", whole(node_steps([1.0, 9.0] * 6))).status == "healthy"


@pytest.mark.parametrize("seed", smallest(range(100), range(2)))
def test_steps_that_vary_by_a_tenth_have_no_outlier(seed: int) -> None:
    steps = node_steps(np.random.default_rng(seed).normal(1.0, 0.1, 6).clip(0.5))
    assert of_rule("StepOutlier", whole(steps)).status == "healthy"


@pytest.mark.parametrize(("count", "status"), [(2, "not enough data"), (3, "healthy")])
def test_two_steps_cannot_show_an_outlier(count: int, status: str) -> None:
    assert of_rule("StepOutlier", whole(node_steps(np.ones(count)))).status == status


# -- pauses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first_ends", "status"), [(3603.0, "found"), (3.0, "healthy")])
def test_the_time_between_two_captures_is_no_pause(first_ends: float, status: str) -> None:
    steps = node_steps(np.ones(6))
    steps.starts[3:] += 3600
    spans = (0.0, first_ends), (3603.0, 3606.0)
    captures = [Span(START + start, START + end, steps.node, steps.rank) for start, end in spans]
    assert of_rule("TrainingStalled", whole(steps, captures=captures)).status == status


# -- what was not measured ----------------------------------------------------------------------------------


def test_waiting_for_data_that_was_not_measured_is_nowhere_0_percent() -> None:
    analysis = whole(node_steps(np.ones(6), forward=0.5))
    starved = of_rule("DataStarved", analysis)
    assert (starved.status, starved.details) == ("not enough data", {})
    assert "No wait for data was timed" in starved.finding
    analysis = replace(analysis, component_seconds={"data_wait": 0.0, "forward": 3.0})
    (glance,) = [figure for figure in at_a_glance(analysis) if figure.name == "Waiting for data"]
    assert (glance.value, glance.note) == ("–", "not measured")
    assert shares.data_wait(analysis) is None
    assert "0 %" not in " ".join(sentences.loading(analysis))
    watched = replace(analysis, loaders=[{"rank": 0, "phase": "train", "workers": 2}])
    assert shares.data_wait(watched) == 0.0
