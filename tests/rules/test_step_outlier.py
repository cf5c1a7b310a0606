"""StepOutlier: what steps far above the mean cost, which they are, how regular, and in what component."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.as_json import rule_json
from stepscope.evaluation.engine import evaluate
from stepscope.measurements.steps import Durations, ScrapedSteps
from stepscope.rules.step_outlier import StepOutlier
from stepscope.runs.model import COMPONENTS, Steps, ThreadTime

from tests.support.few_rules import judged, of_rule, only
from tests.support.source import INTERVAL, START, MemorySource, node_samples, node_steps, run_facts


def analysis(*steps: Steps, **parameters: Any) -> Analysis:
    settings = only("StepOutlier").parse(
        [f"StepOutlier.{name}={value}" for name, value in parameters.items()]
    )
    return evaluate(MemorySource(*steps), settings)


def result(*steps: Steps, **parameters: Any) -> RuleResult:
    return of_rule("StepOutlier", analysis(*steps, **parameters))


def durations(count: int, outliers: int, long: float = 1.0) -> np.ndarray:
    """`count` steps of 0.1 s, of which the last are far longer."""
    values = np.full(count, 0.1)
    if outliers:
        values[-outliers:] = long
    return values


@pytest.mark.parametrize(("lost", "status"), [(1.99, "healthy"), (2.01, "found")])
def test_it_fires_when_outliers_cost_more_than_2_percent_of_the_time(lost: float, status: str) -> None:
    """10 of 1000 steps. What they take beyond the mean is 99 % of what they take beyond the others."""
    excess = 1000 * 0.1 / (0.99 * 10 * 100 / lost - 10)
    found = result(node_steps(durations(1000, 10, 0.1 + excess)))
    assert (found.status, found.violations, found.datapoints) == (status, 10, 1000)
    details = found.details["step_details"]["node-a, rank 0, train"]
    assert details["lost_percent"] == pytest.approx(lost)


def test_it_does_not_fire_exactly_at_its_threshold() -> None:
    """Every 16th step takes 17 s, the others 1 s: their mean is 2 s, so 15 of each 32 s are lost."""
    values = np.full(1024, 1.0)
    values[15::16] = 17.0
    assert result(node_steps(values), time_lost=46.875).status == "healthy"
    assert result(node_steps(values), time_lost=46.874).status == "found"


@pytest.mark.parametrize(("outliers", "status"), [(2, "healthy"), (3, "found")])
def test_fewer_than_3_outliers_are_events(outliers: int, status: str) -> None:
    assert result(node_steps(durations(400, outliers, 3.0))).status == status


@pytest.mark.parametrize(("outliers", "triggered"), [(9, 0), (10, 0), (11, 1)])
def test_debuggers_count_is_by_the_number_of_outliers(outliers: int, triggered: int) -> None:
    """They cost hardly any time."""
    found = result(node_steps(durations(400, outliers, 0.101)))
    assert (found.status, found.triggered, found.violations) == ("healthy", 0, outliers)
    assert found.debugger_triggered == rule_json(found)["RuleTriggered"] == triggered


def test_a_long_loop_of_sleeps_is_healthy_however_many_outliers_it_has() -> None:
    """Sleeps of 10 ms take 0.1 ms longer, and 1 of 1000 is late by some ms, as measured on a busy machine."""
    random = np.random.default_rng(11)
    late = (random.random(360_000) < 0.001) * random.exponential(0.003, 360_000)
    found = result(node_steps(0.0101 + random.gamma(2, 2e-5, 360_000) + late))
    assert found.violations > 100
    assert found.debugger_triggered
    assert (found.status, found.triggered) == ("healthy", 0)
    assert found.finding == "Outliers cost no rank more than 2 % of its steps' time."


@given(st.integers(0, 2**32 - 1), st.floats(0.001, 1000), st.integers(1, 5))
def test_scaling_time_or_repeating_the_run_changes_no_share(seed: int, scale: float, times: int) -> None:
    took = np.random.default_rng(seed).lognormal(0, 0.5, 200)
    shares = [
        result(node_steps(values)).details["step_details"]["node-a, rank 0, train"]["lost_percent"]
        for values in (took, scale * took, np.tile(took, times))
    ]
    assert shares == pytest.approx([shares[0]] * 3, rel=1e-6)


@pytest.mark.parametrize(("count", "status"), [(99, "not enough data"), (100, "found"), (101, "found")])
def test_it_needs_100_steps(count: int, status: str) -> None:
    found = result(node_steps(durations(count, 3)))
    assert found.status == status
    if status == "not enough data":
        assert "99" in found.finding


def test_a_step_exactly_at_the_bound_is_no_outlier() -> None:
    """Half of the steps take 1 s, half 3 s: mean 2 s, deviation 1 s."""
    steps = node_steps(np.tile([1.0, 3.0], 100))
    assert result(steps, stddev=1).violations == 0
    assert result(steps, stddev=0.99).violations == 100


@pytest.mark.parametrize("value", [0.1, 1 / 3, 12.7])
def test_steps_that_all_take_the_same_have_no_outlier(value: float) -> None:
    found = result(node_steps(np.full(5000, value)), stddev=0, time_lost=0)
    assert (found.status, found.violations) == ("healthy", 0)


def test_one_first_step_that_compiles_is_not_worth_a_finding() -> None:
    values = np.random.default_rng(0).normal(0.1, 0.001, 1000)
    values[0] = 30.0
    assert result(node_steps(values)).status == "healthy"


@pytest.mark.parametrize(("later", "status"), [(0, "healthy"), (1, "healthy"), (5, "healthy"), (10, "found")])
def test_a_warm_up_has_no_finding_and_later_steps_must_cost_enough_by_themselves(
    later: int, status: str
) -> None:
    values = np.full(1000, 0.1)
    values[:20] = 0.5
    values[500 : 500 + later] = 0.5
    found = result(node_steps(values, forward=values))
    assert (found.status, found.violations) == (status, 20 + later)
    details = found.details["step_details"]["node-a, rank 0, train"]
    assert len(details["step_numbers"]) == details["number_of_outliers"] == 20 + later
    if later == 10:
        assert found.finding.startswith("10 of 1000 train steps took longer than")
        assert found.seconds_lost == pytest.approx(10 * (0.5 - values.mean()))


@pytest.mark.parametrize(("usual", "long", "status"), [(0.01, 0.2, "healthy"), (0.03, 0.15, "found")])
def test_a_stage_with_longer_steps_is_no_outlier_if_it_takes_most_of_the_time(
    usual: float, long: float, status: str
) -> None:
    """L-BFGS after Adam: it evaluates its closure up to 20 times per step, but less often in some steps."""
    values = np.full(325, usual)
    values[300:] = np.where(np.arange(25) % 5 == 2, 2 * usual, long)
    assert result(node_steps(values, optimizer=values * 0.9)).status == status
    late = result(node_steps(values, data_wait=values * 0.9))
    assert late.status == "found", "a storage that is slow for a time is no stage"
    scattered = np.full(325, usual)
    scattered[5::13] = long
    assert result(node_steps(scattered, optimizer=scattered * 0.9)).status == "found"


def test_the_first_step_of_keras_compiles_and_two_later_ones_are_events() -> None:
    values = np.full(300, 0.05)
    values[0], values[[100, 250]] = 2.0, 0.6
    found = result(node_steps(values))
    assert (found.status, found.violations) == ("healthy", 3)


def test_the_warm_up_says_nothing_about_the_component_of_later_outliers() -> None:
    values, compiled, saved = np.full(1000, 0.1), np.zeros(1000), np.zeros(1000)
    values[:20] = 2.0
    compiled[:20] = 1.9
    values[500:900:10], saved[500:900:10] = 1.5, 1.4
    assert result(node_steps(values, compile=compiled, checkpoint=saved)).details["component"] == "checkpoint"


def test_the_first_steps_of_a_later_window_are_no_warm_up() -> None:
    long = np.full(500, 0.1)
    long[:3] = long[200:230] = 1.0
    durations = Durations()
    numbers = np.arange(500)
    views = durations.observe(numbers, long, np.zeros((500, len(COMPONENTS))), np.array([2, 200, 500]))
    early, before, now = views.moments()
    assert now.later(0.5) == (30, pytest.approx(30 * (1 - long.mean())))
    assert (now - before).later(0.5)[0] == 30
    assert (now - early).later(0.5)[0] == 30
    assert early.later(0.5)[0] == 0


def test_outliers_of_early_scans_that_are_none_of_the_whole_run_were_found() -> None:
    early = np.full(1200, 0.1)
    early[600:660:3] = 0.6
    found = result(node_steps(np.concatenate((early, np.tile([0.1, 0.9], 2000)))))
    assert (found.status, found.violations) == ("found", 0)


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


@pytest.mark.parametrize(("quickest", "fires"), [(0.93, False), (1 - 0.6 * 0.1, True), (0.95, True)])
def test_each_third_of_a_live_window_needs_40_percent_of_the_mean_cost(quickest: float, fires: bool) -> None:
    """Outliers cost 10 % of the time. Steps of a third without any take 0.9 s, all others 1 s on average."""
    view = ScrapedSteps(*map(np.atleast_1d, (1000.0, 1000.0, 5.0, 0.1, quickest)))
    assert StepOutlier().judge_live(view, 0.5).fired == [fires]


def test_steps_of_a_single_third_are_compared_with_nothing() -> None:
    """The first steps of a young run are slow: its report may say so, but they have no band."""
    assert not result(node_steps(np.concatenate((np.full(8, 5.0), np.full(400, 0.5))))).bands
    view = ScrapedSteps(*map(np.atleast_1d, (1000.0, 1000.0, 5.0, 0.1, np.nan)))
    assert not StepOutlier().judge_live(view, 0.5).fired


@pytest.mark.parametrize("slow", [120, 240, 900, 1800])
def test_steps_that_are_slow_for_a_time_have_no_band(slow: int) -> None:
    calm = np.full(3000, 0.4)
    assert not result(node_steps(np.concatenate((calm, np.full(slow // 6, 6.0), calm)))).bands


def test_outliers_have_a_band_while_they_last() -> None:
    stalled = np.full(1800, 1.0)
    stalled[::30] = 4.0
    calm = np.full(1800, 1.0)
    (band,) = result(node_steps(np.concatenate((calm, stalled, calm)))).bands
    assert 1800 < band.start - START <= 1800 + 960
    assert band.end - START <= 3780 + 900


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
    assert "part" not in found.details
    evaluates = replace(stalls(16), phases=node_steps([0.1], phase="eval").phases.repeat(480))
    assert result(evaluates).details["part"] == "eval"
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


def test_outliers_that_come_regularly_for_a_short_time_have_no_period() -> None:
    values = np.full(400, 0.1)
    values[100:150:10] = 0.6
    found = result(node_steps(values))
    assert "every" not in found.finding
    values[:] = 0.1
    values[100:310:20] = 0.6
    assert "about every 20th step" in result(node_steps(values)).finding


def test_an_excess_that_no_component_holds_is_not_blamed_on_one() -> None:
    found = result(stalls(16, component=None))
    assert found.status == "found"
    assert "most of the excess is" not in found.finding
    assert found.details["step_details"]["node-a, rank 0, train"]["component"] is None
    assert found.details["explains"] == "host"
    unknown = stalls(16, component=None)
    unknown.components[:] = 0.0
    assert "explains" not in result(unknown).details, "nothing is known of any component"
    assert "explains" not in result(stalls(16)).details


def test_an_excess_of_several_components_is_told_by_each_of_them() -> None:
    steps = stalls(16)
    saved, collected = COMPONENTS.index("checkpoint"), COMPONENTS.index("gc")
    steps.components[:, collected] = steps.components[:, saved] * 0.4
    steps.components[:, saved] *= 0.48
    details = result(steps).details
    assert "component" not in details
    assert details["excess_by_component"]["checkpoint"] == pytest.approx(30 * 0.24)
    assert details["excess_by_component"]["gc"] == pytest.approx(30 * 0.2)
    assert "excess_by_component" not in result(stalls(16)).details, "one component has most of it"


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


def waiting_for(rank: int, longer: float, ranks: int = 4) -> list[Steps]:
    """Ranks that wait for each other: in every 40th step, one rank takes 2 s longer by itself."""
    took, extra = np.full(400, 1.0), np.where(np.arange(400) % 40 == 17, 2.0, 0.0)
    return [
        node_steps(
            took + extra,
            rank=each,
            node=f"node-{each // 2}",
            gc=extra if each == rank else longer * extra,
            communication=0.1 + (0 if each == rank else (1 - longer) * extra),
        )
        for each in range(ranks)
    ]


def test_rare_long_steps_are_those_of_the_rank_that_the_others_wait_for() -> None:
    for rank in range(4):
        found = result(*waiting_for(rank, 0.0))
        assert found.details["culprit"] == {
            "node": f"node-{rank // 2}",
            "rank": rank,
            "component": "gc",
            "steps": 10,
            "own_seconds": pytest.approx(20.0),
            "others_seconds": 0.0,
        }
        assert f"train steps of rank {rank} took longer" in found.finding
        assert found.finding.endswith(
            f"most of the excess is gc. Rank {rank} on node-{rank // 2} makes the others wait: "
            "its long steps took 20.0 s more of its own time, those of the other ranks 0 s (median)."
        )


@pytest.mark.parametrize(("others", "named"), [(0.49, True), (0.51, False), (1.0, False)])
def test_ranks_that_are_slow_together_wait_for_nobody(others: float, named: bool) -> None:
    assert ("culprit" in result(*waiting_for(2, others)).details) == named


def test_what_others_took_from_full_cores_is_no_loss_of_long_steps() -> None:
    """30 irregular steps take 48 s longer in all; others use the node's 4 cores for 30 core seconds."""
    values = np.full(480, 0.1)
    values[np.random.default_rng(7).choice(480, 30, replace=False)] = 1.7
    rows = 401

    def with_others(others: float, own: float) -> RuleResult:
        use = {
            "allowed_cores": np.full(rows, 4.0),
            "cpu_seconds": own * INTERVAL * np.arange(rows),
            "other_cpu_seconds": others * INTERVAL * np.arange(rows),
        }
        samples = node_samples(np.zeros((rows, 4)), of_run=use)
        return judged("StepOutlier", samples, node_steps(values))

    free, full = with_others(0.15, 1.0), with_others(0.15, 3.85)
    taken = 0.15 * INTERVAL * (rows - 1)
    assert full.seconds_lost == pytest.approx(free.seconds_lost - taken)
    assert "may be due to cores that others used" in full.finding
    assert "others used" not in free.finding
    assert not full.cause_known


@pytest.mark.parametrize("known", [True, False])
def test_what_long_steps_waited_for_a_core_is_not_theirs(known: bool) -> None:
    """30 steps take 48 s longer in all; the main thread had no core for 40 s of that."""
    values = np.full(480, 0.1)
    values[15::16] = 1.7
    checkpoint: dict[str, Any] = {"checkpoint": values - 0.1} if known else {}
    thread = ThreadTime("node-a", 0, "training", 1, 96, 50, 46, 0, long_core_wait_seconds=40)

    def seen(*threads: ThreadTime) -> RuleResult:
        facts = replace(run_facts(), threads=threads)
        return judged("StepOutlier", node_steps(values, **checkpoint), facts=facts)

    alone, without_core = seen(), seen(thread)
    beyond = alone.seconds_lost - without_core.seconds_lost
    assert beyond == pytest.approx(40 if known else alone.seconds_lost, abs=1e-3)
    assert "For 40.0 s of that, it was ready to run but had no core." in without_core.finding
