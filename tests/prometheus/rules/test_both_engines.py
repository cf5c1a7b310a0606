"""Prometheus and numpy held together: random runs, judged by both at the same samples.

A call of promtool takes its time, so each example is a batch of runs.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.settings import Settings
from stepscope.measurements.load import NodeLoad
from stepscope.training.layout import STEP_BOUNDS

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest
from tests.support.scrapes import only, scraped_samples, scraped_steps
from tests.support.source import MemorySource, node_samples, node_steps

pytestmark = needs_prometheus

# 12 minutes are three evaluations of the slowest rules: the last one sees all samples.
ROWS = 1440
AT = 720
WINDOW = 510  # of whole scrapes
RUNS = 12  # in a batch

few_examples = settings(
    max_examples=settings().max_examples // 20,  # a batch in `make test`
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a seed does not get simpler by being smaller
)
seeds = st.integers(0, 2**32 - 1)


def random_samples(seed: int) -> Any:
    """Two GPUs and three cores in whole percents, as NVML gives them, at a load of the run's own."""
    random = np.random.default_rng(seed)

    def percents(columns: int, level: float, spread: float) -> np.ndarray:
        values = random.normal(level, spread, (ROWS, columns))
        idle = random.random((ROWS, 1)) < random.choice([0, 0.04, 0.06, 0.3, 0.5, 0.6])
        return np.round(np.clip(np.where(idle, random.choice([0, 5, 95, 100]), values), 0, 100)) / 100

    gpu = percents(2, random.uniform(30, 100), random.uniform(0, 30))
    gpu[random.random((ROWS, 2)) < random.choice([0.0, 0.01])] = np.nan
    return node_samples(
        percents(3, random.uniform(30, 100), random.uniform(0, 30)),
        gpu,
        io_wait=percents(3, random.uniform(0, 60), random.uniform(0, 30)),
        gpu_memory=percents(2, random.uniform(20, 100), random.uniform(0, 10)),
    )


def judged(samples: Any, *words: str) -> dict[str, RuleResult]:
    """numpy's verdicts on a run that is one scan long: only what is true at its end."""
    analysis = evaluate(MemorySource(samples), Settings.parse(words), scan_interval=AT * 10)
    return {result.rule: result for result in analysis.rules}


@few_examples
@given(seeds)
def test_shares_of_starved_samples_are_the_same(rules: Path, tmp_path: Path, seed: int) -> None:
    test = RuleTest(rules)
    for number in range(RUNS):
        samples = random_samples(seed + number)
        run = f"run-{number}"
        test.add(only(scraped_samples(samples, run), "stepscope_samples_total", "stepscope_gpu_starved"))
        verdicts = judged(samples)
        for cause, rule in (("cpu", "CPUBottleneck"), ("io", "IOBottleneck")):
            verdict = verdicts[rule]
            share = verdict.violations / verdict.datapoints
            test.equals(f'run_instance:stepscope_{cause}_starved:ratio{{run="{run}"}}', AT, share)
            test.status(rule, AT, int(verdict.status == "found"), run=run)
    test.run(tmp_path)


def at_or_below(readings: np.ndarray, bound: float, quantile: float) -> bool:
    """Whether more than `quantile` of the readings are at or below a bound."""
    return bool(np.count_nonzero(readings <= bound + 1e-7) > quantile * len(readings))


def is_clear(readings: np.ndarray, bound: float, quantile: float) -> bool:
    """Whether the readings around a percentile lie on the same side of a bound, none of them on it."""
    ordered = np.sort(readings)
    place = quantile * (len(ordered) - 1)
    around = ordered[max(math.floor(place) - 1, 0) : math.ceil(place) + 2]
    return bool((around < bound - 1e-6).all() or (around > bound + 1e-6).all())


