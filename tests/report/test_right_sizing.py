"""What is advised to whom: by what runs made by hand use, and by the demo's scenarios."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.common.status import Status
from stepscope.evaluation.analysis import Analysis, GpuUse
from stepscope.measurements.usage import UsageRow
from stepscope.report.figures import (
    METRICS,
    cpu_utilization_mean,
    figure,
    gpu_utilization_mean,
    gpu_utilization_means,
    step_seconds_mean,
)
from stepscope.report.right_sizing import Prediction, predictions
from stepscope.rules.parts.data_loading import SHORT_FETCH

from tests.support import analysis as made
from tests.support.scenarios import WrittenScenarios

STEP = 0.4  # seconds
STEPS = 1500


def run(
    gpu: int = 95,
    cpu: int = 50,
    memory: int = 80,
    gpus: int = 8,
    cores: int = 32,
    nodes: int = 1,
    fired: tuple[str, ...] = (),
    **loading: Any,
) -> Analysis:
    """Ten minutes of training on even nodes; utilisations in percent. `loading` is a row of DataStarved's."""
    names = [f"node-{number}" for number in range(nodes)]
    its: dict[str, Any] = {
        "data_wait_seconds": 1.0,
        "percent": 1.0,
        "cause": None,
        "workers": 4,
        "cores": 4.0,
        "workers_needed": 2,
        "steps": STEPS,
        "step_seconds": STEPS * STEP,
    } | loading
    few, needed = its["cause"] == "too few workers", its["workers_needed"]
    suggested = {"workers_suggested": None if not few or needed is None else min(needed, 4)}
    rules = [
        made.rule("DataStarved", details={"ranks": [suggested | its]}),
        *(made.rule(name) for name in ("LowGPUUtilization", "BatchSize", "CPUBottleneck")),
    ]
    step = made.steps(count=STEPS)
    return made.slow_loader(
        rules=[replace(rule, status=Status.FOUND) if rule.rule in fired else rule for rule in rules],
        start=made.START,
        first_step_start=made.START,
        last_step_end=made.START + 600,
        end=made.START + 600,
        nodes=names,
        cores=dict.fromkeys(names, cores),
        gpus={name: [f"{number}: H100" for number in range(gpus)] for name in names},
        ranks=gpus * nodes,
        world_size=gpus * nodes,
        samples_taken=1200 * nodes,
        steps=[replace(step, rank=rank, mean=STEP) for rank in range(max(gpus, 1) * nodes)],
        loaders=[made.loader(rank, workers=4) | {"fetch_seconds": 100.0} for rank in range(gpus * nodes)],
        usage=[UsageRow(name, "CPU", "%", *(5 * [float(cpu)])) for name in names],
        gpu_use=[gpu_use(name, f"GPU {number}", gpu, memory) for name in names for number in range(gpus)],
        heatmaps=[
            replace(
                made.heatmap(name, gpus, cores, columns=10, column_seconds=60.0),
                values=[level(percent) for percent in (*(gpus * [gpu]), *(cores * [cpu]))],
            )
            for name in names
        ],
    )


def level(percent: int, columns: int = 10) -> list[int | None]:
    return [percent] * columns


def gpu_use(node: str, gpu: str, percent: float, memory: float) -> GpuUse:
    return GpuUse(node, gpu, percent, percent, percent, percent, memory, memory, memory, 80e9)


def changes(analysis: Analysis) -> dict[str, tuple[float, float]]:
    """What is suggested instead of what."""
    return {row.change: (row.current, row.suggested) for row in predictions(analysis)}


def row(analysis: Analysis, change: str, metric: str, price: float | None = None) -> Prediction:
    (found,) = [one for one in predictions(analysis, price) if (one.change, one.metric) == (change, metric)]
    return found


STARVED: dict[str, Any] = {"fired": ("DataStarved", "LowGPUUtilization"), "data_wait_seconds": 300.0}


def test_a_run_that_uses_what_it_has_is_told_nothing() -> None:
    assert predictions(run(), 14.688) == []


