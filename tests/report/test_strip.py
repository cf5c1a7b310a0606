"""The strip and the savings of the first screen: what they draw is what was measured."""

from dataclasses import replace

import numpy as np
import pytest
from stepscope.common.status import Status
from stepscope.evaluation.analysis import Analysis, Band
from stepscope.evaluation.engine import evaluate
from stepscope.report.findings import findings
from stepscope.report.right_sizing import Prediction
from stepscope.report.savings import savings
from stepscope.report.strip import COLUMNS, Row, Strip, strip
from stepscope.runs.gauge_history import GaugeHistory

from tests.support import analysis as made
from tests.support.scenarios import WrittenScenarios
from tests.support.source import START, MemorySource, node_steps


def strip_of(analysis: Analysis) -> Strip:
    found = strip(analysis)
    assert found is not None
    return found


def row(analysis: Analysis, name: str) -> Row:
    return next(row for row in strip_of(analysis).rows if row.name == name)


def test_a_run_has_steps_waiting_gpu_and_cpu_on_one_axis() -> None:
    analysis = made.slow_loader(timelines=[replace(made.timeline("node-a"), waiting_seconds=[3.0] * 240)])
    names = [row.name for row in strip_of(analysis).rows]
    assert names == ["Steps", "Waiting for data", "GPU in use", "CPU in use"]
    (waiting,) = row(analysis, "Waiting for data").layers
    assert waiting.mean == pytest.approx(50)  # 3 of the 6 s of two ranks in a column


def test_what_was_not_sampled_is_not_idle() -> None:
    gpu = row(made.slow_loader(), "GPU in use")
    ((first, columns),) = gpu.unknown
    assert (first, columns) == (90, 6)  # the gap of made.heatmap
    assert np.isnan(gpu.layers[0].percents[92])


def test_the_use_of_cores_is_told_apart_from_that_of_others() -> None:
    heatmap = replace(made.heatmap("node-a", 2, 16), core_use={"own": [40] * 240, "others": [25] * 240})
    own, others = row(made.slow_loader(heatmaps=[heatmap]), "CPU in use").layers
    assert (own.name, others.name) == ("this run", "others")
    assert [own.mean, others.mean] == pytest.approx([40, 25])


def test_the_measured_cores_of_a_scenario_agree_with_its_figure(scenarios: WrittenScenarios) -> None:
    analysis = scenarios.written("cpu-bottleneck").recording
    own, _ = row(analysis, "CPU in use").layers
    assert own.mean == pytest.approx(100 * analysis.run_cores[0].own / 32, abs=1.5)


def test_waiting_is_spread_over_its_step() -> None:
    steps = node_steps([2.0, 2.0], start=START)
    steps.components[:, 0] = [1.0, 0.5]
    (timeline,) = evaluate(MemorySource(steps)).timelines
    assert timeline.waiting_seconds == pytest.approx([0.5, 0.5, 0.25, 0.25])


def test_the_loss_and_the_learning_rate_are_rows_with_their_first_and_last_values() -> None:
    times = np.linspace(made.START, made.START + 719, 720)
    falling, rate = np.linspace(4.0, 1.0, 720), np.full(720, 0.01)
    falling[601:] = np.nan
    histories = [
        GaugeHistory("node-a", 0, 1, made.START, name, times, values)
        for name, values in (("train/loss", falling), ("lr", rate), ("accuracy", falling))
    ]
    analysis = made.slow_loader(gauge_histories=histories)
    names = [row.name for row in strip_of(analysis).rows]
    assert names[-2:] == ["Loss, 4 to NaN", "Learning rate, 0.01 to 0.01"]
    loss = row(analysis, names[-2])
    assert loss.in_words == "train/loss from 4 to NaN"
    heights = loss.layers[0].percents
    assert 99 < heights[0] <= 100
    assert heights[100] == pytest.approx(100 * (4 - 3 * 100.5 / 240) / 4, abs=1.5)
    assert loss.unknown == [(200, 40)], "NaN has no height"


