"""Settings of PyTorch that cost time: found if hooks have seen them, and they matter."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from stepscope.common.words import share
from stepscope.evaluation.account import Account, Key, Leaf
from stepscope.evaluation.analysis import Analysis, GpuUse, RunCores, RunUse
from stepscope.evaluation.problems import problems, problems_of
from stepscope.evaluation.slow_settings import slow_settings
from stepscope.measurements.steps import StepDistribution
from stepscope.report.verdict import verdict
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.parts.topics import About
from stepscope.runs.model import LineTime, StackTime, ThreadTime

from tests.support.analysis import nothing_found
from tests.support.source import START

GPU = GpuUse("node-a", "GPU 0", 80.0, 80.0, 90.0, 99.0, 50.0, 60.0, 70.0, 8e9, by="process")


def run_with(gauges: dict[str, float], *, waited: float = 0.0, **shares: float) -> Analysis:
    """A run of 1,000 s on two cores with these shares of training; its main thread waited for a core."""
    leaves = tuple(Leaf(Key("train", name), part, {0: 1000 * part}) for name, part in shares.items())
    return replace(
        nothing_found(),
        rules=[],
        start=START,
        end=START + 1000,
        gpu_use=[],
        ranks=1,
        account=Account(1000.0, 1, leaves),
        gauges=gauges,
        loaders=[],
        run_cores=[RunCores("node-a", 2.0, 2.0, 0.0)],
        threads=[ThreadTime("node-a", 0, "training", 1, 1000.0, 500.0, waited, 0.0, ())],
    )


def found(run: Analysis) -> list[tuple[str, float]]:
    return [(each.about.subject, each.seconds_lost) for each in slow_settings(run)]


def models_in_numpy(run: Analysis) -> list[Analysis]:
    """Returns the run as those whose scripts mark their steps: with PyTorch's loader, and without PyTorch."""
    without = (replace(run, framework=name, gauges={}, steps=trained(15)) for name in ("", "numpy 2.2.0"))
    return [replace(run, gauges={}), *without]


def with_forward(run: Analysis, libraries: dict[str, float]) -> Analysis:
    """Returns the run with seconds of its forward passes by the function that their line calls."""
    lines = tuple(
        LineTime("train", "forward", "net.py:9", "forward", library, "", "", {"running": seconds})
        for library, seconds in libraries.items()
    )
    assert run.account is not None
    leaves = tuple(
        replace(leaf, lines=lines) if leaf.key.component == "forward" else leaf for leaf in run.account.leaves
    )
    return replace(run, account=replace(run.account, leaves=leaves))


def test_anomaly_detection_that_was_left_on_is_a_finding_without_an_estimate() -> None:
    run = run_with({"anomaly_detection": 1.0}, forward=0.5, backward=0.4)
    (found,) = problems_of(run)
    assert found.title == "Anomaly detection"
    assert found.seconds_lost == 0
    assert "took 90 % of the run" in found.rule.finding
    assert verdict(run).sentence == "Anomaly detection may slow your run down; how much is not known."


def test_anomaly_detection_costs_at_least_the_stack_traces_of_forward_passes() -> None:
    run = run_with({"anomaly_detection": 1.0}, forward=0.5, backward=0.4)
    traces, linear = "torch.fx.traceback.format_stack", "torch.nn.modules.linear.forward"
    assert found(with_forward(run, {traces: 1.0, linear: 4.0})) == [("Anomaly detection", 100.0)]
    assert found(with_forward(run, {traces: 1.0, linear: 4.1})) == [("Anomaly detection", 0.0)], "too little"


@pytest.mark.parametrize(("ratio", "steps", "titles"), [(0.75, 80, 1), (0.74, 80, 0), (1.0, 79, 0)])
def test_a_profiler_that_runs_at_most_looks_was_left_on(ratio: float, steps: int, titles: int) -> None:
    run = replace(run_with({"profiler_ratio": ratio}, forward=0.9), steps=trained(steps))
    assert found(run) == [("A profiler that is left on", 0.0)] * titles


def test_many_tensors_that_are_updated_one_by_one_are_a_finding_if_the_optimizer_takes_long() -> None:
    slow = {"optimizer_single_tensors": 100.0}
    assert found(run_with(slow, optimizer=0.2)) == [("Optimizer", 200.0)]
    assert found(run_with(slow, optimizer=0.19)) == []
    assert found(run_with({"optimizer_single_tensors": 99.0}, optimizer=0.4)) == []