def test_gpus_that_wait_for_data_could_be_fewer_and_the_run_would_take_as_long() -> None:
    analysis = run(gpu=15, percent=80.0, cause="slow storage", **STARVED)
    assert changes(analysis) == {"fewer_gpus": (8, 2)}
    time = row(analysis, "fewer_gpus", "run_seconds")
    assert time.measured == time.expected == time.low == 600
    assert time.high == pytest.approx(600 * (0.85 + 4 * 0.15))
    bill = row(analysis, "fewer_gpus", "cost", price=36.0)
    assert (bill.measured, bill.expected, bill.low) == (6.0, 1.5, 1.5)
    assert bill.high == pytest.approx(6 * (0.85 + 4 * 0.15))  # if two GPUs cost as much as eight


def test_gpus_with_gaps_of_their_own_could_be_fewer_and_the_run_would_take_longer() -> None:
    analysis = run(gpu=30, fired=("LowGPUUtilization",))
    assert changes(analysis) == {"fewer_gpus": (8, 4)}
    assert row(analysis, "fewer_gpus", "run_seconds").expected == pytest.approx(600 * (0.7 + 2 * 0.3))


def test_the_busiest_gpu_decides() -> None:
    analysis = run(gpu=15)
    busy = replace(analysis.heatmaps[0], values=[level(90), *analysis.heatmaps[0].values[1:]])
    assert changes(replace(analysis, heatmaps=[busy])) == {}


def test_gpus_that_did_nothing_are_not_needed() -> None:
    analysis = run(gpu=95)
    idle = [replace(use, p95=0.0, memory_p95=1.0) for use in analysis.gpu_use[3:]]
    one_of_eight = replace(analysis, gpu_use=[*analysis.gpu_use[:3], *idle])
    assert changes(one_of_eight) == {"fewer_gpus": (8, 3)}
    time = row(one_of_eight, "fewer_gpus", "run_seconds")
    assert (time.low, time.expected, time.high) == (600, 600, 600)
    assert row(one_of_eight, "fewer_gpus", "cost", price=36.0).expected == 6 * 3 / 8
    unread = [replace(use, p95=math.nan, memory_p95=math.nan) for use in idle]
    assert changes(replace(analysis, gpu_use=[*analysis.gpu_use[:3], *unread])) == {}


def test_of_several_nodes_whole_nodes_are_spared_first() -> None:
    assert changes(run(gpu=15, cpu=15, nodes=4)) == {"fewer_nodes": (4, 1), "fewer_cores": (32, 8)}
    assert changes(run(gpu=30, cpu=60, nodes=4))["fewer_gpus"] == (8, 4)  # the cores of all are needed


def test_ranks_that_nobody_saw_may_need_what_looks_spare() -> None:
    assert changes(replace(run(gpu=15), world_size=16)) == {}


def test_cores_that_are_never_used_could_be_fewer_but_one_for_each_rank() -> None:
    assert changes(run(cpu=30)) == {"fewer_cores": (32, 14)}
    assert changes(run(cpu=5)) == {"fewer_cores": (32, 8)}
    assert changes(run(cpu=40)) == {}
    time = row(run(cpu=30), "fewer_cores", "run_seconds")
    assert (time.low, time.expected) == (600, 600)
    assert time.high == pytest.approx(600 * (1 + 0.3 * (32 / 14 - 1)))


def test_cores_that_wait_for_storage_may_be_needed_once_it_is_fast() -> None:
    assert changes(run(cpu=10, percent=50.0, cause="slow storage", **STARVED)) == {}


def test_too_few_workers_get_as_many_as_keep_up() -> None:
    analysis = run(percent=40.0, cause="too few workers", workers=1, workers_needed=3, **STARVED)
    assert changes(analysis) == {"more_workers": (1, 3)}
    step = row(analysis, "more_workers", "step_seconds_mean")
    assert (step.measured, step.low, step.high) == (STEP, 0.6 * STEP, STEP)
    assert step.expected == step.low  # three times as fast is faster than the rest of the step
    time = row(analysis, "more_workers", "run_seconds")
    assert time.expected == pytest.approx(600 - STEPS * STEP * 0.4)
    assert row(analysis, "more_workers", "cost", price=36.0).expected == pytest.approx(6 * 0.6)


