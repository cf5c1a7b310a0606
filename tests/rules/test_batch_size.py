"""BatchSize: cores, GPU and its memory are all used little over the last window."""

from typing import Any

import numpy as np
import pytest
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate

from tests.rules.test_low_gpu_utilization import assert_box_plot
from tests.support.few_rules import only
from tests.support.source import MemorySource, node_samples

NAN = float("nan")


def analysis(gpu: Any, memory: Any = 0.3, cpu: Any = 0.3, **parameters: float) -> list[RuleResult]:
    """`gpu` is (n, GPUs); the others are one value for all, or arrays."""
    gpus = np.asarray(gpu, np.float32)
    cores = np.broadcast_to(cpu, (len(gpus), 2)) if np.ndim(cpu) == 0 else cpu
    samples = node_samples(cores, gpus, gpu_memory=np.broadcast_to(memory, gpus.shape))
    settings = only("BatchSize", "LowGPUUtilization").parse(
        [f"BatchSize.{name}={value}" for name, value in parameters.items()]
    )
    return evaluate(MemorySource(samples), settings).rules


def result(*readings: Any, **parameters: Any) -> RuleResult:
    return next(found for found in analysis(*readings, **parameters) if found.rule == "BatchSize")


@pytest.mark.parametrize(
    ("gpu", "memory", "cpu", "status"),
    [
        (0.69, 0.69, 0.69, "found"),
        (0.70, 0.69, 0.69, "healthy"),
        (0.69, 0.70, 0.69, "healthy"),
        (0.69, 0.69, 0.70, "healthy"),
        (0.71, 0.0, 0.0, "healthy"),
        (0.0, 0.71, 0.0, "healthy"),
        (0.0, 0.0, 0.71, "healthy"),
        (0.0, 0.0, 0.0, "found"),
        (1.0, 1.0, 1.0, "healthy"),
    ],
)
def test_all_three_must_be_below_70_percent(gpu: float, memory: float, cpu: float, status: str) -> None:
    assert result(np.full((1001, 1), gpu), memory, cpu).status == status


@pytest.mark.parametrize("parameter", ["gpu_threshold_p95", "gpu_memory_threshold_p95", "cpu_threshold_p95"])
@pytest.mark.parametrize(("bound", "status"), [(29, "healthy"), (30, "healthy"), (31, "found")])
def test_each_threshold_can_be_set(parameter: str, bound: float, status: str) -> None:
    assert result(np.full((1001, 1), 0.3), **{parameter: bound}).status == status


def test_the_mean_of_the_cores_decides_not_the_busiest() -> None:
    """One pinned core of 192 leaves the node all but idle."""
    cores = np.zeros((1001, 192))
    cores[:, 7] = 1.0
    assert result(np.full((1001, 1), 0.2), 0.2, cores).status == "found"


def test_a_sample_that_lacks_one_of_the_three_is_no_reading() -> None:
    memory = np.full((2200, 1), 0.3)
    memory[1::2] = NAN
    found = result(np.full((2200, 1), 0.2), memory)
    assert (found.status, found.triggered) == ("found", 3)  # 1,001 readings are there after 2,001 samples
    assert result(np.full((2200, 1), 0.2), np.full((2200, 1), NAN)).status == "not enough data"


def test_details_are_box_plots_of_the_gpu_its_memory_and_the_cores() -> None:
    random = np.random.default_rng(1)
    gpu, memory, cores = (np.round(random.beta(2, 9, (3000, 1)), 2) for _ in range(3))
    details = result(gpu, memory, cores).details["node-a"]
    for name, values in (("GPU 0", gpu), ("GPU 0_memory", memory), ("cpu", cores)):
        assert_box_plot(details[name], values)


def test_it_explains_low_utilisation_of_the_same_gpu_and_is_listed_before_it() -> None:
    fired = [found for found in analysis(np.full((1500, 1), 0.2)) if found.status == "found"]
    assert [found.rule for found in fired] == ["BatchSize", "LowGPUUtilization"]
    assert fired[0].seconds_lost == pytest.approx(0.8 * 1500 * 0.5, rel=1e-3)


def test_a_pinned_core_is_the_cause_and_listed_before_it() -> None:
    cores = np.zeros((1500, 8))
    cores[:, 3] = 1.0
    fired = [found for found in analysis(np.zeros((1500, 1)), 0.2, cores) if found.status == "found"]
    assert [found.rule for found in fired] == ["CPUBottleneck", "LowGPUUtilization", "BatchSize"]