def test_a_part_that_takes_much_longer_than_what_it_belongs_to_is_a_finding() -> None:
    assert found(run_with({}, optimizer=0.76, forward=0.125, backward=0.125)) == [("Optimizer", 760.0)]
    assert found(run_with({}, optimizer=0.75, forward=0.125, backward=0.125)) == []


@pytest.mark.parametrize(("library", "expected"), [("sparse_adam", []), ("adam", [("Optimizer", 760.0)])])
def test_an_optimizer_of_sparse_gradients_is_not_told_to_use_one(
    library: str, expected: list[tuple[str, float]]
) -> None:
    run = run_with({}, optimizer=0.76, forward=0.125, backward=0.125)
    called = f"torch.optim.{library}.step"
    line = LineTime("train", "optimizer", "train.py:9", "main", called, "", "", {"running": 700.0})
    assert run.account is not None
    leaves = tuple(replace(leaf, lines=(line,)) for leaf in run.account.leaves)
    assert found(replace(run, account=replace(run.account, leaves=leaves))) == expected


@pytest.mark.parametrize(("part", "optimizer", "flushes"), [(0.1, 0.4, 1), (0.09, 0.4, 0), (0.9, 0.3, 0)])
def test_denormal_numbers_are_why_an_optimizer_takes_longer_than_both_passes(
    part: float, optimizer: float, flushes: int
) -> None:
    run = run_with({"denormal_ratio": part}, optimizer=optimizer, forward=0.15, backward=0.15)
    assert found(run) == [("Optimizer", 400.0)] * flushes
    assert found(run_with({"denormal_ratio": part}, optimizer=optimizer)) == [], "nobody timed the passes"
    assert all("set_flush_denormal" in each.recommendation for each in slow_settings(run))


@pytest.mark.parametrize(
    ("forward", "backward", "library", "seconds"),
    [
        (0.376, 0.125, "", [251]),
        (0.375, 0.125, "", []),
        (0.1, 0.03, "", [70]),
        (0.099, 0.03, "", []),
        (0.9, 0.0, "", []),  # backward passes are not known
        (0.6, 0.1, "torch.nn.modules.conv.forward", []),  # of a module that is frozen, or a teacher
    ],
)
def test_own_code_in_forward_passes_is_a_finding_if_these_take_much_longer_than_backward_passes(
    forward: float, backward: float, library: str, seconds: list[int]
) -> None:
    run = run_with({"graph_operators": 20.0}, forward=forward, backward=backward)
    run = with_forward(run, {library: 1000 * forward})
    assert [round(lost) for _, lost in found(run)] == seconds
    assert [round(lost) for run in models_in_numpy(run) for _, lost in found(run)] == []


def test_keras_that_runs_each_operation_by_itself_is_a_finding_if_the_run_computes() -> None:
    assert found(run_with({"keras_run_eagerly": 1.0}, forward=0.1)) == [("Eager execution", 0.0)]
    eager = {"keras_run_eagerly": 1.0}
    assert found(run_with(eager, forward=0.09)) == []
    assert found(run_with(eager, forward=0.1, optimizer=0.5)) == [("Eager execution", 0.0)]


@pytest.mark.parametrize(
    ("framework", "forward", "backward", "optimizer", "titles"),
    [
        ("tensorflow 2.21.0", 0.5, 0.0, 0.1, [("Eager execution", 0.0)]),
        ("tensorflow 2.21.0", 0.5, 0.0, 0.09, []),
        ("tensorflow 2.21.0", 0.1, 0.41, 0.0, [("Eager execution", 0.0)]),  # a tape asked for each variable
        ("tensorflow 2.21.0", 0.1, 0.39, 0.0, []),
        ("keras 3.15.1 on torch", 0.1, 0.5, 0.2, []),
    ],
)
def test_a_loop_of_tensorflow_whose_gradients_or_optimizer_need_a_graph_is_a_finding(
    framework: str, forward: float, backward: float, optimizer: float, titles: list[tuple[str, float]]
) -> None:
    run = run_with({}, forward=forward, backward=backward, optimizer=optimizer)
    assert found(replace(run, framework=framework)) == titles


