"""Rules over steps, starts and loaders, in promtool: what the collector of training processes publishes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stepscope.exporter.ledgers.reader import LoaderTotals
from stepscope.rules.step_outlier import APART
from stepscope.runs.model import Steps
from stepscope.training.layout import STEP_BOUNDS, WAIT_BOUNDS

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest
from tests.support.scrapes import Series, only, scraped_samples, scraped_steps
from tests.support.source import START, node_samples, node_steps

pytestmark = needs_prometheus

OUTLIERS = "run_instance_rank_phase:stepscope_step_outliers:count"
LOST = "run_instance_rank_phase:stepscope_step_outliers:lost_ratio"
LIMIT = "run_instance_rank_phase:stepscope_step_outlier_limit:seconds"

AT, LATER = 480, 300  # seconds: of the evaluation, and until the second half of the steps

WHERE = {"job": "stepscope", "instance": "node-a", "run": "run", "rank": "0", "phase": "train"}
LONG_STEPS = (
    "In the last 15 minutes, at least 5 of 500 train steps of run run on node-a took more than "
    "3 standard deviations longer than the mean of 132ms, above 1.087s. Beyond the mean, they cost at "
    "least 23.01% of the steps' time (fires above 2 %)."
)


def step_series(durations: np.ndarray, run: str, scrapes: int = 17, **more: str | float) -> Series:
    steps = node_steps(durations, **more)  # type: ignore[arg-type]
    return only(scraped_steps([steps], scrapes, run), "stepscope_step_duration", "stepscope_samples_total")


def in_halves(durations: np.ndarray, **more: Any) -> Steps:
    """Half of the steps at a run's start, half in its sixth minute: in two thirds of a live window."""
    steps = node_steps(durations, **more)
    later = np.arange(len(steps)) >= len(steps) // 2
    return replace(steps, starts=steps.starts + np.where(later, LATER, 0.0))