def test_workers_are_never_more_than_the_cores_of_a_rank() -> None:
    analysis = run(percent=80.0, cause="too few workers", workers=1, workers_needed=9, **STARVED)
    assert changes(analysis) == {"more_workers": (1, 4)}
    assert row(analysis, "more_workers", "step_seconds_mean").expected == STEP / 4


def test_a_rank_that_loads_by_itself_gets_a_worker() -> None:
    analysis = run(percent=50.0, cause="too few workers", workers=0, workers_needed=1, **STARVED)
    assert changes(analysis) == {"more_workers": (0, 1)}
    step = row(analysis, "more_workers", "step_seconds_mean")
    assert step.expected == 0.5 * STEP
    assert step.high == pytest.approx(STEP + SHORT_FETCH), "a worker hands batches over"


def test_a_rank_that_waits_for_storage_by_itself_gets_workers() -> None:
    waits: dict[str, Any] = {"percent": 80.0, "cause": "slow storage", "workers_suggested": 6, **STARVED}
    assert changes(run(workers=0, **waits)) == {"more_workers": (0, 6)}


def test_batches_that_are_fetched_sooner_than_handed_over_get_no_worker() -> None:
    short: dict[str, Any] = {"percent": 50.0, "cause": "too few workers", "workers_suggested": None}
    assert changes(run(workers=0, **short, **STARVED)) == {}


def test_a_heavy_transform_gets_more_cores_and_is_told_how_many_would_keep_up() -> None:
    analysis = run(cpu=98, percent=80.0, cause="heavy transform", workers_needed=30, **STARVED)
    assert changes(analysis) == {"more_cores": (32, 64)}
    step = row(analysis, "more_cores", "step_seconds_mean")
    assert (step.expected, step.low) == pytest.approx((STEP / 2, 0.2 * STEP))
    assert "240 cores" in step.assumption
    nearly = run(cpu=98, percent=30.0, cause="heavy transform", workers_needed=5, **STARVED)
    assert changes(nearly) == {"more_cores": (32, 40)}


def test_a_small_batch_gets_larger_as_far_as_the_memory_reaches() -> None:
    analysis = run(gpu=40, memory=25, fired=("BatchSize", "LowGPUUtilization"))
    assert changes(analysis) == {"larger_batch": (64, 192)}
    time = row(analysis, "larger_batch", "run_seconds")
    assert time.expected == pytest.approx(600 * (0.4 + 0.6 / 3))
    assert (time.low, time.high) == pytest.approx((200, 600))
    step = row(analysis, "larger_batch", "step_seconds_mean")
    assert step.expected == pytest.approx(STEP * (0.6 + 3 * 0.4))
    assert (step.low, step.high) == pytest.approx((STEP, 3 * STEP))
    assert "75 % full instead of 25 %" in time.assumption
    assert changes(run(gpu=40, memory=60, fired=("BatchSize",))) == {}


def test_a_loader_that_is_busy_bounds_what_a_larger_batch_wins() -> None:
    analysis = run(gpu=40, memory=10, fired=("BatchSize",))
    slow = [{**loader, "fetch_seconds": 0.9 * 4 * 600} for loader in analysis.loaders]
    time = row(replace(analysis, loaders=slow), "larger_batch", "run_seconds")
    assert time.low == time.expected == pytest.approx(0.9 * 600)


def test_without_steps_the_busy_moments_of_gpus_decide() -> None:
    analysis = replace(run(gpu=15), steps=[], first_step_start=None, last_step_end=None)
    assert changes(analysis) == {"fewer_gpus": (8, 2)}
    busy = [replace(use, p95=95.0) for use in analysis.gpu_use]
    assert changes(replace(analysis, gpu_use=busy)) == {}


def test_what_came_before_the_first_step_does_not_make_gpus_look_idle() -> None:
    analysis = run(gpu=90)
    late = replace(analysis.heatmaps[0], values=[[*(8 * [0]), 90, 90] for _ in analysis.heatmaps[0].values])
    assert changes(replace(analysis, heatmaps=[late])) != {}
    started = replace(analysis, heatmaps=[late], first_step_start=made.START + 480)
    assert changes(started) == {}
    assert gpu_utilization_mean(started) == pytest.approx(0.9)