@pytest.mark.parametrize(
    ("passes", "share", "lost"), [(8.0, 0.4, [350]), (2.0, 0.2, [100]), (2.0, 0.19, []), (1.0, 0.4, [])]
)
def test_gradients_that_are_exchanged_in_several_passes_of_a_step_are_a_finding(
    passes: float, share: float, lost: list[float]
) -> None:
    run = run_with({"synchronised_backward_passes": passes}, communication=share, forward=0.5)
    assert [seconds for _, seconds in found(run)] == pytest.approx(lost)


@pytest.mark.parametrize(
    ("gauge", "remedy"),
    [
        ("tensorflow_python_seconds", "TensorFlow, which a graph"),
        ("jax_python_seconds", "JAX, which a compiled"),
    ],
)
def test_graphs_that_call_python_are_a_finding_if_that_takes_long(gauge: str, remedy: str) -> None:
    (result,) = slow_settings(run_with({gauge: 100.0}, forward=0.5))
    assert (result.about.subject, result.seconds_lost) == ("Forward pass", 100.0)
    assert remedy in result.recommendation
    assert found(run_with({gauge: 99.0}, forward=0.5)) == []
    ((_, several_at_once),) = found(run_with({gauge: 4000.0}, forward=0.5, host=0.1))
    assert several_at_once == pytest.approx(600.0)


def test_computing_may_gain_more_than_was_waited_for_if_its_own_threads_take_turns() -> None:
    run = run_with({"torch_threads": 32.0}, waited=300.0, forward=0.8)
    (problem,) = problems_of(run)
    assert problem.seconds_lost == 300
    assert problem.shared_seconds == pytest.approx(800 * 30 / 32 - 300)


def test_processes_of_one_rank_that_wait_at_the_same_time_wait_no_longer_than_the_run() -> None:
    run = run_with({"torch_threads": 8.0}, forward=0.8)
    threads = [ThreadTime("node-a", 0, "training", 6, 4000.0, 500.0, 2000.0, 0.0, ())]
    assert found(replace(run, threads=threads)) == [("Too many threads", 500)]


@pytest.mark.parametrize(
    ("gauge", "value", "title"),
    [
        ("optimizer_double_tensors", 6.0, "Double precision"),
        ("optimizer_slow_half_tensors", 6.0, "Half precision on a CPU"),
    ],
)
def test_numbers_that_are_computed_slowly_are_a_finding_if_steps_mostly_compute(
    gauge: str, value: float, title: str
) -> None:
    assert found(run_with({gauge: value}, forward=0.2, host=0.1)) == [(title, 0.0)]
    assert found(run_with({gauge: value}, forward=0.4, host=0.6)) == []
    assert found(run_with({gauge: value}, forward=0.09)) == []
    assert found(run_with({gauge: value / 7}, forward=0.6)) == []


@pytest.mark.parametrize(
    ("part", "backward", "ranks", "lost"),
    [
        (0.9, 0.5, 1, [225]),
        (0.9, 0.22, 1, []),
        (0.39, 0.5, 1, []),
        (0.0, 0.9, 1, []),
        (0.9, 0.5, 2, [100]),
        (0.5, 0.9, 2, []),  # the other rank's optimizer has the other half of the parameters
    ],
)
def test_gradients_that_no_optimizer_uses_cost_half_of_their_backward_passes_and_maybe_the_other_half(
    part: float, backward: float, ranks: int, lost: list[float]
) -> None:
    run = replace(run_with({"untrained_gradient_ratio": part}, backward=backward), ranks=ranks)
    assert [seconds for _, seconds in found(run)] == pytest.approx(lost)
    assert [problem.shared_seconds for problem in problems_of(run)] == pytest.approx(lost)


@pytest.mark.parametrize(
    ("backward", "memory", "lost"),
    [(0.4, 49.0, [300]), (0.4, 50.0, []), (0.13, 1.0, []), (0.4, math.nan, [])],
)
def test_forward_passes_that_are_computed_again_are_a_finding_if_much_memory_is_free(
    backward: float, memory: float, lost: list[float]
) -> None:
    again = ("main, train.py:9", "torch.autograd.backward", "torch.utils.checkpoint.backward")
    stacks = (
        StackTime("train", "backward", again, 3.0),
        StackTime("train", "backward", (*again, "torch.autograd.backward"), 1.0),
        StackTime("train", "forward", again, 9.0),
    )
    run = run_with({}, forward=0.4, backward=backward)
    (thread,) = run.threads
    use = RunUse("node-a", 1.0, 2.0, 0.0, 0.0, 0.0, memory, 100.0)
    run = replace(run, threads=[replace(thread, stacks=stacks)], run_use=[use])
    assert [seconds for _, seconds in found(run)] == pytest.approx(lost)
    assert found(replace(run, gpu_use=[replace(GPU, memory_max=50.0)])) == []