def test_findings_are_bands_in_their_order_and_those_held_at_times_follow() -> None:
    found = made.rule(
        "DataStarved",
        Status.FOUND,
        seconds_lost=100.0,
        bands=[Band("node-a", "rank 0", START + 180, START + 360, False, 90.0, "90 %")],
    )
    passed = made.rule(
        "IOBottleneck", bands=[Band("node-a", "", START + 540, START + 720, True, 60.0, "60 %")]
    )
    analysis = replace(made.slow_loader(rules=[passed, found]), start=START, end=START + 720)
    first, second = strip_of(analysis).findings
    assert first.name == "Waiting for data"
    assert first.spans == [(25.0, 25.0, "rank 0 of node-a, at worst 90 %")]
    assert second.name == "Waiting for storage, at times"


def test_a_run_of_which_nothing_was_recorded_has_no_strip() -> None:
    assert strip(made.slow_loader(heatmaps=[], timelines=[])) is None


def test_paths_stay_within_the_strip_and_ticks_are_few() -> None:
    for make in made.EVERY_ANALYSIS:
        if (drawn := strip(make())) is None:
            continue
        assert len(drawn.ticks) <= 6
        for one in drawn.rows:
            assert all(path.endswith(f"H{COLUMNS}V100Z") for _, path in one.paths)
            assert all(0 <= int(height) <= 100 for _, path in one.paths for height in _heights(path))


def _heights(path: str) -> list[str]:
    return [piece.partition("H")[0].rstrip("Z") for piece in path.split("V")[1:]]


def prediction(change: str, metric: str, measured: float, expected: float, low: float) -> Prediction:
    return Prediction(change, "GPUs of a node", 8, 2, metric, measured, expected, low, measured, "", "")


def test_savings_are_sorted_and_have_an_expected_and_a_best_case() -> None:
    rules = [
        made.rule("StepOutlier", Status.FOUND, seconds_lost=72.0),
        made.rule("DataStarved", Status.FOUND, seconds_lost=360.0),
    ]
    predicted = [
        prediction("more_workers", "run_seconds", 720.0, 540.0, 360.0),
        prediction("more_workers", "cost", 2.0, 1.5, 1.0),
        prediction("fewer_gpus", "cost", 2.0, 0.5, 0.5),
    ]
    analysis = made.slow_loader(rules=rules)
    waiting, outliers, gpus = savings(analysis, findings(analysis, 10.0), predicted)
    assert (waiting.title, outliers.title) == ("Waiting for data", "Single long steps")
    assert waiting.best.seconds == 360
    assert waiting.best.dollars == pytest.approx(1.0)
    assert waiting.best.joules == pytest.approx(2.1e6 / 2)
    assert waiting.expected is not None
    assert (waiting.expected.seconds, waiting.expected.dollars) == (180, 0.5)
    assert outliers.expected is None
    assert gpus.title == "2 GPUs per node instead of 8"
    assert gpus.best.in_words == "$1.50"


def test_nothing_saves_more_than_was_lost() -> None:
    rules = [made.rule("DataStarved", Status.FOUND, seconds_lost=90.0)]
    predicted = [
        prediction("more_workers", "run_seconds", 720.0, 540.0, 360.0),
        prediction("more_workers", "cost", 2.0, 1.5, 1.0),
    ]
    analysis = made.slow_loader(rules=rules)
    (waiting,) = savings(analysis, findings(analysis, 10.0), predicted)
    assert waiting.expected is not None
    assert (waiting.expected.seconds, waiting.expected.dollars) == (90, 0.25)


def test_time_summed_over_ranks_is_no_share_of_the_run() -> None:
    analysis = made.slow_loader(rules=[made.rule("DataStarved", Status.FOUND, seconds_lost=9000.0)])
    (only,) = savings(analysis, findings(analysis), [])
    assert only.best.share is None
    assert only.best.in_words == "2 h 30 min"