def halved_series(durations: np.ndarray, run: str, scrapes: int = AT // 15 + 1) -> Series:
    scraped = scraped_steps([in_halves(durations)], scrapes, run)
    return only(scraped, "stepscope_step_duration", "stepscope_samples_total")


def durations(outliers: int, steps: int = 500, usual: float = 0.1, long: float = 1.2) -> np.ndarray:
    took = np.full(steps, usual)
    took[((np.arange(outliers) + 0.5) * steps / max(outliers, 1)).astype(int)] = long
    return took


def lost(took: np.ndarray) -> float:
    """The share of the time that outliers took beyond the mean."""
    outliers = took[took > took.mean() + 3 * took.std()]
    return float((outliers - took.mean()).sum() / took.sum())


def test_outliers_that_cost_more_than_2_percent_of_the_time_alert(test: RuleTest) -> None:
    cases = {
        "below": (durations(3, steps=1310, long=1.001), 3, 0),
        "above": (durations(3, steps=1290, long=1.001), 3, 1),
        "many-and-cheap": (durations(100, steps=10_000, usual=0.0101, long=0.0181), 100, 0),
        "two": (durations(2, long=3.21), 2, 0),
        "three": (durations(3, long=3.21), 3, 1),
        "even": (durations(0), 0, 0),
    }
    for run, (took, outliers, fires) in cases.items():
        test.add(halved_series(took, run))
        limit = took.mean() + 3 * took.std()
        test.equals(f'{LIMIT}{{run="{run}"}}', AT, limit, tolerance=1e-6)
        test.equals(f'{OUTLIERS}{{run="{run}"}}', AT, outliers)
        # Never too much, and at least the lower bounds of the histogram's buckets.
        test.equals(f'{LOST}{{run="{run}"}} <= bool {lost(took) + 1e-9}', AT, 1)
        test.equals(f'{LOST}{{run="{run}"}} >= bool {0.5 * lost(took)}', AT, 1)
        test.status("StepOutlier", AT, fires, run=run)
        test.firing("StepOutlier", AT, fires, run=run, rank="0", phase="train")


def test_steps_of_a_warm_up_are_no_outliers(test: RuleTest) -> None:
    """Eight slow steps cost 15 % of what a young run took, and it has nothing else to compare them with."""
    test.add(step_series(np.concatenate((np.full(8, 5.0), np.full(400, 0.5))), "run", 40))
    for age in (240, 480):
        test.firing("StepOutlier", age, 0)


def test_bounds_are_at_least_as_far_apart_as_the_cost_assumes() -> None:
    bounds = np.array(STEP_BOUNDS)
    assert (np.diff(bounds) / bounds[1:]).min() >= APART > 0.42


def test_a_live_window_needs_100_steps_or_30_that_take_half_of_it(
    rendered: Callable[..., Path], tmp_path: Path
) -> None:
    test = RuleTest(rendered("StepOutlier.stddev=2") / "stepscope.yml")
    cases = ((99, 0.1, 0), (100, 0.1, 1), (29, 20.0, 0), (30, 20.0, 1), (30, 11.0, 0))
    for steps, usual, fires in cases:
        run = f"{steps}-of-{usual:g}"
        took = np.full(steps, usual)
        took[[steps // 6, steps // 2, 5 * steps // 6]] *= 3.3
        test.add(step_series(took, run, 60) if usual > 1 else halved_series(took, run, 60))
        test.equals(f'{OUTLIERS}{{run="{run}"}}', 780, 3)
        test.status("StepOutlier", 780, fires, run=run)
    test.run(tmp_path)


def test_it_judges_the_last_15_minutes_and_ends_within_them(test: RuleTest) -> None:
    """20 minutes without an outlier, 16 with one at every 30th step, and 20 without."""
    calm = np.full(1200, 1.0)
    stalls = np.full(880, 1.0)
    stalls[::30] = 4.0
    test.add(step_series(np.concatenate((calm, stalls, calm)), "run", 190))
    test.firing("StepOutlier", 1200, 0)
    test.firing("StepOutlier", 2160, 1)
    test.firing("StepOutlier", 2168 + 900, 0)


def test_steps_that_are_slow_for_a_time_are_no_outliers(test: RuleTest) -> None:
    """20 minutes at 0.4 s, then 2 or 15 minutes at 6 s, and 20 minutes at 0.4 s again."""
    calm = np.full(3000, 0.4)
    for slow in (120, 900):
        test.add(step_series(np.concatenate((calm, np.full(slow // 6, 6.0), calm)), f"{slow}-s", 230))
    for after in range(0, 2000, 120):
        test.firing("StepOutlier", 1200 + after, 0)


def test_each_third_of_the_window_needs_its_share_of_the_cost(test: RuleTest) -> None:
    """The last two thirds have 9 outliers each, the first one has fewer."""
    for first, fires in ((2, 0), (6, 1)):
        took = np.full(900, 1.0)
        for third, outliers in enumerate((first, 9, 9)):
            took[300 * third + np.arange(outliers) * 30 + 20] = 4.0
        series = step_series(np.concatenate((np.full(1200, 1.0), took / took.mean())), f"{first}-first", 190)
        test.add(series)
        test.firing("StepOutlier", 2160, fires, run=f"{first}-first")


def test_an_alert_says_what_was_compared(test: RuleTest) -> None:
    test.add(halved_series(durations(5, long=3.3), "run"))
    test.describes(
        "StepOutlier",
        AT,
        WHERE,
        LONG_STEPS,
    )


@pytest.mark.parametrize(
    ("in_long_steps", "said"),
    [
        (
            0.05,
            " Its own time, without communication, explains 100% of their variance: it makes "
            "these steps long itself.",
        ),
        (
            3.25,
            " Its own time explains only 0% of their variance: it waits in these steps, for another rank "
            "or the network.",
        ),
    ],
)
def test_an_alert_names_its_rank_as_slow_or_waiting_in_the_long_steps(
    test: RuleTest, in_long_steps: float, said: str
) -> None:
    """Steps of 3.3 s among steps of 0.1 s, with the same communication, or with all of the excess in it."""
    took = durations(5, long=3.3)
    waited = np.where(took > 1, in_long_steps, 0.05)
    series = scraped_steps([in_halves(took, communication=waited)], AT // 15 + 1, "run")
    test.add(only(series, "stepscope_step_"))
    test.describes(
        "StepOutlier",
        AT,
        WHERE,
        LONG_STEPS + said,
    )


def test_steps_between_the_limit_and_the_next_bound_are_never_taken_for_outliers(test: RuleTest) -> None:
    """Limit 0.24 s, next bound 0.32 s: the 12 steps of 0.3 s may be others for all the histogram tells."""
    took = durations(12, steps=500, usual=0.1, long=0.3)
    assert took.mean() + 3 * took.std() < 0.3
    test.add(step_series(took, "run"))
    test.equals(OUTLIERS, 120, 0)
    test.equals(LOST, 120, 0)
    test.status("StepOutlier", 120, 0)


def test_of_steps_beyond_all_bounds_no_outliers_are_known(test: RuleTest) -> None:
    """The last bound is 4 hours."""
    took = durations(11, steps=200, usual=20_000, long=60_000)
    test.add(step_series(took, "endless", start=START - took.sum()))
    test.equals(LIMIT, 120, took.mean() + 3 * took.std(), tolerance=1e-3)
    test.gives_nothing(OUTLIERS, 120)
    test.status("StepOutlier", 120, 0)


def test_each_rank_and_phase_is_judged_alone(test: RuleTest) -> None:
    even, uneven = durations(0, 300), durations(15, 300)
    steps = [
        in_halves(even),
        in_halves(uneven, rank=1),
        in_halves(even, rank=1, phase="eval", start=START + 60),
    ]
    test.add(only(scraped_steps(steps, AT // 15 + 1), "stepscope_step_duration", "stepscope_samples_total"))
    test.firing("StepOutlier", AT, 1)
    test.firing("StepOutlier", AT, 1, rank="1", phase="train")
    test.equals('count(stepscope:rule_status{rule="StepOutlier"})', AT, 3)


def test_no_step_20_minutes_after_the_start_alerts_until_one_has_finished(test: RuleTest) -> None:
    late: list[Steps] = [node_steps([0.5] * 4, start=START + 1255)]
    for run, steps, end in (("late", late, None), ("never", [], None), ("gave-up", [], 1230.0)):
        test.add(only(scraped_steps(steps, 86, run, end=end), "stepscope_run_"))
    early = [node_steps([30.0], start=START + 1000)]
    test.add(only(scraped_steps(early, 86, "early"), "stepscope_run_"))
    test.status("MaxInitializationTime", 1200, 0)
    test.firing("MaxInitializationTime", 1200, 0)
    test.firing("MaxInitializationTime", 1215, 3, stage="waiting", severity="warning")
    test.status("MaxInitializationTime", 1275, 1, run="late")
    test.firing("MaxInitializationTime", 1275, 1, run="late", stage="late", severity="info")
    test.firing("MaxInitializationTime", 1275, 0, run="late", stage="waiting")
    test.firing("MaxInitializationTime", 1275, 1, run="never", stage="waiting")
    test.firing("MaxInitializationTime", 1275, 1, run="gave-up", stage="late")
    test.equals('run_instance:stepscope_initialization:seconds{run="late"}', 1275, 1255)
    test.equals('run_instance:stepscope_initialization:seconds{run="gave-up"}', 1275, 1230)
    test.status("MaxInitializationTime", 1275, 0, run="early")
    test.firing("MaxInitializationTime", 1275, 0, run="early")


SEEN_BY_DATALOADER = (
    "stepscope_dataloader_workers",
    "stepscope_step_component_seconds_total",
    "stepscope_step_duration_seconds_sum",
)


def loader(workers: int | None, phase: str = "train") -> LoaderTotals:
    return LoaderTotals(phase, workers, None, None, (0,) * (len(WAIT_BOUNDS) + 1), 0.0, None)


def test_workers_are_compared_with_cores_and_an_alert_waits_for_its_for(test: RuleTest) -> None:
    cases = {
        "few": ({0: [loader(3)], 1: [loader(3)]}, 0.6, 1),
        "few-enough": ({0: [loader(3)], 1: [loader(3)]}, 0.6, 0),
        "few-at": ({0: [loader(3)], 1: [loader(3)]}, 0.6, 0),
        "at": ({0: [loader(4)], 1: [loader(3)]}, 0.7, 0),
        "many": ({0: [loader(21)]}, 2.1, 1),
        "at-most": ({0: [loader(20)]}, 2.0, 0),
        "training-counts": ({0: [loader(8), loader(30, "eval")]}, 0.8, 0),
        "largest-other": ({0: [loader(8, "predict"), loader(2, "eval")]}, 0.8, 0),
    }
    # Of one rank only: it waits just below, at and above 10 % of its steps' time.
    waits = {"few-enough": 0.0624, "few-at": 0.0625, "few": 0.0626}
    for run, (loaders, share, fires) in cases.items():
        waited = (0.0, waits.get(run, 0.0))
        steps = [node_steps([0.625] * 820, rank=rank, data_wait=waited[rank]) for rank in (0, 1)]
        scraped = scraped_steps(steps, 34, run, instance=run, loaders=loaders)
        cores = scraped_samples(node_samples(np.zeros((1020, 10)), node=run), run)
        test.add(only(scraped, *SEEN_BY_DATALOADER))
        test.add(only(cores, "stepscope_cpus", "stepscope_samples_total"))
        test.equals(f'run_instance:stepscope_dataloader_workers_per_core:ratio{{run="{run}"}}', 180, share)
        test.status("Dataloader", 180, fires, run=run)
        test.firing("Dataloader", 60, 0, run=run)
        # The wait is known since the second evaluation, workers since the first.
        test.firing("Dataloader", 240, int(fires and share > 1), run=run)
        test.firing("Dataloader", 480, fires, run=run)
    test.add(only(scraped_samples(node_samples(np.zeros((600, 10))), "no-loader"), "stepscope_samples_total"))
    test.gives_nothing('stepscope:rule_status{rule="Dataloader",run="no-loader"}', 240)