@pytest.mark.parametrize(("part", "lost"), [(0.5, [300]), (0.16, []), (0.0, [])])
def test_padding_that_no_sample_of_a_batch_needs_costs_its_share_of_both_passes(
    part: float, lost: list[float]
) -> None:
    run = run_with({"padding_ratio": part}, forward=0.2, backward=0.4, optimizer=0.3)
    assert [seconds for _, seconds in found(run)] == pytest.approx(lost)


@pytest.mark.parametrize(
    ("library", "seconds"),
    [
        ("numpy.lib._histograms_impl.histogram", [200]),
        ("json.encoder.encode", [200]),
        ("torch.nn.modules.conv.forward", []),
        ("transformers.models.bert.modeling_bert.forward", []),  # calls operators itself
        ("", []),  # an operator, or Python
    ],
)
def test_functions_without_tensors_in_forward_passes_are_a_finding(library: str, seconds: list[int]) -> None:
    libraries = {library: 200.0, "torch.nn.modules.linear.forward": 100.0}
    run = with_forward(run_with({"graph_operators": 20.0}, forward=0.3, backward=0.4), libraries)
    assert [round(lost) for _, lost in found(run)] == seconds
    assert found(replace(run, gpu_use=[GPU])) == []
    assert [found(run) for run in models_in_numpy(run)] == [[], [], []]


def trained(steps: int) -> list[StepDistribution]:
    return [StepDistribution(0, "train", steps, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, [], [])]


@pytest.mark.parametrize(
    ("text", "forward", "lost"),
    [
        ("loss.backward(retain_graph=True)", 0.1, [700.0]),
        ("loss.backward(retain_graph = True)", 0.16, []),  # one pass may take as long
        ("loss.backward(retain_graph=False)", 0.1, []),
        ("", 0.1, []),
    ],
)
def test_several_backward_passes_through_one_graph_cost_what_one_of_them_does_not(
    text: str, forward: float, lost: list[float]
) -> None:
    run = run_with({"graph_operators": 40.0}, forward=forward, backward=0.9)
    back = LineTime("train", "backward", "net.py:9", "", "torch._tensor.backward", "", "", {"running": 1.0})
    assert run.account is not None
    leaves = tuple(replace(leaf, lines=(replace(back, text=text),)) for leaf in run.account.leaves)
    run = replace(run, account=replace(run.account, leaves=leaves), steps=trained(100))
    assert [round(seconds, 6) for _, seconds in found(run)] == lost
    assert all("Add up the losses" in each.recommendation for each in slow_settings(run))


@pytest.mark.parametrize(
    ("first", "now", "steps", "backward", "grows"),
    [
        (250, 1000, 80, 0.1, True),
        (251, 1000, 80, 0.5, False),
        (250, 1000, 80, 0.09, False),
        (0, 1000, 80, 0.5, False),
        (100, 750, 320, 0.5, False),  # lengths that differ: with all steps before, it had 16 times as many
        (100, 800, 639, 0.5, True),
        (100, 800, 640, 0.5, False),
        (600, 4800, 9999, 0.5, True),  # hooks count no more
        (601, 4800, 9999, 0.5, False),
    ],
)
def test_a_graph_that_grew_with_the_steps_costs_what_exceeds_the_first_one(
    first: float, now: float, steps: int, backward: float, grows: bool
) -> None:
    gauges = {"graph_operators_at_first": first, "graph_operators": now, "graph_leaves": 200.0}
    run = replace(run_with(gauges, backward=backward), steps=trained(steps))
    lost = [seconds for subject, seconds in found(run) if subject == "Backward pass"]
    assert lost == ([pytest.approx(1000 * backward * (now - first) / (now + first))] if grows else [])


