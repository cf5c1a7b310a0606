"""Rules over steps, starts and loaders, in promtool: what the collector of training processes publishes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from trainwatch.runs.model import Steps
from trainwatch.training.layout import WAIT_BOUNDS
from trainwatch.training.reader import LoaderTotals

from tests.support.promtool import RuleTest
from tests.support.scrapes import Series, only, scraped_samples, scraped_steps
from tests.support.source import START, node_samples, node_steps

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Debian's prometheus package"),
]

OUTLIERS = "run_instance_rank_phase:trainwatch_step_outliers:count"
LIMIT = "run_instance_rank_phase:trainwatch_step_outlier_limit:seconds"


def step_series(durations: np.ndarray, run: str, scrapes: int = 9, **more: str | float) -> Series:
    steps = node_steps(durations, **more)  # type: ignore[arg-type]
    return only(scraped_steps([steps], scrapes, run), "trainwatch_step_duration")


def durations(outliers: int, steps: int = 500, usual: float = 0.1, long: float = 1.2) -> np.ndarray:
    took = np.full(steps, usual)
    took[np.random.default_rng(7).permutation(steps)[:outliers]] = long
    return took


def test_more_outliers_than_allowed_alert_once_there_are_100_steps(rules: Path, tmp_path: Path) -> None:
    test = RuleTest(rules)
    cases = {
        "ten": (durations(10), 10, 0),
        "eleven": (durations(11), 11, 1),
        "even": (durations(0), 0, 0),
        "few-steps": (durations(11, steps=99), 0, 0),
    }
    for run, (took, outliers, fires) in cases.items():
        test.add(step_series(took, run))
        limit = took.mean() + 3 * took.std()
        test.equals(f'{LIMIT}{{run="{run}"}}', 120, limit, tolerance=1e-6)
        if run != "few-steps":
            test.equals(f'{OUTLIERS}{{run="{run}"}}', 120, outliers)
        test.status("StepOutlier", 120, fires, run=run)
        test.firing("StepOutlier", 120, fires, run=run, rank="0", phase="train")
    test.run(tmp_path)


def test_steps_between_the_limit_and_the_next_bound_are_never_taken_for_outliers(
    rules: Path, tmp_path: Path
) -> None:
    """Limit 0.24 s, next bound 0.32 s: the 12 steps of 0.3 s may be others for all the histogram tells."""
    took = durations(12, steps=500, usual=0.1, long=0.3)
    assert took.mean() + 3 * took.std() < 0.3
    test = RuleTest(rules)
    test.add(step_series(took, "run"))
    test.equals(OUTLIERS, 120, 0)
    test.status("StepOutlier", 120, 0)
    test.run(tmp_path)


def test_of_steps_beyond_all_bounds_no_outliers_are_known(rules: Path, tmp_path: Path) -> None:
    """The last bound is 4 hours."""
    took = durations(11, steps=200, usual=20_000, long=60_000)
    test = RuleTest(rules)
    test.add(step_series(took, "endless", start=START - took.sum()))
    test.equals(LIMIT, 120, took.mean() + 3 * took.std(), tolerance=1e-3)
    test.gives_nothing(OUTLIERS, 120)
    test.status("StepOutlier", 120, 0)
    test.run(tmp_path)


def test_each_rank_and_phase_is_judged_alone(rules: Path, tmp_path: Path) -> None:
    even, uneven = durations(0, 300), durations(15, 300)
    steps = [
        node_steps(even, rank=0),
        node_steps(uneven, rank=1),
        node_steps(even, rank=1, phase="eval", start=START + 60),
    ]
    test = RuleTest(rules)
    test.add(only(scraped_steps(steps, 9), "trainwatch_step_duration"))
    test.firing("StepOutlier", 120, 1)
    test.firing("StepOutlier", 120, 1, rank="1", phase="train")
    test.equals('count(trainwatch:rule_status{rule="StepOutlier"})', 120, 3)
    test.run(tmp_path)


def test_no_step_20_minutes_after_the_start_alerts_until_one_has_finished(
    rules: Path, tmp_path: Path
) -> None:
    late: list[Steps] = [node_steps([0.5] * 4, start=START + 1255)]
    test = RuleTest(rules)
    for run, steps, end in (("late", late, None), ("never", [], None), ("gave-up", [], 1230.0)):
        test.add(only(scraped_steps(steps, 86, run, end=end), "trainwatch_run_"))
    early = [node_steps([30.0], start=START + 1000)]
    test.add(only(scraped_steps(early, 86, "early"), "trainwatch_run_"))
    test.status("MaxInitializationTime", 1200, 0)
    test.firing("MaxInitializationTime", 1200, 0)
    test.firing("MaxInitializationTime", 1215, 3, stage="waiting", severity="warning")
    test.status("MaxInitializationTime", 1275, 1, run="late")
    test.firing("MaxInitializationTime", 1275, 1, run="late", stage="late", severity="info")
    test.firing("MaxInitializationTime", 1275, 0, run="late", stage="waiting")
    test.firing("MaxInitializationTime", 1275, 1, run="never", stage="waiting")
    test.firing("MaxInitializationTime", 1275, 1, run="gave-up", stage="late")
    test.equals('run_instance:trainwatch_initialization:seconds{run="late"}', 1275, 1255)
    test.equals('run_instance:trainwatch_initialization:seconds{run="gave-up"}', 1275, 1230)
    test.status("MaxInitializationTime", 1275, 0, run="early")
    test.firing("MaxInitializationTime", 1275, 0, run="early")
    test.run(tmp_path)


def loader(workers: int | None, phase: str = "train") -> LoaderTotals:
    return LoaderTotals(phase, workers, None, None, (0,) * (len(WAIT_BOUNDS) + 1), 0.0, None)


def test_workers_are_compared_with_cores_and_an_alert_waits_for_its_for(rules: Path, tmp_path: Path) -> None:
    test = RuleTest(rules)
    cases = {
        "few": ({0: [loader(3)], 1: [loader(3)]}, 0.6, 1),
        "at": ({0: [loader(4)], 1: [loader(3)]}, 0.7, 0),
        "many": ({0: [loader(21)]}, 2.1, 1),
        "at-most": ({0: [loader(20)]}, 2.0, 0),
        "training-counts": ({0: [loader(8), loader(30, "eval")]}, 0.8, 0),
        "largest-other": ({0: [loader(8, "predict"), loader(2, "eval")]}, 0.8, 0),
    }
    steps = [node_steps([1.0] * 400, rank=rank) for rank in (0, 1)]
    for run, (loaders, share, fires) in cases.items():
        scraped = scraped_steps(steps, 20, run, instance=run, loaders=loaders)
        cores = scraped_samples(node_samples(np.zeros((600, 10)), node=run), run)
        test.add(only(scraped, "trainwatch_dataloader_workers"))
        test.add(only(cores, "trainwatch_cpu_utilization_ratio", "trainwatch_samples_total"))
        test.equals(f'run_instance:trainwatch_dataloader_workers_per_core:ratio{{run="{run}"}}', 180, share)
        test.status("Dataloader", 180, fires, run=run)
        test.firing("Dataloader", 60, 0, run=run)
        test.firing("Dataloader", 240, fires, run=run)
    test.add(
        only(scraped_samples(node_samples(np.zeros((600, 10))), "no-loader"), "trainwatch_samples_total")
    )
    test.status("Dataloader", 240, 0, run="no-loader")
    test.run(tmp_path)
