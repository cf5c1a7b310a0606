"""The order of findings: by the time that they explain, causes before symptoms, each problem once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stepscope.common.status import Status
from stepscope.evaluation.account import Account, Key, Leaf
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.problems import in_order, problems, problems_of
from stepscope.evaluation.unexplained import LargePart, of_part
from stepscope.report.document import document
from stepscope.report.sentences import in_order as in_table
from stepscope.runs.model import LineTime, ThreadTime

from tests.support.analysis import loader, nothing_found, rule
from tests.support.source import MemorySource, node_samples, run_facts


def found(name: str, seconds: float = 0.0, **changes: Any) -> RuleResult:
    return rule(name, Status.FOUND, seconds_lost=seconds, **{"triggered": 1, **changes})


def order(*results: RuleResult) -> list[str]:
    return [problem.rule.rule for problem in problems(results)]


def test_on_debuggers_published_run_the_busy_core_is_above_the_small_batches() -> None:
    """70.5 % of 3,019 samples have a pinned core; the mean of the cores, GPU and memory are low."""
    concerned = np.random.default_rng(2129).permutation(3019)[:2129]
    cores, gpus = np.full((3019, 8), 0.05), np.full((3019, 2), 0.3)
    cores[concerned, 0], gpus[concerned, 1] = 0.95, 0.02
    memory = np.full((3019, 2), 0.2)
    source = MemorySource(node_samples(cores, gpus, gpu_memory=memory), facts=run_facts())
    analysis = evaluate(source)
    names = [result.rule for result in analysis.rules if result.status is Status.FOUND]
    assert names.index("CPUBottleneck") == 0
    assert {"BatchSize", "LowGPUUtilization"} <= set(names[1:])
    report = document(analysis)
    assert [one["rule"] for one in report["verdict"]["findings"]][:2] == ["CPUBottleneck", "BatchSize"]
    assert [one["rule"] for one in report["rules"]][: len(names)] == names
    assert [result.rule for result in in_table(analysis)][: len(names)] == names


def test_what_explains_more_time_comes_first() -> None:
    assert order(found("StepOutlier", 5), found("DataStarved", 9)) == ["DataStarved", "StepOutlier"]


@pytest.mark.parametrize("seconds", [0.0, 1.0, 99.0])
def test_a_symptom_comes_after_its_cause_whatever_it_costs(seconds: float) -> None:
    assert order(found("BatchSize", seconds), found("CPUBottleneck", 1.0)) == ["CPUBottleneck", "BatchSize"]


def test_a_symptom_without_its_cause_stands_by_its_own_time() -> None:
    """Long steps do not make a job communicate."""
    assert order(found("StepOutlier", 2), found("CommunicationBound", 90)) == [
        "CommunicationBound",
        "StepOutlier",
    ]


def test_idle_gpus_belong_to_what_explains_them_even_if_its_time_is_not_known() -> None:
    (problem,) = problems([found("LowGPUUtilization"), found("BatchSize")])
    assert (problem.rule.rule, [also.rule for also in problem.also]) == ("BatchSize", ["LowGPUUtilization"])
    assert order(found("LowGPUUtilization"), found("GPUMemoryLeak")) == ["GPUMemoryLeak", "LowGPUUtilization"]


def test_a_cause_that_estimates_no_time_has_that_of_the_rules_that_saw_it() -> None:
    first, second = problems([found("CPUThrottled"), found("CPUBottleneck", 60), found("StepOutlier", 30)])
    assert (first.rule.rule, first.estimate.rule, first.seconds_lost) == ("CPUThrottled", "CPUBottleneck", 60)
    assert second.rule.rule == "StepOutlier"


@pytest.mark.parametrize(
    ("cause", "apart"),
    [("sampler", True), ("too few workers", True), ("neighbours", False), ("not known", False)],
)
def test_neighbours_hide_no_data_that_is_late_without_them(cause: str, apart: bool) -> None:
    starved = found("DataStarved", 12.0, details={"cause": cause})
    results = (starved, found("NoisyNeighbour", 20.0), found("Dataloader"))
    assert order(*results) == (["NoisyNeighbour", "DataStarved"] if apart else ["NoisyNeighbour"])


@pytest.mark.parametrize(("outside", "left"), [(15.0, 15.0), (0.0, None), (30.0, 20.0)])
def test_waits_for_cores_in_the_fetches_of_a_rank_are_no_finding_besides_its_late_data(
    outside: float, left: float | None
) -> None:
    starved = found("DataStarved", 12.0, details={"cause": "heavy transform"})
    nodes = {"a": {"triggered": 2, "lost_outside_fetches_seconds": outside}, "b": {"triggered": 0}}
    neighbours = found("NoisyNeighbour", 20.0, details={"nodes": nodes})
    seconds = {each.rule.rule: each.seconds_lost for each in problems([starved, neighbours])}
    assert seconds == {"DataStarved": 12.0, **({} if left is None else {"NoisyNeighbour": left})}
    again = problems(in_order([starved, neighbours]))
    assert {each.rule.rule: each.seconds_lost for each in again} == seconds
    alone = replace(starved, details={"cause": "neighbours"})
    assert [each.seconds_lost for each in problems([alone, neighbours])] == [20.0]


def slow_rank(component: str, *ranks: int) -> RuleResult:
    rows = [{"node": "a", "rank": rank, "triggered": int(rank in ranks)} for rank in range(4)]
    return found("Straggler", 10, details={"rank": ranks[0], "component": component, "ranks": rows})


@pytest.mark.parametrize(
    ("component", "name", "rows"), [("data_wait", "DataStarved", "ranks"), ("gc", "HostBound", "devices")]
)
@pytest.mark.parametrize(("waiting", "once"), [((3,), True), ((2, 3), False)])
def test_what_only_the_slow_rank_waits_for_is_no_second_finding(
    component: str, name: str, rows: str, waiting: tuple[int, ...], once: bool
) -> None:
    waits = [{"node": "a", "rank": rank, "triggered": int(rank in waiting)} for rank in range(4)]
    waiting_ranks = found(name, 11, details={"component": component, rows: waits})
    assert order(slow_rank(component, 3), waiting_ranks) == (["Straggler"] if once else [name, "Straggler"])
    assert len(order(slow_rank("compute", 3), waiting_ranks)) == 2


@pytest.mark.parametrize(("seconds", "left"), [(19.9, []), (20, [10.0])])
def test_gpus_whose_load_differs_because_of_a_slow_rank_are_no_second_finding(
    seconds: float, left: list[float]
) -> None:
    found_problems = problems([slow_rank("data_wait", 3), found("LoadBalancing", seconds)])
    assert [(each.rule.rule, each.seconds_lost) for each in found_problems] == [
        ("Straggler", 10.0),
        *(("LoadBalancing", each) for each in left),
    ]


def test_what_every_rank_does_is_not_the_problem_of_a_slow_one() -> None:
    own_code = found("Account", 400, details={"part": "train", "component": "host"})
    assert order(slow_rank("host", 3), own_code) == ["Account", "Straggler"]
    assert order(slow_rank("host", 3), replace(own_code, seconds_lost=9)) == ["Straggler"]


def long_steps(component: str | None, *seconds: float, lost: float = 60) -> RuleResult:
    longest = [{"number": 25 * place, "seconds": each} for place, each in enumerate(seconds)]
    series = {"rank": 0, "triggered": 1, "component": component, "longest": longest}
    known = {} if component is None else {"component": component}
    return found("StepOutlier", lost, details={"step_details": {"a, rank 0, train": series}, **known})


@pytest.mark.parametrize(("lost", "left"), [(100, []), (130, []), (250, [130.0])])
def test_long_steps_of_the_own_code_are_no_second_finding(lost: float, left: list[float]) -> None:
    own_code = found("Account", 120.0, details={"part": "train", "component": "host"})
    long = long_steps(None, 60, lost=lost)
    assert len(order(own_code, long)) == 2, "it is not known what made them long"
    of_host = replace(long, details={**long.details, "explains": "host"})
    assert sorted(each.seconds_lost for each in problems([own_code, of_host])) == [120.0, *left]


def test_long_steps_of_several_components_count_no_second_that_another_finding_explains() -> None:
    long = long_steps(None, 60, lost=60)
    long = replace(long, details={**long.details, "excess_by_component": {"gc": 30.0, "communication": 25.0}})
    garbage = found("HostBound", 40, details={"component": "gc"})
    by_turns = found("Account", 20, details={"part": "train", "component": "communication"})
    first, second, third = problems([long, garbage, by_turns])
    assert [first.rule.rule, second.rule.rule, third.rule.rule] == ["HostBound", "Account", "StepOutlier"]
    assert third.seconds_lost == 60 - 30 - 20
    assert third.finding.endswith("Other findings explain 50.0 s of that.")
    assert [each.seconds_lost for each in problems(in_order([long, garbage, by_turns]))] == [40, 20, 10]
    assert [problem.seconds_lost for problem in problems([long])] == [60]


def test_long_steps_of_an_evaluation_explain_nothing_of_training() -> None:
    long = long_steps("data_wait", 60, lost=30)
    evaluates = replace(long, details={**long.details, "part": "eval"})
    own_code = found("Account", 40, details={"part": "train", "component": "data_wait"})
    assert len(order(own_code, long)) == 1
    assert len(order(own_code, evaluates)) == 2


@pytest.mark.parametrize(("in_training", "left"), [(60.0, [60.0, 20.0]), (20.0, [60.0])])
def test_late_data_of_an_evaluation_is_a_part_of_what_it_costs(in_training: float, left: list[float]) -> None:
    waits = {"train": in_training, "eval": 60 - in_training}
    spent = {"train": 40.0, "eval": 20.0}
    leaves = [Leaf(Key(phase, "data_wait"), lost / 160, {0: lost}) for phase, lost in waits.items()]
    leaves += [Leaf(Key(phase, "forward"), lost / 160, {0: lost}) for phase, lost in spent.items()]
    starved = found("DataStarved", 60.0, details={"component": "data_wait"})
    evaluation = found("Account", 20.0, details={"part": "eval", "component": ""})
    every = problems([starved, evaluation], Account(160.0, 1, tuple(leaves)))
    assert [each.seconds_lost for each in every] == pytest.approx(left)


def stalled(*seconds: float, rank: int = 0, lasts: bool = False) -> RuleResult:
    stalls = [{"rank": rank, "seconds": each, "end": None if lasts else 1.0} for each in seconds]
    return found("TrainingStalled", 100, details={"stalls": stalls})


@pytest.mark.parametrize(
    ("component", "lost", "names"),
    [
        ("communication", 60, ["StepOutlier"]),
        ("communication", 50, ["StepOutlier", "CommunicationBound"]),  # half of it is in the other steps
        ("checkpoint", 60, ["CommunicationBound", "StepOutlier"]),
        (None, 60, ["CommunicationBound", "StepOutlier"]),
    ],
)
def test_communication_of_a_few_long_steps_is_no_finding_besides_these(
    component: str | None, lost: float, names: list[str]
) -> None:
    rows = [{"node": "a", "rank": 0, "triggered": 1}]
    communicated = found("CommunicationBound", 100, details={"ranks": rows})
    assert order(communicated, long_steps(component, 60, lost=lost)) == names


@pytest.mark.parametrize(("seconds", "names"), [(49, ["Account"]), (51, ["CommunicationBound", "Account"])])
def test_a_known_cause_of_communication_leads_what_only_says_that_there_is_much(
    seconds: float, names: list[str]
) -> None:
    rows = [{"node": "a", "rank": 0, "triggered": 1}]
    exchanged = LargePart(Key("train", "communication"), 0.5, "Use no_sync.", "8 exchanges per step")
    communicated = found("CommunicationBound", seconds, details={"ranks": rows})
    assert order(communicated, of_part(exchanged, 50.0)) == names


def test_long_steps_that_wait_for_data_are_no_finding_besides_that_wait() -> None:
    rows = [{"node": "a", "rank": 0, "triggered": 1}]
    waited = found("DataStarved", 50, details={"ranks": rows})
    assert order(waited, long_steps("data_wait", 60, lost=60)) == ["DataStarved"]
    late_because_of_it = found("CPUThrottled", 70)
    assert order(waited, late_because_of_it, long_steps("data_wait", 60, lost=60)) == ["CPUThrottled"]


@pytest.mark.parametrize(
    ("one", "other", "are_two"),
    [
        (Key("before_first_step"), Key("after_last_step"), True),
        (Key("eval", "host"), Key("train", "host"), True),  # rollouts
        (Key("eval"), Key("eval", "host"), False),
    ],
)
def test_findings_about_two_parts_of_the_run_are_two_problems(one: Key, other: Key, are_two: bool) -> None:
    parts = [
        of_part(LargePart(key, share, "Do it less.", "", title), 100.0)
        for key, share, title in ((one, 0.4, "One"), (other, 0.3, "Other"))
    ]
    assert [problem.title for problem in problems(parts)] == (["One", "Other"] if are_two else ["One"])


@pytest.mark.parametrize(
    ("component", "stalls", "once"),
    [
        ("checkpoint", stalled(70, 65), True),
        (None, stalled(70, 65), False),  # nobody knows what the steps do longer
        ("checkpoint", stalled(70, 65, 62), False),  # one is no long step
        ("checkpoint", stalled(131), False),  # the step is less than half of it
        ("checkpoint", stalled(70, rank=1), False),
        ("checkpoint", stalled(70, lasts=True), False),
    ],
)
def test_stalls_that_are_long_steps_of_known_work_are_no_finding_besides_these(
    component: str | None, stalls: RuleResult, once: bool
) -> None:
    names = order(stalls, long_steps(component, 65, 60))
    assert names == (["StepOutlier"] if once else ["TrainingStalled", "StepOutlier"])


def test_findings_come_first_in_the_order_of_their_problems_then_the_other_rules_by_state() -> None:
    results = [
        rule("LoadBalancing", Status.NOT_ENOUGH_DATA),
        rule("StepOutlier"),
        found("LowGPUUtilization"),
        found("Dataloader"),
        found("DataStarved", 9),
    ]
    assert [one.rule for one in in_order(results)] == [
        "DataStarved",
        "Dataloader",
        "LowGPUUtilization",
        "StepOutlier",
        "LoadBalancing",
    ]


def test_a_problem_names_the_lines_of_its_part_and_of_its_rank_if_it_names_one() -> None:
    def line(place: str, seconds: float) -> LineTime:
        return LineTime("train", "data_wait", place, "load", "", "", "", {"running": seconds})

    threads = [
        ThreadTime("n1", rank, "training", 1, 10.0, 10.0, 0.0, 0.0, (line(f"data.py:{rank}", 9.0 + rank),))
        for rank in (1, 2)
    ]
    account = Account(20.0, 2, ())
    starved, slow = found("DataStarved", 500.0), found("Straggler", 500.0)
    slow = replace(slow, details={"component": "data_wait", "rank": 1})
    run = replace(nothing_found(), account=account, threads=threads)
    (every,) = problems_of(replace(run, rules=[starved]))
    (one,) = problems_of(replace(run, rules=[slow]))
    assert every.lines == "52 % in load, data.py:2 and 48 % in load, data.py:1"
    assert one.lines == "100 % in load, data.py:1"
    (neighbour,) = problems_of(replace(run, rules=[starved, found("NoisyNeighbour", 501.0)]))
    assert (neighbour.rule.rule, neighbour.lines) == ("NoisyNeighbour", "")
    # JAX and TensorFlow say only afterwards that a call compiled.
    calls = replace(line("train.py:5", 9.0), component="forward")
    compiles = replace(found("HostBound", 500.0), details={"component": "compile"})
    called = replace(run, rules=[compiles], threads=[replace(threads[0], lines=(calls,))])
    assert [problem.lines for problem in problems_of(called)] == ["100 % in load, train.py:5"]


@pytest.mark.parametrize(
    ("library", "costs"),
    [
        ("zipfile.__init__", "This line opens"),
        ("h5py._hl.files.__init__", "This line opens"),
        ("gzip.open", "This line opens"),
        ("h5py._hl.dataset.__getitem__", "This line may unpack whole chunks"),
        ("zarr.core.array.__getitem__", "This line may unpack whole chunks"),
        ("zipfile.read", ""),
        ("PIL.Image.open", ""),  # each image is a file
    ],
)
def test_a_line_that_opens_an_archive_or_unpacks_a_chunk_for_each_item_is_told_so(
    library: str, costs: str
) -> None:
    line = LineTime("train", "data_wait", "data.py:1", "load", library, "", "", {"running": 9.0})
    thread = ThreadTime("n1", 0, "loader worker", 1, 10.0, 10.0, 0.0, 0.0, (line,))
    starved = found("DataStarved", 500.0)
    run = replace(nothing_found(), account=Account(20.0, 1, ()), threads=[thread], rules=[starved])
    (problem,) = problems_of(run)
    assert problem.rule.recommendation.startswith(costs or starved.recommendation)
    assert problem.rule.recommendation.endswith(starved.recommendation)


def test_a_line_that_opens_is_named_if_another_takes_longer() -> None:
    calls = {"h5py._hl.dataset.__getitem__": 5.0, "h5py._hl.files.__init__": 4.0}
    lines = tuple(
        LineTime("train", "data_wait", f"data.py:{number}", "load", library, "", "", {"running": seconds})
        for number, (library, seconds) in enumerate(calls.items(), 1)
    )
    thread = ThreadTime("n1", 0, "loader worker", 1, 10.0, 10.0, 0.0, 0.0, lines)
    run = replace(nothing_found(), account=Account(20.0, 1, ()), threads=[thread])
    (problem,) = problems_of(replace(run, rules=[found("DataStarved", 500.0)]))
    assert problem.rule.recommendation.startswith("load, data.py:2 (h5py._hl.files.__init__) opens a file")


@pytest.mark.parametrize(
    ("waits", "core_wait", "fetch_cpu", "rule_name", "is_problem"),
    [
        (0.02, 0.5, 90, "Dataloader", False),  # there are cores for all
        (0.11, 0.5, 90, "Dataloader", True),
        (0.02, 2.0, 90, "Dataloader", True),  # they compete for the cores
        (0.02, 2.0, 40, "Dataloader", False),  # many workers that sleep
        (0.11, 2.0, 40, "Dataloader", True),
        (0.02, 0.5, 90, "LoadBalancing", True),
    ],
)
def test_workers_that_make_nothing_late_and_take_no_core_are_no_problem(
    waits: float, core_wait: float, fetch_cpu: float, rule_name: str, is_problem: bool
) -> None:
    leaves = (
        Leaf(Key("train", "forward"), 1 - waits, {0: 60 * (1 - waits)}),
        Leaf(Key("train", "data_wait"), waits, {0: 60 * waits}),
    )
    thread = ThreadTime("a", 0, "training", 1, 60, 55, core_wait, 0, ())
    run = replace(nothing_found(), account=Account(60.0, 1, leaves), rules=[found(rule_name)])
    run = replace(run, loaders=[{**loader(), "fetch_seconds": 100.0, "fetch_cpu_seconds": fetch_cpu}])
    assert bool(problems_of(replace(run, threads=[thread]))) is is_problem
    assert problems_of(run), "without samples of the main thread, nobody knows whether it waited for a core"


def test_long_steps_have_the_lines_that_ran_in_them() -> None:
    def line(place: str, seconds: float, step: str = "") -> LineTime:
        return LineTime("train", "host", place, "work", "", "", "", {"running": seconds}, step)

    lines = (line("train.py:8", 50), line("train.py:5", 6, "long"), line("train.py:8", 1, "long"))
    threads = [
        ThreadTime("a", rank, "training", 1, 60, 60, 0, 0, lines[:each]) for rank, each in ((0, 3), (1, 1))
    ]
    run = replace(nothing_found(), account=Account(120.0, 2, ()), threads=threads)
    for component in (None, "host"):
        (problem,) = problems_of(replace(run, rules=[long_steps(component, 2.0, lost=500)]))
        assert problem.lines == "86 % in work, train.py:5 and 14 % in work, train.py:8"
    stalled = replace(found("TrainingStalled", 500), details={"waited_for": 0, "stalls": []})
    hangs = replace(found("CollectiveHang", 500), details={"rank": 0, "component": "host"})
    for result in (stalled, hangs):  # of the rank that does not come
        (problem,) = problems_of(replace(run, rules=[result]))
        assert problem.lines == "86 % in work, train.py:5 and 14 % in work, train.py:8"
    stalled.details["waited_for"] = 1  # its long step was not sampled
    (problem,) = problems_of(replace(run, rules=[stalled]))
    assert problem.lines == ""