def test_a_graph_that_grew_explains_its_many_small_operators() -> None:
    gauges = {"graph_operators_at_first": 100.0, "graph_operators": 4990.0, "graph_leaves": 10.0}
    run = replace(run_with(gauges, backward=0.5), steps=trained(100_000))
    assert [subject for subject, _ in found(run)] == ["Backward pass"]
    del gauges["graph_operators_at_first"]
    assert [subject for subject, _ in found(run)] == ["Forward pass"]


def loops(operators: float, leaves: float) -> tuple[dict[str, float], dict[str, float]]:
    return {"graph_operators": operators, "graph_leaves": leaves}, {"forward": 0.3, "backward": 0.5}


def test_gradients_for_nothing_of_many_small_operators_are_lost_once() -> None:
    gauges, shares = loops(5000, 100)
    gauges |= {"untrained_gradient_ratio": 0.9, "padding_ratio": 0.3}
    run = replace(run_with(gauges, **shares), steps=trained(5000))
    (problem,) = problems_of(run)
    assert (problem.title, problem.seconds_lost) == ("Forward pass", 800.0)
    assert {each.about.subject for each in problem.also} == {"Gradients for nothing", "Padding"}


def samples(alone: float, forward: float) -> tuple[dict[str, float], dict[str, float]]:
    return {"single_sample_passes": alone, "graph_operators": 20.0}, {"forward": forward}


@pytest.mark.parametrize(
    ("known", "steps", "busy", "results"),
    [
        (loops(5000, 100), 5000, 0.0, [("Forward pass", 800.0)]),
        (loops(1000, 100), 20_000, 0.0, [("Forward pass", 800.0)]),
        (loops(999, 10), 20_000, 0.0, []),  # few
        (loops(5000, 501), 5000, 0.0, []),  # a deep model: each parameter has its own
        (loops(5000, 100), 3000, 0.0, []),  # 53 us each: they compute
        (loops(5000, 100), 5000, 80.0, []),  # the GPU computes
        (samples(1.0, 0.3), 500_000, 0.0, [("Batches of one sample", 300.0)]),
        (samples(0.0, 0.3), 500_000, 0.0, []),
        (samples(1.0, 0.05), 500_000, 0.0, []),
        (samples(1.0, 0.3), 300_000, 0.0, []),  # 50 us for each of 20 operators: they compute
        (samples(1.0, 0.3), 500_000, 80.0, []),  # the GPU computes
    ],
)
def test_a_loop_over_many_small_operators_or_a_batch_of_one_sample_is_a_finding(
    known: tuple[dict[str, float], dict[str, float]],
    steps: int,
    busy: float,
    results: list[tuple[str, float]],
) -> None:
    gauges, shares = known
    run = replace(run_with(gauges, **shares), steps=trained(steps), gpu_use=[replace(GPU, mean=busy)])
    assert found(run) == results
    assert found(replace(run, steps=[])) == []


@pytest.mark.parametrize(("waited", "is_small"), [(150.0, False), (200.0, True)])
def test_operators_are_small_however_long_they_wait_for_a_core(waited: float, is_small: bool) -> None:
    """They take 50 us each of the 80 % of the run in steps, and 37.5 us without a quarter of that."""
    gauges = {"graph_operators": 5000.0, "graph_leaves": 100.0}
    loops = replace(run_with(gauges, forward=0.3, backward=0.5), steps=trained(3200))
    gauges = {"graph_operators": 20.0, "single_sample_passes": 1.0}
    samples = replace(run_with(gauges, forward=0.3, backward=0.5), steps=trained(800_000))
    for run in (loops, samples):
        threads = [replace(thread, train_core_wait_seconds=waited) for thread in run.threads]
        assert bool(found(replace(run, threads=threads))) == is_small


@pytest.mark.parametrize(
    ("forward", "own", "title", "lost"),
    [
        (0.039, 0.3, "Your own code", 739.0),  # 1.95 us for each operator: the pass calls few of them
        (0.039, 0.1, "Your own code", 539.0),
        (0.04, 0.3, "Forward pass", 440.0),
        (0.039, 0.09, "Forward pass", 439.0),  # nobody knows who calls them
    ],
)
def test_many_small_operators_are_called_by_own_code_if_the_forward_pass_is_too_short_for_them(
    forward: float, own: float, title: str, lost: float
) -> None:
    gauges = {"graph_operators": 5000.0, "graph_leaves": 10.0}
    run = replace(run_with(gauges, forward=forward, host=own, backward=0.4), steps=trained(4000))
    ((said, seconds),) = found(run)
    assert (said, round(seconds)) == (title, lost)