@pytest.mark.parametrize("make", [*made.EVERY_ANALYSIS, lambda: run(gpus=0), lambda: run(gpus=0, nodes=3)])
def test_any_run_gets_predictions_that_can_be(make: Any) -> None:
    check(predictions(make(), 14.688))


def check(rows: list[Prediction]) -> None:
    for one in rows:
        assert one.suggested > 0
        assert one.suggested != one.current
        assert one.metric in METRICS
        assert 0 < one.low <= one.expected <= one.high < math.inf
        assert one.measured > 0
        assert one.sentence.endswith(".")
        assert one.assumption.endswith(".")


@given(
    gpu=st.integers(0, 100),
    cpu=st.integers(0, 100),
    memory=st.integers(0, 100),
    gpus=st.integers(0, 8),
    cores=st.integers(1, 96),
    nodes=st.integers(1, 4),
    fired=st.sets(st.sampled_from(("DataStarved", "LowGPUUtilization", "BatchSize", "CPUBottleneck"))),
    percent=st.floats(0, 100),
    cause=st.sampled_from((None, "too few workers", "heavy transform", "slow storage")),
    workers=st.none() | st.integers(0, 64),
    needed=st.none() | st.integers(0, 500),
)
def test_whatever_a_run_uses_its_predictions_are_in_order_and_never_of_nothing(
    fired: set[str], needed: int | None, percent: float, **use: Any
) -> None:
    waited = 6 * percent
    analysis = run(
        fired=tuple(fired), percent=percent, data_wait_seconds=waited, workers_needed=needed, **use
    )
    rows = predictions(analysis, 36.0)
    check(rows)
    for one in rows:
        if one.metric == "step_seconds_mean" and one.change in ("more_workers", "more_cores"):
            assert one.low >= STEP * (1 - percent / 100)
        if one.change.startswith("fewer"):
            assert one.suggested < one.current
            if one.metric == "run_seconds":
                assert one.low >= one.measured
    if use["gpu"] >= 70 and use["gpus"]:
        assert not {"fewer_gpus", "fewer_nodes", "larger_batch"} & {one.change for one in rows}
    if use["cpu"] >= 70:
        assert "fewer_cores" not in {one.change for one in rows}


def test_figures_are_of_the_training_steps_of_all_ranks() -> None:
    analysis = run(gpu=40, cpu=20)
    assert step_seconds_mean(analysis) == pytest.approx(STEP)
    assert gpu_utilization_means(analysis) == 8 * [0.4]
    assert cpu_utilization_mean(analysis) == pytest.approx(0.2)
    assert figure(analysis, "run_seconds") == 600
    assert figure(analysis, "cost") is None
    assert figure(analysis, "cost", price=36.0) == 6
    assert figure(made.no_steps(), "step_seconds_mean") is None


ADVICE = {
    "cpu-bottleneck": {"more_cores": (32, 64), "fewer_gpus": (8, 2)},
    "few-dataloaders": {"more_workers": (1, 2)},
    "io-bottleneck": {"fewer_gpus": (8, 2)},
    "small-batch": {"larger_batch": (1, 3), "fewer_cores": (32, 9)},
}


@pytest.mark.parametrize(
    "name",
    [
        *("cpu-bottleneck", "few-dataloaders", "fluctuating", "healthy", "imbalance", "io-bottleneck"),
        *("memory-leak", "slow-start", "small-batch", "stall", "step-outliers", "straggler", "thermal"),
    ],
)
def test_a_scenario_gets_advice_that_fits_what_is_wrong_with_it(
    scenarios: WrittenScenarios, name: str
) -> None:
    assert changes(scenarios.written(name).recording) == ADVICE.get(name, {})


def test_few_dataloaders_are_predicted_to_compute_all_the_time(scenarios: WrittenScenarios) -> None:
    """A step computes for 0.3 s and waits for 0.27 s: with a worker more it should wait no more."""
    step = row(scenarios.written("few-dataloaders").recording, "more_workers", "step_seconds_mean")
    assert step.measured == pytest.approx(0.577, abs=0.01)
    assert step.expected == pytest.approx(0.307, abs=0.01)
