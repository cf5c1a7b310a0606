"""Figures side by side: what they are, and what is known of them."""

from dataclasses import replace

import numpy as np
import pytest
from stepscope.compare.compared_run import ComparedRun
from stepscope.compare.comparison import compare
from stepscope.compare.figures import KINDS, USAGE_KINDS, Figure
from stepscope.compare.figures import figures as all_figures
from stepscope.compare.gate import parse
from stepscope.compare.sentences import verdict
from stepscope.compare.work import items_per_step, work_of
from stepscope.measurements.counted import Counted
from stepscope.runs.gauge_history import GaugeHistory

from tests.support.compared import idle_run, run_of


def figures(a: ComparedRun, b: ComparedRun, phase: str | None) -> dict[str, Figure]:
    return all_figures(a, b, phase, work_of(a, b, phase))


def test_the_published_case_costs_what_was_published() -> None:
    before, after = idle_run(503, nodes=3, price=14.688), idle_run(502, nodes=2, price=3.825)
    found = figures(before, after, None)
    assert (found["duration"].a, found["duration"].b) == (503, 502)
    assert (found["cost"].a, found["cost"].b) == pytest.approx((6.15672, 1.06675))


def test_step_times_throughput_and_waiting() -> None:
    a = run_of([0.5] * 100, data_wait=0.25, loader={"batch_size": 32}, ranks=4)
    b = run_of([0.25] * 200, data_wait=0.01, loader={"batch_size": 32}, ranks=4)
    found = figures(a, b, "train")
    assert (found["steps"].a, found["steps"].b) == (100, 200)
    assert (found["step_mean"].a, found["step_p50"].b) == (0.5, 0.25)
    assert found["steps_per_second"].change == pytest.approx(1.0)
    assert found["items_per_second"].a == pytest.approx(2 * 32 * 4)
    assert found["item_mean"].a == pytest.approx(0.5 / 128)
    assert (found["data_wait"].a, found["data_wait"].b) == pytest.approx((50, 4))
    assert found["time_to_first_step"].a == pytest.approx(5.0)


def test_tokens_per_second_and_mfu_of_runs_that_count_them() -> None:
    a, b = run_of([0.5] * 100), run_of([0.25] * 100)
    counts = [Counted("tokens", 5e5, 1e4), Counted("flops", 1e18, 2e16), Counted("steps", 1.0, 1.0)]
    a = replace(a, analysis=replace(a.analysis, counted=counts, flops_utilisation=0.25))
    assert "tokens_per_second" not in figures(b, b, "train")
    found = figures(a, b, "train")
    assert (found["tokens_per_second"].a, found["tokens_per_second"].b) == (1e4, None)
    assert (found["mfu"].a, found["mfu"].b) == (25, None)
    assert found["steps_per_second"].a == pytest.approx(2)  # a count of another name changes no figure


def with_loss(values: list[float]) -> ComparedRun:
    run, known = run_of([0.5] * 100), np.array(values)
    history = GaugeHistory("node-a", 0, 1, 0.0, "loss", np.arange(float(len(known))), known)
    return replace(run, analysis=replace(run.analysis, gauge_histories=[history]))


def noisy(level: float) -> list[float]:
    return [9.0] * 900 + [level + 0.1 * (number % 11 - 5) / 5 for number in range(100)]


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (noisy(0.364), noisy(0.371), "Loss at the end: 0.364 in A, 0.371 in B: as good."),
        (noisy(0.364), noisy(0.45), "Loss at the end: 0.364 in A, 0.45 in B: higher."),
        (noisy(0.364), noisy(0.2), "Loss at the end: 0.364 in A, 0.2 in B: lower."),
        ([0.5], [0.4], "Loss at the end: 0.5 in A, 0.4 in B."),  # nobody knows how it varies
    ],
)
def test_the_loss_at_the_end_is_compared_by_its_own_noise(a: list[float], b: list[float], said: str) -> None:
    comparison = compare(with_loss(a), with_loss(b))
    assert comparison.figures["loss"].less_is_better
    assert said in verdict(comparison)


def test_a_loss_that_is_not_finite_has_no_figure() -> None:
    comparison = compare(with_loss(noisy(0.3)), with_loss([*noisy(0.3), np.nan]))
    assert comparison.figures["loss"].b is None
    assert not any(sentence.startswith("Loss") for sentence in verdict(comparison))