@pytest.mark.parametrize(("size", "titles"), [(0.0, ["A search for unused parameters"]), (8.0, [])])
def test_a_search_for_unused_parameters_is_a_finding_if_there_are_none(
    size: float, titles: list[str]
) -> None:
    assert [title for title, _ in found(run_with({"unused_parameter_bytes": size}, forward=1.0))] == titles


@pytest.mark.parametrize(
    ("threads", "ranks", "of_workers", "cores", "waited", "expected"),
    [
        (32.0, 1, 0, (2.0, 2.0, 0.0), 100.0, ("Too many threads", 100.0, 2, 368.75)),
        (32.0, 1, 0, (2.0, 2.0, 0.0), 600.0, ("Too many threads", 600.0, 2, 0.0)),
        (2.0, 5, 0, (2.0, 2.0, 0.0), 600.0, ("Too many threads", 600.0, 1, 0.0)),
        (2.0, 1, 16, (2.0, 2.0, 0.0), 600.0, ("Too many threads", 600.0, 0, None)),
        (4.0, 1, 16, (2.0, 2.0, 0.0), 600.0, ("Too many threads", 600.0, 2, None)),
        (2.0, 1, 2, (2.0, 2.0, 0.0), 600.0, None),
        (32.0, 1, 0, (2.0, 2.0, 0.0), 99.0, None),  # and it does not matter
        (
            32.0,
            1,
            0,
            (2.0, 1.5, 0.5),
            400.0,
            ("Too many threads", 300.0, 2, 168.75),
        ),  # a quarter is for others
        (32.0, 1, 0, (2.0, 1.0, 1.0), 400.0, None),
        (1.0, 1, 0, (9.0, 6.0, 0.0), 0.0, ("Few threads and idle cores", 0.0, 9, None)),
        (4.0, 1, 0, (8.0, 1.0, 0.0), 0.0, ("Few threads and idle cores", 0.0, 8, None)),
        (2.0, 2, 0, (8.0, 1.0, 0.0), 0.0, ("Few threads and idle cores", 0.0, 4, None)),
        (3.0, 2, 0, (8.0, 1.0, 0.0), 0.0, None),
        (1.0, 1, 0, (8.0, 1.0, 6.0), 0.0, None),  # others use them
        (5.0, 1, 0, (8.0, 5.0, 0.0), 0.0, None),
        (0.0, 1, 0, (8.0, 1.0, 0.0), 0.0, None),  # not known
        (32.0, 1, 0, (2.0, 0.0, 0.0), 600.0, None),
    ],
)
def test_threads_are_compared_with_the_cores_that_the_run_may_use(
    threads: float,
    ranks: int,
    of_workers: int,
    cores: tuple[float, float, float],
    waited: float,
    expected: tuple[str, float, int, float | None] | None,
) -> None:
    def of(forward: float, host: float) -> list[tuple[str, float, int, object]]:
        """Returns what is found: the number is that of threads per process in the advice, 0 for none."""
        run = run_with({"torch_threads": threads}, waited=waited, forward=forward, host=host)
        single = {"worker_threads": 16, "workers": 16}  # one thread each: no setting makes them fewer
        unknown = {"worker_threads": None, "workers": None}
        loaders: list[dict[str, Any]] = [{"worker_threads": of_workers, "workers": 2}, single, unknown]
        run = replace(run, ranks=ranks, loaders=loaders, run_cores=[RunCores("node-a", *cores)])
        return [
            (
                each.about.subject,
                each.seconds_lost,
                int(next(iter(re.findall(r"OMP_NUM_THREADS=(\d+)", each.recommendation)), 0)),
                each.details.get("shared_seconds"),
            )
            for each in slow_settings(run)
        ]

    assert of(0.5, 0.5) == [expected] * (expected is not None)
    for computing, rest in ((0.49, 0.51), (0.09, 0.0)):
        assert not any(title.startswith("Few") for title, *_ in of(computing, rest)), "it hardly computes"
    idle_cores = [each for each in [expected] if each and each[0].startswith("Few")]
    assert of(0.1, 0.1)[:1] == idle_cores or not idle_cores, "the start of a short run is not its loop"