@few_examples
@given(seeds)
def test_percentiles_of_the_window_are_on_the_same_side(rules: Path, tmp_path: Path, seed: int) -> None:
    """By the counts always; by numpy's percentiles where no reading around them lies on the bound."""
    test = RuleTest(rules)
    clear = 0
    for number in range(RUNS):
        samples = random_samples(seed + number)
        run = f"run-{number}"
        test.add(only(scraped_samples(samples, run), "stepscope_gpu_utilization_samples"))
        for gpu in (0, 1):
            readings = samples.gpu[-WINDOW:, gpu].astype(float)
            readings = readings[~np.isnan(readings)]
            low = at_or_below(readings, 0.7, 0.95)
            idle, idle_live = (at_or_below(readings, 0.1, share) for share in (0.05, 0.15))
            test.status("LowGPUUtilization", AT, int(low or idle_live), run=run, gpu=str(gpu))
            if is_clear(readings, 0.7, 0.95) and all(
                is_clear(readings, 0.1, share) for share in (0.05, 0.15)
            ):
                clear += 1
                alone = node_samples(samples.cpu, samples.gpu[:, [gpu]])
                verdict = judged(alone, f"LowGPUUtilization.window={len(readings)}")["LowGPUUtilization"]
                assert (verdict.status == "found") == (low or idle)
                assert any(band.lasts for band in verdict.bands) == (low or idle_live)
    assert clear, "no run was clear enough to be compared with percentiles"
    test.run(tmp_path)


def distance_at_tenths(gpus: np.ndarray) -> tuple[float, bool]:
    """The widest gap between two GPUs' cumulative distributions at any tenth; whether it is exact.

    If GPUs have different numbers of readings, it is less by what these may explain.
    """
    readings = [np.round(gpu[~np.isnan(gpu)].astype(float), 7) for gpu in gpus.T]
    most, least = (pick(len(gpu) for gpu in readings) for pick in (max, min))
    gaps: list[int] = []
    for bound in np.arange(1, 10) / 10:
        at_or_below = [np.count_nonzero(gpu <= round(float(bound), 7)) for gpu in readings]
        gaps.append(int(max(at_or_below) - min(at_or_below)))
    return max(max(gaps) - (most - least), 0) / most, most == least


@few_examples
@given(seeds)
def test_distances_between_gpus_are_the_same(rules: Path, tmp_path: Path, seed: int) -> None:
    test = RuleTest(rules)
    for number in range(RUNS):
        samples = random_samples(seed + number)
        run = f"run-{number}"
        names = ("stepscope_samples_total", "stepscope_gpu_utilization_samples")
        test.add(only(scraped_samples(samples, run), *names))
        distance, exact = distance_at_tenths(samples.gpu)
        test.equals(f'run_instance:stepscope_gpu_load_distance:max{{run="{run}"}}', AT, distance)
        test.status("LoadBalancing", AT, int(round(distance, 9) > 0.2), run=run)
        counted = NodeLoad()
        ((_, view),) = counted.observe(samples, np.array([len(samples)]))
        assert view.distances[0] == pytest.approx(distance) if exact else view.distances[0] >= distance
    test.run(tmp_path)


@few_examples
@given(seeds)
def test_outliers_are_those_of_numpy_or_fewer_by_what_the_histogram_cannot_tell(
    rules: Path, tmp_path: Path, seed: int
) -> None:
    test = RuleTest(rules)
    for number in range(RUNS):
        random = np.random.default_rng(seed + number)
        took = random.lognormal(np.log(random.uniform(0.005, 0.2)), random.uniform(0.01, 0.5), 400)
        took[random.permutation(400)[: random.integers(0, 30)]] *= random.uniform(2, 20)
        took *= min(1.0, 500 / took.sum())  # all within the 12 minutes
        run = f"run-{number}"
        test.add(only(scraped_steps([node_steps(took)], 49, run), "stepscope_step_duration"))
        limit = took.mean() + 3 * took.std()
        bound = next(bound for bound in STEP_BOUNDS if bound >= limit)
        told = int(np.count_nonzero(took > bound))
        (verdict,) = (
            one for one in evaluate(MemorySource(node_steps(took))).rules if one.rule == "StepOutlier"
        )
        assert told <= verdict.violations
        assert verdict.violations - told == np.count_nonzero((took > limit) & (took <= bound))
        series = f'run_instance_rank_phase:stepscope_step_outliers:count{{run="{run}"}}'
        test.equals(series, AT, told)
        if verdict.status != "found":  # what the histogram cannot tell never makes it fire
            test.status("StepOutlier", AT, 0, run=run)
    test.run(tmp_path)