def test_costs_of_runs_of_different_lengths_compare_by_1000_steps() -> None:
    found = figures(run_of([0.5] * 1000, price=36.0), run_of([0.5] * 500, price=36.0), "train")
    assert (found["cost"].a, found["cost"].b) == pytest.approx((5.06, 2.56))
    assert (found["cost_per_1000_steps"].a, found["cost_per_1000_steps"].b) == pytest.approx((5.06, 5.12))


def test_an_item_takes_as_long_though_its_batch_is_twice_as_large() -> None:
    random = np.random.default_rng(1)
    small = run_of(0.1 + 0.001 * random.normal(size=100), loader={"batch_size": 16})
    large = run_of(0.2 + 0.002 * random.normal(size=100), loader={"batch_size": 32})
    found = figures(small, large, "train")
    assert found["step_mean"].change == pytest.approx(1.0, abs=0.01)
    assert found["item_mean"].change == pytest.approx(0.0, abs=0.01)
    interval = found["item_mean"].interval
    assert interval is not None
    assert not interval.seen


def test_a_batch_size_that_ranks_do_not_share_or_that_is_not_known_gives_no_items() -> None:
    assert items_per_step(run_of([0.1] * 3, loader={}), "train") is None
    assert items_per_step(run_of([0.1] * 3), "train") is None
    assert "items_per_second" not in figures(run_of([0.1] * 3, loader={}), run_of([0.1] * 3), "train")


def test_utilisation_is_over_the_snapshots_of_all_nodes() -> None:
    a = run_of([0.5] * 100, gpu=0.4, nodes=("n1", "n2"))
    found = figures(a, run_of([0.5] * 100, gpu=0.8), "train")
    assert (found["gpu_p95"].a, found["gpu_p95"].b) == pytest.approx((40, 80), abs=0.1)
    assert "gpu_p95" not in figures(run_of([0.5]), run_of([0.5]), "train")


def test_a_noisy_change_counts_as_none_where_no_difference_is_seen() -> None:
    random = np.random.default_rng(3)
    a, b = (run_of(0.1 * np.exp(0.5 * random.normal(size=60))) for _ in range(2))
    step = figures(a, b, "train")["step_p50"]
    assert step.change is not None
    assert step.change != 0
    assert step.seen_change == 0


@pytest.mark.parametrize(
    ("a", "b", "change"),
    [
        (2.0, 3.0, 0.5),
        (-2.0, -1.0, 0.5),
        (0.0, 0.0, 0.0),
        (0.0, 1.0, None),
        (None, 1.0, None),
        (1.0, None, None),
    ],
)
def test_a_change_from_nothing_cannot_be_said_in_percent(
    a: float | None, b: float | None, change: float | None
) -> None:
    assert Figure("cost", "Cost", "$", True, a, b).change == change


def test_a_loss_below_zero_that_rises_does_not_pass_for_one_that_falls() -> None:
    (rises,) = compare(with_loss([-2.0]), with_loss([-1.0]), [parse("loss>+3%")]).outcomes
    (falls,) = compare(with_loss([-2.0]), with_loss([-3.0]), [parse("loss>+3%")]).outcomes
    assert (rises.state, falls.state) == ("failed", "passed")
    assert rises.reason == "+50.0 %, above +3.0 %"


def test_a_share_changes_by_points() -> None:
    assert Figure("data_wait", "Waiting", "%", True, 46.8, 0.5).change == pytest.approx(-46.3)
    assert Figure("gpu_p50", "GPU, p50", "%", None, 0.0, 5.0).change == pytest.approx(5.0)


def test_a_run_of_which_only_one_side_has_steps_compares_what_both_have() -> None:
    comparison = compare(idle_run(100, 1), run_of([0.1] * 30))
    assert comparison.phase is None
    assert comparison.step is None
    assert comparison.figures["duration"].a == 100
    assert "step_mean" not in comparison.figures


def test_every_figure_that_can_be_named_is_documented_by_its_kind() -> None:
    assert not KINDS.keys() & USAGE_KINDS.keys()
    assert all(
        name and unit in ("s", "$", "J", "%", "B/s", "steps/s", "items/s", "tokens/s", "samples/s", "")
        for name, unit, _ in (KINDS | USAGE_KINDS).values()
    )