@pytest.mark.parametrize(
    ("ranks", "cores", "waited", "child", "title"),
    [
        (1, (2.0, 1.0, 0.0), 100.0, 0.0, "Processes on too few cores"),  # others may be used, but are not
        (1, (3.0, 2.0, 0.0), 400.0, 0.0, "Processes on too few cores"),  # a third is idle
        (1, (2.0, 1.4, 0.0), 400.0, 0.0, ""),
        (1, (2.0, 1.2, 0.0), 400.0, 0.0, ""),  # more than one core
        (1, (4.0, 2.2, 0.5), 400.0, 0.0, ""),
        (1, (1.0, 1.0, 0.0), 400.0, 0.0, "Processes on too few cores"),  # of two
        (2, (2.0, 2.0, 0.0), 400.0, 0.0, ""),
        (1, (3.0, 1.0, 1.0), 400.0, 501.0, ""),
        (1, (2.0, 1.0, 0.0), 99.0, 0.0, ""),
        (1, (2.0, 2.0, 0.0), 400.0, 501.0, "The run’s own processes on its cores"),
        (1, (2.0, 2.0, 0.0), 400.0, 500.0, ""),  # the main thread itself ran as long
        (1, (2.0, 2.0, 0.0), 99.0, 501.0, ""),
    ],
)
def test_a_main_thread_that_waits_for_a_core_because_of_own_processes_is_a_finding(
    ranks: int, cores: tuple[float, float, float], waited: float, child: float, title: str
) -> None:
    run = run_with({"torch_threads": 2.0}, waited=waited, forward=0.4)
    line = LineTime("", "", "features.py:3", "features", "", "", "", {"running": child})
    threads = [*run.threads, ThreadTime("node-a", 0, "child", 1, 1000.0, child, 0.0, 0.0, (line,))]
    run_cores = [RunCores("node-a", *cores)]
    run = replace(run, ranks=ranks, cores={"node-a": 2}, run_cores=run_cores, threads=threads)
    assert found(run) == [(title, waited)] * bool(title)
    for result in slow_settings(run):
        assert result.details == {"shared_seconds": 0.0}
        waits = Account(1000.0, 1, (Leaf(Key("train", "data_wait"), 2.1 * waited / 1000, {0: 2.1 * waited}),))
        (alone,) = slow_settings(replace(run, account=waits))
        assert alone.about.topic != DataStarved.topic, "late data costs much more"
        about = About("Late data", topic=DataStarved.topic, distance=DataStarved.distance)
        (problem,) = problems([replace(result, about=about, seconds_lost=900.0), result])
        assert problem.title == title, "late data are its symptom"


@pytest.mark.parametrize(
    ("component", "function", "library", "seconds", "is_found"),
    [
        ("backward", "hook", "", 200, True),
        ("backward", "hook", "", 100, True),
        ("backward", "hook", "", 99, False),
        ("backward", "hook", "torch._tensor.tolist", 200, True),
        ("backward", "backward", "", 200, False),  # of an autograd function
        ("backward", "main", "accelerate.accelerator.backward", 200, False),
        ("backward", "main", "torch._tensor.backward", 200, False),
        ("backward", "main", "tensorflow.python.eager.backprop.gradient", 200, False),
        ("optimizer", "step", "", 200, True),
        ("optimizer", "main", "transformers.optimization.step", 200, False),
        ("optimizer", "main", "keras.src.optimizers.base_optimizer.apply_gradients", 200, False),
        ("optimizer", "main", "optax._src.update.apply_updates", 200, False),
    ],
)
def test_own_code_that_backward_passes_and_optimizers_call_is_a_finding_with_its_lines(
    component: str, function: str, library: str, seconds: int, is_found: bool
) -> None:
    def of_line(place: str, function: str, library: str, seconds: float) -> LineTime:
        return LineTime("train", component, place, function, library, "", "", {"running": seconds})

    run = run_with({"graph_operators": 20.0}, **{"forward": 0.2, component: 0.5})
    usual = "torch._tensor.backward" if component == "backward" else "torch.optim.sgd.step"
    lines = (of_line("t.py:9", "main", usual, 500.0 - seconds), of_line("t.py:3", function, library, seconds))
    thread = ThreadTime("node-a", 0, "training", 1, 1000.0, 500.0, 0.0, 0.0, lines)
    assert run.account is not None
    leaves = tuple(
        replace(leaf, lines=lines) if leaf.key.component == component else leaf for leaf in run.account.leaves
    )
    run = replace(run, account=replace(run.account, leaves=leaves), threads=[thread])
    assert [round(lost) for _, lost in found(run)] == [seconds] * is_found
    short = replace(run, gauges={}, steps=trained(15))  # before any look at operators
    assert [round(lost) for _, lost in found(short)] == [seconds] * is_found
    assert [found(run) for run in models_in_numpy(run)] == [[], [], []]
    assert [problem.lines for problem in problems_of(run)] == [
        f"{share(seconds, 500)} in {function}, t.py:3" + (f" ({library})" if library else "")
    ] * is_found
    recomputed = replace(lines[1], component="forward")
    again = tuple(
        replace(leaf, lines=(recomputed,)) if leaf.key.component == "forward" else leaf for leaf in leaves
    )
    assert found(replace(run, account=Account(1000.0, 1, again))) == [], "forward passes run it, too"


