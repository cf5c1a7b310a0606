"""What alerts say that they compared: the culprit's value and those of its peers."""

import numpy as np

from tests.prometheus.rules.test_gpu_rules import TOTAL, labels, readings
from tests.prometheus.rules.test_straggler_rules import METRICS, straggling
from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest, Values
from tests.support.scrapes import only, scraped_samples, scraped_steps
from tests.support.source import node_samples, node_steps

pytestmark = needs_prometheus

WHERE = {"job": "stepscope", "instance": "node-a", "run": "run"}
STEP_METRICS = ("stepscope_step_duration_seconds", "stepscope_step_component", "stepscope_samples_total")


def test_a_straggler_is_compared_with_its_peers(test: RuleTest) -> None:
    test.add(only(scraped_steps(straggling(1.6), 25), *METRICS))
    test.describes(
        "Straggler",
        360,
        {**WHERE, "rank": "2"},
        "Rank 2 of run run on node-a is slow by itself, and the other ranks wait for it: its own time per "
        "step is 300ms longer than their median (800ms and 500ms), and it waits 300ms less (fires above 5 % "
        "of the step). Most of it is forward: 300ms.",
    )


def test_a_rank_that_waits_is_compared_with_all_ranks_of_the_run(test: RuleTest) -> None:
    steps = [
        node_steps([2.0] * 100, rank=rank, data_wait=[2 * share] * 100)
        for rank, share in enumerate((0.01, 0.6, 0.05))
    ]
    test.add(only(scraped_steps(steps, 14), *STEP_METRICS))
    test.describes(
        "DataStarved",
        180,
        {**WHERE, "rank": "1"},
        "Rank 1 of run run on node-a waited for data for 60% of its step time in the last 15 minutes (fires "
        "above 20 %). All ranks of the run: 1% to 60%.",
    )


def test_a_rank_without_peers_is_compared_with_none(test: RuleTest) -> None:
    test.add(only(scraped_steps([node_steps([2.0] * 100, data_wait=[1.0] * 100)], 14), *STEP_METRICS))
    test.describes(
        "DataStarved",
        180,
        {**WHERE, "rank": "0"},
        "Run run on node-a waited for data for 50% of its step time in the last 15 minutes (fires "
        "above 20 %).",
    )


def test_unbalanced_gpus_are_named_with_their_means(test: RuleTest) -> None:
    load = np.tile([0.9, 0.85, 0.3], (1500, 1))
    samples = scraped_samples(node_samples(np.zeros((1500, 1)), load), "run")
    test.add(only(samples, "stepscope_gpu_utilization_samples", "stepscope_samples_total"))
    test.describes(
        "LoadBalancing",
        720,
        WHERE,
        "In the last 15 minutes of run run, the distributions of the utilisation of two GPUs of node-a are "
        "1.00 apart (fires above 0.2; 0: identical, 1: nothing in common). GPU 0 was 90% busy on average, "
        "GPU 2 was 30% busy on average.",
    )


def test_a_hot_gpu_is_compared_with_the_others_and_its_temperature_is_named(test: RuleTest) -> None:
    heat: list[Values] = [[15.0 * share * number for number in range(61)] for share in (0.0, 0.2)]
    series: dict[str, Values] = {}
    for gpu, (seconds, celsius) in enumerate(zip(heat, (61.0, 93.0), strict=True)):
        series |= {
            key.replace('gpu="0"', f'gpu="{gpu}"'): counts for key, counts in readings("node-a", 61).items()
        }
        where = labels("node-a", gpu=str(gpu))
        series[f'stepscope_gpu_throttle_seconds_total{{{where},reason="sw_thermal"}}'] = seconds
        series[f"stepscope_gpu_temperature_celsius{{{where}}}"] = [celsius] * 61
    test.add(series)
    test.describes(
        "ThermalThrottling",
        840,
        {**WHERE, "gpu": "1"},
        "In run run, heat throttled GPU 1 of node-a for 20% of the last 15 minutes (fires above 5 %). All "
        "GPUs of the run: 0% to 20%. It is at 93 °C.",
    )


def test_a_full_gpu_is_compared_with_the_others(test: RuleTest) -> None:
    series: dict[str, Values] = {}
    for gpu, used in enumerate((0.4, 0.96)):
        series |= {
            key.replace('gpu="0"', f'gpu="{gpu}"'): counts for key, counts in readings("node-a", 41).items()
        }
        where = labels("node-a", gpu=str(gpu))
        series[f"stepscope_gpu_memory_used_bytes{{{where}}}"] = [TOTAL * used] * 41
        series[f"stepscope_gpu_memory_total_bytes{{{where}}}"] = [TOTAL] * 41
    test.add(series)
    test.describes(
        "GPUMemoryNearlyFull",
        480,
        {**WHERE, "gpu": "1", "trouble": "full"},
        "In run run, 96% of the memory of GPU 1 of node-a is in use (fires above 95 %). All GPUs of the run: "
        "40% to 96%.",
    )
