"""Snapshots and steps made of counters count as those that were counted."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stepscope.exporter.sampling.sample_tally import GRID
from stepscope.measurements.own_cores import LimitedCores
from stepscope.runs.model import COMPONENTS, NodeSamples
from stepscope.runs.prometheus.api import Series
from stepscope.runs.prometheus.samples import SampleEstimator
from stepscope.runs.prometheus.series import Gains, Scrapes
from stepscope.runs.prometheus.steps import RankSteps
from stepscope.training.layout import STEP_BOUNDS

from tests.support.scrapes import SCRAPE_SECONDS, scraped_samples, scraped_steps
from tests.support.source import START, node_samples, node_steps

few_examples = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32 - 1)
TARGET = {"job": "stepscope", "instance": "node-a"}


def as_scrapes(series: Mapping[str, Sequence[float | None]]) -> Scrapes:
    """What a Prometheus has that stored these series, a value a scrape."""
    count = max(map(len, series.values()))
    times = START + SCRAPE_SECONDS * np.arange(count, dtype=np.float64)
    found = []
    for key, values in series.items():
        name, _, labels = key.partition("{")
        there = [index for index, value in enumerate(values) if value is not None]
        found.append(
            Series(
                name,
                dict(re.findall(r'(\w+)="([^"]*)"', labels)),
                times[there],
                np.array([values[index] for index in there], np.float64),
            )
        )
    return Scrapes(times, found, TARGET)


def random_samples(seed: int, rows: int = 120) -> NodeSamples:
    """Whole percents, as NVML gives them; GPUs are idle together, one after the other, or never."""
    random = np.random.default_rng(seed)
    gpus, cores = int(random.integers(1, 5)), int(random.integers(1, 9))

    def percents(columns: int, level: float, spread: float) -> np.ndarray:
        return np.round(np.clip(random.normal(level, spread, (rows, columns)), 0, 100)) / 100

    gpu = percents(gpus, random.uniform(0, 100), random.uniform(0, 60))
    if random.random() < 0.5:  # a pipeline: always another one is idle
        gpu[np.arange(rows), np.arange(rows) % gpus] = 0
    gpu[random.random((rows, gpus)) < random.choice([0.0, 0.02])] = np.nan
    memory = percents(gpus, random.uniform(10, 90), random.uniform(0, 20))
    return node_samples(
        percents(cores, random.uniform(0, 100), random.uniform(0, 40)),
        gpu,
        io_wait=percents(cores, random.uniform(0, 60), random.uniform(0, 30)),
        gpu_memory=np.where(np.isnan(gpu), np.nan, memory),
    )


def scraped(samples: NodeSamples) -> dict[str, list[float | None]]:
    series = scraped_samples(samples, "run", "node-a")
    waits = {
        key.replace("cpu_utilization_ratio", "cpu_io_wait_ratio"): values
        for key, values in series.items()
        if key.startswith("stepscope_cpu_utilization_ratio")
    }
    return series | waits


def made_up(samples: NodeSamples) -> NodeSamples:
    found = SampleEstimator("node-a", 0.5).add(as_scrapes(scraped(samples)), "run")
    assert found is not None
    return found


def starved(cores: np.ndarray, gpu: np.ndarray) -> np.ndarray:
    """For each pair of bounds, the snapshots with some core above the one and some GPU below the other."""
    return np.array(
        [
            np.count_nonzero((cores > above).any(axis=1) & (gpu < below).any(axis=1))
            for above in GRID
            for below in GRID
        ]
    )


@few_examples
@given(seeds)
def test_every_pair_of_bounds_starves_as_many_snapshots_but_for_one(seed: int) -> None:
    samples = random_samples(seed)
    found = made_up(samples)
    assert len(found) == len(samples)
    # Over 900 random runs there was one in which a count differed, by one snapshot of 120.
    for cores in ("cpu", "io_wait"):
        mine, its = starved(getattr(found, cores), found.gpu), starved(getattr(samples, cores), samples.gpu)
        assert np.abs(mine - its).max() <= 1, cores


def test_the_time_for_which_a_limit_stopped_the_run_is_known_to_a_scrape() -> None:
    """Two of four cores of the limit were taken away, from the second to the last of five scrapes."""
    series: dict[str, list[float | None]] = {
        'stepscope_samples_total{run="run"}': [30, 60, 90, 120, 150],
        'stepscope_run_cpu_limit_cores{run="run"}': [4, 4, 4, 4, 4],
        'stepscope_run_cpu_throttled_seconds_total{run="run"}': [0, 0, 30, 60, 90],
    }
    found = SampleEstimator("node-a", 0.5).add(as_scrapes(series), "run")
    assert found is not None
    limited = LimitedCores()
    limited.observe(found, np.array([len(found)]))
    assert limited.stopped.part == 90
    assert limited.stopped.whole == pytest.approx(4 * 149 * 0.5)
    assert np.isnan(found.of_run("other_cpu_seconds")).all()


def readings(samples: NodeSamples, field: str) -> list[np.ndarray]:
    """Of each GPU, in ascending order."""
    return [np.sort(column[~np.isnan(column)]) for column in getattr(samples, field).T]


@few_examples
@given(seeds)
def test_means_and_distributions_of_gpu_memory_are_kept(seed: int) -> None:
    samples = random_samples(seed)
    made, real = readings(made_up(samples), "gpu_memory"), readings(samples, "gpu_memory")
    for mine, its in zip(made, real, strict=True):
        assert len(mine) == len(its)
        assert np.abs(mine - its).max() < 0.021  # the width of a bin, 2 %
        assert abs(mine.mean() - its.mean()) < 0.002


@few_examples
@given(seeds)
def test_means_of_gpus_are_kept_to_three_points(seed: int) -> None:
    """Some readings are moved, so that as many snapshots have some GPU below each bound as were counted."""
    samples = random_samples(seed)
    made, real = readings(made_up(samples), "gpu"), readings(samples, "gpu")
    for mine, its in zip(made, real, strict=True):
        assert len(mine) == len(its)
        assert abs(mine.mean() - its.mean()) < 0.03


@few_examples
@given(seeds)
def test_the_mean_of_the_cores_is_kept(seed: int) -> None:
    samples = random_samples(seed)
    assert (
        np.abs(np.sort(made_up(samples).cpu_mean) - np.sort(samples.cpu_mean)).mean() < 0.1
    )  # 0.049 at most over 900 runs


def test_counts_of_before_the_first_scrape_that_is_stored_are_left_out() -> None:
    series = scraped(random_samples(1, rows=600))
    late = as_scrapes({key: values[15:] for key, values in series.items()})
    node = SampleEstimator("node-a", 0.5)
    found = node.add(late, "run")
    assert found is not None
    assert (node.before, len(found)) == (450, 150)


def test_pieces_of_scrapes_give_what_the_whole_gives() -> None:
    samples = random_samples(2, rows=300)
    series = scraped(samples)
    node = SampleEstimator("node-a", 0.5)
    parts = []
    for first in range(0, 11, 4):
        times = START + SCRAPE_SECONDS * np.arange(first, min(first + 4, 11), dtype=np.float64)
        piece = as_scrapes({key: values[first : first + 4] for key, values in series.items()})
        piece.times = times
        parts.append(node.add(piece, "run"))
    whole = made_up(samples)
    assert np.concatenate([part.gpu for part in parts if part is not None]).tolist() == whole.gpu.tolist()
    assert np.concatenate([part.cpu for part in parts if part is not None]).tolist() == whole.cpu.tolist()


def test_a_counter_that_began_anew_has_gained_what_it_has() -> None:
    gains = Gains()
    assert gains.of("a", np.array([3.0, 5.0, np.nan, 2.0, 2.5])).tolist() == [3, 2, 0, 2, 0.5]
    assert gains.of("a", np.array([4.0])).tolist() == [1.5]
    assert Gains(first=None).of("a", np.array([3.0, 5.0])).tolist() == [0, 2]


def test_a_first_bucket_is_zero_until_it_is_scraped() -> None:
    scrapes = as_scrapes(
        {'h_bucket{le="1"}': [None, None, 1, 3], 'h_bucket{le="2"}': [4, 4, 6, 8], "h_count": [5, 6, 8, 10]}
    )
    for gains in (Gains(first=None), Gains()):
        buckets, _, _ = gains.histogram(scrapes, "h", (1.0, 2.0))
        assert buckets[1:].tolist() == [[0, 0, 1], [1, 1, 0], [2, 0, 0]]


@pytest.mark.parametrize("value", [-1.0, -1e300, 1e300, np.inf, -np.inf])
def test_a_value_that_no_counter_has_is_a_scrape_without_the_counter(value: float) -> None:
    assert Gains().of("a", np.array([3.0, value, 5.0])).tolist() == [3, 0, 2]


@few_examples
@given(seeds)
def test_steps_keep_their_number_sum_buckets_and_components(seed: int) -> None:
    random = np.random.default_rng(seed)
    took = random.lognormal(np.log(random.uniform(0.05, 0.5)), random.uniform(0.01, 0.5), 200)
    took *= min(1.0, 280 / took.sum())
    steps = node_steps(took, forward=took * 0.5, communication=took * 0.25)
    scrapes = as_scrapes(scraped_steps([steps], 21, "run", "node-a"))
    found = RankSteps("node-a", 0, True, START).add(scrapes, "run")
    assert found is not None
    assert len(found) == len(took)
    # Fitted: over 600 random runs the sum was off by 0.004 %, the standard deviation by 4.8 % at most.
    assert np.isclose(found.durations.sum(), took.sum(), rtol=0.001)
    buckets = [np.bincount(np.searchsorted(STEP_BOUNDS, its)).tolist() for its in (found.durations, took)]
    assert buckets[0] == buckets[1]
    assert np.allclose(found.components.sum(axis=0), steps.components.sum(axis=0))
    assert np.isclose(found.durations.std(), took.std(), rtol=0.1)
    assert found.components[:, COMPONENTS.index("forward")].min() > 0
    assert (np.diff(found.starts + found.durations) > 0).all()


@pytest.mark.parametrize("scrapes_before", [0, 1])
def test_steps_begin_with_the_first_step_also_if_a_scrape_was_before_it(scrapes_before: int) -> None:
    steps = node_steps([0.5] * 4)
    scraped = scraped_steps([steps], 3, "run", "node-a")
    first = as_scrapes({name: [None] * scrapes_before + values[1:] for name, values in scraped.items()})
    began = float(first.times[scrapes_before]) - 3.0
    found = RankSteps("node-a", 0, True, began).add(first, "run")
    assert found is not None
    assert found.starts[0] >= began
