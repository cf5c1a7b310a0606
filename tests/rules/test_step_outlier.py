"""StepOutlier: how many steps lie far above the mean, which, how regularly, and in what component."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trainwatch.evaluation.analysis import Analysis, RuleResult
from trainwatch.evaluation.engine import evaluate
from trainwatch.evaluation.settings import Settings
from trainwatch.runs.model import Steps

from tests.support.source import MemorySource, node_steps


def analysis(*steps: Steps, **parameters: Any) -> Analysis:
    settings = Settings.parse([f"StepOutlier.{name}={value}" for name, value in parameters.items()])
    return evaluate(MemorySource(*steps), settings)


def result(*steps: Steps, **parameters: Any) -> RuleResult:
    return next(found for found in analysis(*steps, **parameters).rules if found.rule == "StepOutlier")


def durations(count: int, outliers: int, long: float = 1.0) -> np.ndarray:
    """`count` steps of 0.1 s, of which the last are far longer."""
    values = np.full(count, 0.1)
    if outliers:
        values[-outliers:] = long
    return values


@pytest.mark.parametrize(("outliers", "status"), [(9, "healthy"), (10, "healthy"), (11, "found")])
def test_it_fires_on_more_than_10_outliers(outliers: int, status: str) -> None:
    found = result(node_steps(durations(400, outliers)))
    assert (found.status, found.violations, found.datapoints) == (status, outliers, 400)


@pytest.mark.parametrize(("count", "status"), [(99, "not enough data"), (100, "found"), (101, "found")])
def test_it_needs_100_steps(count: int, status: str) -> None:
    found = result(node_steps(durations(count, 1)), n_outliers=0)
    assert found.status == status
    if status == "not enough data":
        assert "99" in found.finding


def test_a_step_exactly_at_the_bound_is_no_outlier() -> None:
    """Half of the steps take 1 s, half 3 s: mean 2 s, deviation 1 s."""
    steps = node_steps(np.tile([1.0, 3.0], 100))
    assert result(steps, stddev=1, n_outliers=0).violations == 0
    assert result(steps, stddev=0.99, n_outliers=0).violations == 100


@pytest.mark.parametrize("value", [0.1, 1 / 3, 12.7])
def test_steps_that_all_take_the_same_have_no_outlier(value: float) -> None:
    found = result(node_steps(np.full(5000, value)), stddev=0, n_outliers=0)
    assert (found.status, found.violations) == ("healthy", 0)


def test_one_first_step_that_compiles_is_not_worth_a_finding() -> None:
    values = np.random.default_rng(0).normal(0.1, 0.001, 1000)
    values[0] = 30.0
    assert result(node_steps(values)).status == "healthy"


def test_ranks_and_phases_are_judged_apart() -> None:
    """Evaluation steps are ten times as long as training steps, and that is as it should be."""
    train = node_steps(np.full(300, 0.1), phase="train")
    evaluation = node_steps(np.full(30, 1.0), phase="eval", start=train.starts[-1] + 0.1)
    other_rank = node_steps(np.full(300, 1.0), rank=1)
    found = result(train, evaluation, other_rank)
    assert (found.status, found.violations, found.datapoints) == ("healthy", 0, 630)


def test_mode_limits_it_to_one_phase() -> None:
    train = node_steps(durations(400, 20), phase="train")
    evaluation = node_steps(np.full(400, 0.1), phase="eval", start=train.starts[-1] + 2)
    assert result(train, evaluation, mode="train").status == "found"
    assert result(train, evaluation, mode="eval").status == "healthy"
    assert result(train, evaluation, mode="predict").status == "not enough data"


def test_each_scan_that_fires_counts_and_each_outlier_counts_once() -> None:
    """Three minutes: 20 outliers in the first, none later; they stay outliers."""
    values = np.full(1700, 0.1)
    values[100:120] = 0.5
    found = result(node_steps(values))
    assert (found.triggered, found.violations) == (3, 20)


def test_seconds_lost_are_what_outliers_took_beyond_the_mean() -> None:
    values = durations(400, 20)
    assert result(node_steps(values)).seconds_lost == pytest.approx(20 - 20 * values.mean())


def stalls(every: int, component: str | None = "checkpoint", count: int = 480) -> Steps:
    values = np.random.default_rng(7).normal(0.1, 0.002, count)
    excess = np.zeros(count)
    excess[every - 1 :: every] = 0.5
    parts = {"forward": values * 0.4}
    if component:
        parts[component] = excess
    return node_steps(values + excess, **parts)  # type: ignore[arg-type]


def test_regular_outliers_have_a_period_and_a_component() -> None:
    found = result(stalls(16))
    assert "about every 16th step" in found.finding
    assert "most of the excess is checkpoint" in found.finding
    assert "checkpoint" in found.recommendation
    details = found.details["step_details"]["node-a, rank 0, train"]
    assert (details["period"], details["component"]) == (16, "checkpoint")
    assert details["step_numbers"] == list(range(16, 481, 16))
    assert [one["component"] for one in details["longest"]] == ["checkpoint"] * 20
    assert {one["number"] for one in details["longest"]} < set(details["step_numbers"])
    assert min(one["seconds"] for one in details["longest"]) > details["limit_seconds"]


def test_irregular_outliers_have_no_period() -> None:
    values = np.full(2000, 0.1)
    values[np.random.default_rng(3).permutation(2000)[:40]] = 0.6
    found = result(node_steps(values))
    assert found.status == "found"
    assert "every" not in found.finding


def test_an_excess_that_no_component_holds_is_not_blamed_on_one() -> None:
    found = result(stalls(16, component=None))
    assert found.status == "found"
    assert "most of the excess is" not in found.finding
    assert found.details["step_details"]["node-a, rank 0, train"]["component"] is None


def test_the_distribution_has_100_bins_without_outliers() -> None:
    values = np.random.default_rng(5).normal(0.1, 0.01, 3000)
    values[::100] = 2.0
    found = analysis(node_steps(values))
    distribution = found.steps[0]
    assert (len(distribution.counts), len(distribution.edges)) == (100, 101)
    assert sum(distribution.counts) == 3000 - 30
    assert distribution.edges[-1] < 0.2
    assert distribution.max == 2.0
    assert distribution.p99 == pytest.approx(np.percentile(values, 99))
    assert distribution.mean == pytest.approx(values.mean())
    assert distribution.standard_deviation == pytest.approx(values.std())


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [0.0, 0.0], [0.1, 0.2, 0.3]])
def test_a_distribution_of_few_steps_is_whole(values: list[float]) -> None:
    distribution = analysis(node_steps(values)).steps[0]
    assert sum(distribution.counts) == len(values)
    assert distribution.edges == sorted(distribution.edges)
    assert distribution.edges[0] <= min(values)
    assert distribution.edges[-1] >= max(values)
