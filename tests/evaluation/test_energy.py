"""Energy: power over time, and nothing for the time in which no power was read."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from stepscope.evaluation.engine import evaluate
from stepscope.measurements.energy import Energy
from stepscope.runs.model import NodeSamples

from tests.support.source import INTERVAL, START, MemorySource, node_samples


def samples_with_power(watts: ArrayLike, times: ArrayLike | None = None, node: str = "node-a") -> NodeSamples:
    """Rows of power, (n, GPUs)."""
    power = np.asarray(watts, np.float32)
    samples = node_samples(np.zeros((len(power), 1)), np.zeros(power.shape), node=node)
    when = samples.times if times is None else START + np.asarray(times, np.float64)
    return replace(samples, gpu_power_watts=power, times=when)


def energy_of(*chunks: NodeSamples, chunk_rows: int | None = None) -> Energy | None:
    return evaluate(MemorySource(*chunks, chunk_rows=chunk_rows)).energy


def test_steady_power_is_power_times_the_time_between_the_first_reading_and_the_last() -> None:
    energy = energy_of(samples_with_power(np.full((241, 2), (300.0, 100.0))))
    assert energy is not None
    assert [(gpu.gpu, gpu.joules, gpu.seconds) for gpu in energy.gpus] == [
        ("GPU 0", 36_000.0, 120.0),
        ("GPU 1", 12_000.0, 120.0),
    ]
    assert energy.joules == 48_000.0
    assert energy.gpus_without == 0


def test_rising_power_is_its_mean_times_the_time() -> None:
    energy = energy_of(samples_with_power(np.linspace(100, 300, 201)[:, None]))
    assert energy is not None
    assert energy.joules == pytest.approx(200 * 100)


def test_the_time_without_readings_is_in_no_joule_and_is_said() -> None:
    watts = np.full((100, 1), 200.0)
    watts[30:60] = np.nan
    energy = energy_of(samples_with_power(watts))
    assert energy is not None
    (gpu,) = energy.gpus
    assert gpu.seconds == 49.5 - 15.5
    assert gpu.seconds_missing == 15.5
    assert gpu.joules == 200 * gpu.seconds


def test_a_gap_of_the_sampler_is_not_bridged_but_a_missed_tick_is() -> None:
    times = np.concatenate((np.arange(10), np.arange(11, 20), np.arange(100, 110))) * INTERVAL
    energy = energy_of(samples_with_power(np.full((len(times), 1), 100.0), times))
    assert energy is not None
    (gpu,) = energy.gpus
    assert (gpu.seconds, gpu.seconds_missing) == (19 * INTERVAL + 9 * INTERVAL, 81 * INTERVAL)
    assert gpu.joules == 100 * gpu.seconds


def test_gpus_whose_power_was_never_read_are_counted_and_not_taken_for_zero() -> None:
    energy = energy_of(samples_with_power(np.tile((250.0, np.nan), (50, 1))))
    assert energy is not None
    assert [gpu.gpu for gpu in energy.gpus] == ["GPU 0"]
    assert energy.gpus_without == 1


def test_one_reading_is_no_energy() -> None:
    assert energy_of(samples_with_power([[100.0]])) is None


def test_no_power_is_no_energy() -> None:
    assert energy_of(samples_with_power(np.full((50, 2), np.nan))) is None


def test_nodes_add_up() -> None:
    both = energy_of(
        samples_with_power(np.full((101, 1), 100.0)), samples_with_power(np.full((101, 1), 60.0), node="b")
    )
    assert both is not None
    assert both.joules == 160 * 50
    assert [gpu.node for gpu in both.gpus] == ["b", "node-a"]


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(100, 5000))
def test_energy_does_not_depend_on_the_chunks_in_which_it_comes(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    watts = np.where(random.random(9000) < 0.1, np.nan, random.uniform(0, 700, 9000))[:, None]
    whole, cut = (energy_of(samples_with_power(watts), chunk_rows=n) for n in (None, rows))
    assert whole == cut
