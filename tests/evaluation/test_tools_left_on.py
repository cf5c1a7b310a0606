"""Tools that slow all of a run: found if they were on for most of it, before what they slow."""

from dataclasses import replace

import pytest
from stepscope.common.status import Status
from stepscope.common.words import duration
from stepscope.evaluation.account import Account, Key, Leaf
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.problems import problems_of
from stepscope.report.verdict import verdict
from stepscope.runs.model import LineTime, StackTime, ThreadTime

from tests.support.analysis import nothing_found, rule
from tests.support.source import START


def line(place: str, function: str, library: str, seconds: float, state: str = "running") -> LineTime:
    return LineTime("train", "host", place, function, library, "", "", {state: seconds})


MEMORY = line("", "", "tracemalloc", 70.0)
METRIC = line("train.py:9", "metric", "", 60.0)


def run_with(*threads: ThreadTime, steps: float = 1.0) -> Analysis:
    """A run of 100 s, of which the steps took this share, with a metric in Python."""
    shares = {Key("train", "host"): 0.6 * steps, Key("train", "forward"): 0.4 * steps}
    shares[Key("before_steps")] = 1 - steps
    leaves = tuple(Leaf(key, part, {0: 100 * part}, (METRIC,)) for key, part in shares.items())
    account = Account(100.0, 1, leaves)
    return replace(
        nothing_found(),
        rules=[],
        start=START,
        end=START + 100,
        ranks=len(threads),
        account=account,
        gauges={},
        loaders=[],
        threads=list(threads),
    )


def thread(rank: int, *tools: LineTime, state: str = "running", stacks: float = 0.0) -> ThreadTime:
    """A main thread that was in the metric, and for some seconds under cProfile."""
    under = StackTime("train", "host", ("runpy._run_code", "cProfile.main", "main, train.py:3"), stacks)
    lines = (replace(METRIC, seconds={state: 60.0}),)
    return ThreadTime("n1", rank, "training", 1, 100.0, 90.0, 0.0, 0.0, lines, tools=tools, stacks=(under,))


def said(run: Analysis) -> list[str]:
    return [problem.title for problem in problems_of(run)]


@pytest.mark.parametrize(
    ("seconds", "steps", "titles"),
    [
        (50.0, 1.0, ["tracemalloc", "Your own code"]),
        (49.0, 1.0, ["Your own code"]),
        (30.0, 0.6, ["tracemalloc", "Your own code"]),  # imports took the rest
        (29.0, 0.6, ["Your own code"]),
    ],
)
def test_a_tool_that_was_on_for_most_of_the_loop_comes_before_what_it_slows(
    seconds: float, steps: float, titles: list[str]
) -> None:
    run = run_with(thread(0, replace(MEMORY, seconds={"running": seconds})), steps=steps)
    assert said(run) == titles


def test_what_it_costs_is_not_known_but_how_to_switch_it_off() -> None:
    run = run_with(thread(0, MEMORY))
    (problem, _) = problems_of(run)
    assert verdict(run).sentence == "tracemalloc may slow your run down; how much is not known."
    assert problem.rule.finding.endswith("It was active for 1 min 10 s; what it costs is not known.")
    assert "PYTHONTRACEMALLOC" in problem.rule.recommendation


def test_a_tool_comes_last_if_the_threads_that_it_may_slow_mostly_wait() -> None:
    assert said(run_with(thread(0, MEMORY, state="disk"))) == ["Your own code", "tracemalloc"]


def test_what_runs_a_script_under_a_tool_is_seen_in_its_stacks() -> None:
    assert said(run_with(thread(0, stacks=50.0))) == ["cProfile", "Your own code"]
    assert said(run_with(thread(0, stacks=49.0))) == ["Your own code"]
    known = line("", "", "cProfile.Profile", 90.0)
    assert said(run_with(thread(0, known, stacks=50.0))) == ["cProfile", "Your own code"], "once"


def test_the_rank_on_which_a_tool_was_on_is_named() -> None:
    run = run_with(thread(0), thread(1, MEMORY))
    assert " on rank 1 for " in problems_of(run)[0].rule.finding
    assert " on rank" not in problems_of(run_with(thread(0, MEMORY), thread(1, MEMORY)))[0].rule.finding


@pytest.mark.parametrize(
    ("component", "slow", "cost"),
    [
        ("host", [1], 30.0),
        ("forward", [1], 30.0),
        ("data_wait", [1], 0.0),
        ("host", [0], 0.0),
        ("host", [0, 1], 0.0),
    ],
)
def test_a_tool_on_the_one_rank_that_is_slow_costs_what_the_others_wait_for_it(
    component: str, slow: list[int], cost: float
) -> None:
    details = {"rank": slow[0], "slow_ranks": slow, "component": component, "ranks": []}
    straggler = rule("Straggler", Status.FOUND, seconds_lost=30.0, details=details)
    run = replace(run_with(thread(0), thread(1, MEMORY)), rules=[straggler])
    first, *others = problems_of(run)
    assert (first.title, first.seconds_lost) == ("tracemalloc", cost)
    assert ("Waiting for a slow rank" in [each.title for each in others]) is not bool(cost)


@pytest.mark.parametrize(("seconds", "lost"), [(10.0, 10.0), (9.0, 0.0)])
def test_a_trace_function_of_the_script_costs_at_least_the_time_in_its_lines(
    seconds: float, lost: float
) -> None:
    traced = thread(0, line("train.py:3", "trace", "", 90.0))
    run = run_with(replace(traced, lines=(METRIC, line("train.py:4", "trace", "", seconds))))
    (problem, own_code) = problems_of(run)
    assert (problem.title, problem.rule.seconds_lost) == ("trace, train.py:3", lost)
    assert own_code.seconds_lost == pytest.approx(60 - lost), "which has no second of the tool's"
    assert f"its own functions ran for {duration(seconds)}, and" in problem.rule.finding