@pytest.mark.parametrize(
    ("function", "caller", "library", "backward", "is_found"),
    [
        ("backward", "main", "", 0.61, True),  # seven times as long as the forward pass and own code
        ("backward", "main", "", 0.6, False),
        ("backward", "main", "numpy._core.numeric.roll", 0.3, True),
        ("backward", "main", "torch.functional.einsum", 0.6, False),
        ("of_input", "backward", "", 0.61, True),
        ("of_input", "backward", "", 0.6, False),  # tensors may be why it takes long
        ("of_input", "main", "", 0.6, True),  # a hook
    ],
)
def test_the_gradient_of_an_own_function_is_a_finding_if_it_needs_no_tensors_or_takes_much_longer(
    function: str, caller: str, library: str, backward: float, is_found: bool
) -> None:
    seconds = {"running": 1000 * backward}
    line = LineTime("train", "backward", "t.py:3", function, library, "t.py:9", caller, seconds)
    run = run_with({"graph_operators": 20.0}, forward=0.08, host=0.02, backward=backward)
    assert run.account is not None
    leaves = tuple(
        replace(leaf, lines=(line,)) if leaf.key.component == "backward" else leaf
        for leaf in run.account.leaves
    )
    every = list(slow_settings(replace(run, account=replace(run.account, leaves=leaves))))
    assert [each.seconds_lost for each in every] == [pytest.approx(1000 * backward)] * is_found
    is_hook = "backward" not in (function, caller)
    assert all(("Hooks" in each.recommendation) is is_hook for each in every)
    assert all(("instead of Python and NumPy" in each.recommendation) is not is_hook for each in every)


def test_idle_cores_do_not_matter_if_a_gpu_computes() -> None:
    run = run_with({"torch_threads": 1.0}, forward=0.6)
    idle = replace(run, run_cores=[RunCores("node-a", 8.0, 1.0, 0.0)])
    assert found(idle)
    assert not found(replace(idle, gpu_use=[GPU]))


@pytest.mark.parametrize(
    ("used", "unused", "forward", "lost"),
    [
        (0.001, 0.004, 0.5, 400.0),  # four fifths of the forward time, as in each step
        (0.003, 0.012, 0.5, 200.0),  # the script evaluates in few steps, and the looks were at these
        (0.002, 0.002, 0.9, None),  # the lines of the forward pass are not those of what is unused
        (0.0, 0.004, 0.1, 100.0),
        (0.001, 0.004, 0.12, None),  # little
        (0.0, 0.0, 0.9, None),
    ],
)
def test_passes_that_no_backward_pass_goes_through_cost_what_others_do_not_take(
    used: float, unused: float, forward: float, lost: float | None
) -> None:
    gauges = {"forward_used_seconds": used, "forward_unused_seconds": unused}
    run = replace(run_with(gauges, forward=forward, backward=0.1), steps=trained(100_000))
    assert [title for title, _ in found(run)] == ["Forward passes without a backward pass"] * (
        lost is not None
    )
    assert [seconds for _, seconds in found(run)] == ([] if lost is None else [pytest.approx(lost)])
