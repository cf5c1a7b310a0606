"""--fail-if: which conditions there are, and when they are met."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.common.errors import UserError
from stepscope.common.status import Status
from stepscope.compare import gate
from stepscope.compare.compared_run import ComparedRun
from stepscope.compare.comparison import compare
from stepscope.compare.gate import Condition, Outcome

from tests.support.analysis import rule
from tests.support.compared import idle_run, run_of


def judged(text: str, a: ComparedRun, b: ComparedRun) -> Outcome:
    (outcome,) = compare(a, b, [gate.parse(text)]).outcomes
    return outcome


def with_rules(**statuses: str) -> ComparedRun:
    """A run of which these rules are known."""
    run = run_of([0.1] * 3)
    rules = [rule(name, status, finding=f"{name} found it.") for name, status in statuses.items()]  # type: ignore[arg-type]
    return replace(run, analysis=replace(run.analysis, rules=rules))


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("step_p50\n>+3%", Condition("", "step_p50", True, 0.03, True)),
        ("step_p50>+3%", Condition("", "step_p50", True, 0.03, True)),
        (" step_p50 > +3 % ", Condition("", "step_p50", True, 0.03, True)),
        ("throughput<-5%", Condition("", "steps_per_second", False, -0.05, True)),
        ("step_mean>-10%", Condition("", "step_mean", True, -0.1, True)),
        ("duration>10m", Condition("", "duration", True, 600)),
        ("step_p95>250ms", Condition("", "step_p95", True, 0.25)),
        ("step_p95>0.25", Condition("", "step_p95", True, 0.25)),
        ("cost>$5", Condition("", "cost", True, 5)),
        ("gpu_p95<60%", Condition("", "gpu_p95", False, 60)),
        ("gpu_p95<60", Condition("", "gpu_p95", False, 60)),
        ("CPUBottleneck", Condition("", "CPUBottleneck")),
        ("any_rule", Condition("", "any_rule")),
        (
            "any_rule  except IOBottleneck",
            Condition("", "any_rule", excepted=("IOBottleneck",)),
        ),
    ],
)
def test_conditions_are_understood(text: str, condition: Condition) -> None:
    assert replace(gate.parse(text), text="") == condition


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write a figure and a limit"),
        ("step_p50>>3", "is not a limit"),
        ("step_p50", 'give a limit, as in "step_p50>+3%"'),
        ("step_p50>", "write a figure and a limit"),
        ("step_p50>3%", "as +3% or -3%"),
        ("step_mea>+3%", "did you mean step_mean?"),
        ("cpubottleneck", "did you mean CPUBottleneck?"),
        ("coffee", "no figure or rule 'coffee'"),
        ("CPUBottleneck>3", "is a rule and takes no limit"),
        ("OverallSystemUsage", "no figure or rule"),
        ("any_rule except", "write a figure and a limit"),
        ("any_rule except cpubottleneck", "did you mean CPUBottleneck?"),
        ("gpu_p95<5ms", "is not measured in ms"),
        ("step_p50>$3", "is not measured in $"),
        ("cost>1e9999", "is not a limit"),
        ("step_p50>+3%; rm -rf", "is not a limit"),
    ],
)
def test_a_wrong_condition_is_one_line_that_names_it_and_the_mend(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        gate.parse(text)
    message = str(caught.value)
    assert words in message
    assert message.startswith(f"--fail-if {text}: ")
    assert "\n" not in message


@given(st.text(max_size=30))
def test_any_text_is_a_condition_or_the_users_mistake(text: str) -> None:
    try:
        gate.parse(text)
    except UserError:
        return


def test_any_rule_may_have_exceptions() -> None:
    a = with_rules(CPUBottleneck=Status.HEALTHY, DataStarved=Status.HEALTHY)
    b = with_rules(CPUBottleneck=Status.FOUND, DataStarved=Status.FOUND)
    outcome = judged("any_rule except CPUBottleneck", a, b)
    assert (outcome.state, outcome.reason) == (
        "failed",
        "DataStarved fired in B and not in A: DataStarved found it.",
    )
    quiet = with_rules(CPUBottleneck=Status.FOUND, DataStarved=Status.HEALTHY)
    assert judged("any_rule except CPUBottleneck, IOBottleneck", a, quiet).state == "passed"


STEADY = np.full(50, 0.1)


@pytest.mark.parametrize(
    ("text", "factor", "state"),
    [
        ("step_p50>+3%", 1.05, "failed"),
        ("step_p50>+3%", 1.02, "passed"),
        ("step_p50>+3%", 0.5, "passed"),
        ("step_p50>-10%", 0.8, "passed"),  # it must become at least 10 % faster
        ("step_p50>-10%", 1.0, "failed"),
        ("step_p50>+0%", 1.0, "passed"),
        ("throughput<-5%", 1.2, "failed"),
        ("throughput<-5%", 1.0, "passed"),
        ("step_mean>110ms", 1.2, "failed"),
        ("step_mean>110ms", 1.0, "passed"),
        ("gpu_p95<60", 1.0, "inconclusive"),
        ("gpu_p95<-5%", 1.0, "inconclusive"),
        ("energy>+5%", 1.0, "inconclusive"),
    ],
)
def test_a_change_is_judged(text: str, factor: float, state: str) -> None:
    outcome = judged(text, run_of(STEADY), run_of(STEADY * factor))
    assert outcome.state == state, outcome.reason


def test_a_slow_first_step_of_a_short_run_is_no_lower_throughput() -> None:
    random = np.random.default_rng(1)
    a, b = (np.concatenate(([5.0], 0.1 + 0.005 * random.random(19))) for _ in range(2))
    for text in ("step_mean>+5%", "throughput<-5%"):
        outcome = judged(text, run_of(a), run_of(b))
        assert outcome.state == "inconclusive", outcome.reason
        assert "no difference seen" in outcome.reason


def test_noise_as_large_as_the_limit_is_inconclusive_and_noise_far_below_it_passes() -> None:
    random = np.random.default_rng(9)
    noisy = 0.1 * np.exp(0.5 * random.normal(size=(2, 60)))
    slower = sorted((run_of(one) for one in noisy), key=lambda run: float(run.steps["train"][0].seconds))
    outcome = judged("step_mean>+3%", *slower)
    assert outcome.state == "inconclusive"
    assert "no difference seen" in outcome.reason
    assert "the limit of +3.0 % is inside the interval, which more steps narrow" in outcome.reason
    assert judged("step_mean>+200%", *slower).state == "passed"
    assert judged("step_mean<-90%", *slower).state == "passed"


def test_too_few_steps_are_inconclusive_however_slow() -> None:
    outcome = judged("step_mean>+3%", run_of([0.1] * 19), run_of([0.3] * 30))
    assert (outcome.state, outcome.reason) == (
        "inconclusive",
        "+200 %, but too few steps to be sure (20 are needed)",
    )
    assert judged("step_mean>+3%", run_of([0.1] * 20), run_of([0.3] * 30)).state == "failed"


def test_whole_runs_are_inconclusive_unless_both_did_the_same_work() -> None:
    twice = run_of([0.1] * 100)
    assert judged("duration>+3%", run_of(STEADY), twice).state == "inconclusive"
    assert judged("duration>+3%", run_of(STEADY), twice).reason.endswith("but different work")
    assert judged("step_mean>+3%", run_of(STEADY), twice).state == "passed"
    assert judged("duration>+3%", run_of(STEADY), run_of(STEADY * 2)).state == "failed"
    idle = idle_run(10, 1), idle_run(20, 1)
    assert "not known whether both did the same work" in judged("duration>+3%", *idle).reason
    told = [replace(run, workload=100.0) for run in idle]
    assert judged("duration>+3%", *told).state == "failed"


def test_steps_of_other_batches_are_inconclusive_and_items_are_judged() -> None:
    a, b = run_of(STEADY, loader={"batch_size": 16}), run_of(STEADY * 1.5, loader={"batch_size": 32})
    assert judged("step_mean>+3%", a, b).reason == "+50.0 %, but different work per step"
    assert judged("item_mean>+3%", a, b).state == "passed"
    more_ranks = run_of(STEADY, ranks=2)
    assert judged("step_mean>+3%", run_of(STEADY), more_ranks).state == "inconclusive"


def test_a_share_is_judged_in_points() -> None:
    a, b = run_of(STEADY, data_wait=0.010), run_of(STEADY, data_wait=0.014)
    outcome = judged("data_wait>+3%", a, b)
    assert (outcome.state, outcome.reason) == ("failed", "+4.0 points, above +3.0 points")
    assert judged("data_wait>+5%", a, b).state == "passed"


def test_a_run_that_failed_passes_nothing() -> None:
    run = run_of(STEADY)
    failed = replace(run, analysis=replace(run.analysis, exit_status=1))
    outcome = judged("step_p50>+3%", run, failed)
    assert outcome.state == "inconclusive"
    assert outcome.reason == "B failed: no difference seen (0 % to 0 %), not above +3.0 %"
    slow = replace(run_of(STEADY * 2), analysis=failed.analysis)
    assert judged("step_p50>+3%", run, slow).state == "failed"


def test_a_rule_fails_the_gate_where_it_appears_and_not_where_it_stayed() -> None:
    quiet, fired = with_rules(CPUBottleneck=Status.HEALTHY), with_rules(CPUBottleneck=Status.FOUND)
    assert judged("CPUBottleneck", quiet, fired).state == "failed"
    assert "CPUBottleneck found it." in judged("CPUBottleneck", quiet, fired).reason
    assert judged("CPUBottleneck", with_rules(CPUBottleneck=Status.NOT_ENOUGH_DATA), fired).state == "failed"
    assert judged("CPUBottleneck", fired, fired).state == "passed"
    assert judged("CPUBottleneck", fired, quiet).state == "passed"
    assert judged("DataStarved", quiet, with_rules(DataStarved=Status.HEALTHY)).state == "passed"
    assert judged("DataStarved", quiet, with_rules(DataStarved=Status.NOT_ENOUGH_DATA)).reason == (
        "B has not enough data to judge DataStarved"
    )
    unknown = with_rules(CPUBottleneck=Status.NOT_ENOUGH_DATA)
    assert judged("any_rule", quiet, unknown).reason == "B has not enough data to judge CPUBottleneck"
    assert judged("any_rule", unknown, unknown).state == "inconclusive"
    assert judged("any_rule", quiet, fired).state == "failed"
    assert judged("any_rule", fired, fired).state == "passed"


def test_a_gate_says_so_if_it_knows_too_little_of_a_run() -> None:
    unknown, fired = with_rules(DataStarved=Status.NOT_ENOUGH_DATA), with_rules(DataStarved=Status.FOUND)
    assert judged("any_rule", unknown, fired).reason == (
        "DataStarved fired in B and not in A, which has not enough data to judge DataStarved: "
        "DataStarved found it."
    )
    nothing = with_rules(DataStarved=Status.NOT_ENOUGH_DATA, MaxInitializationTime=Status.HEALTHY)
    outcome = judged("any_rule", nothing, nothing)
    assert (outcome.state, outcome.reason) == ("inconclusive", "B has not enough data to be called healthy")
    assert judged("MaxInitializationTime", nothing, nothing).state == "passed"
    healthy = with_rules(DataStarved=Status.HEALTHY, MaxInitializationTime=Status.HEALTHY)
    assert judged("any_rule", nothing, healthy).state == "passed"
    failed = replace(nothing, analysis=replace(nothing.analysis, exit_status=1))
    assert judged("any_rule", nothing, failed).reason.startswith("B failed: ")


def test_what_only_one_run_has_is_inconclusive() -> None:
    outcome = judged("gpu_p95<-5%", run_of(STEADY, gpu=0.9), run_of(STEADY))
    assert outcome.state == "inconclusive"
    assert "B does not have it" in outcome.reason


def test_a_gpu_that_is_used_less_fails_by_change_and_by_limit() -> None:
    a, b = run_of(STEADY, gpu=0.9), run_of(STEADY, gpu=0.5)
    assert judged("gpu_p95<-5%", a, b).state == "failed"
    assert judged("gpu_p95<60%", a, b).state == "failed"
    assert judged("gpu_p95<40%", a, b).state == "passed"
