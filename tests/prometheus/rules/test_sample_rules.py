"""Rules over sample counters, in promtool: the inputs of the numpy tests, counted as the exporter counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stepscope.common import PUBLIC_DOCS

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest
from tests.support.scrapes import Series, of_run, only, scraped_samples
from tests.support.source import node_samples

pytestmark = needs_prometheus

NAN = float("nan")
ROWS = 1080
BEFORE, AT = 480, 540  # scrapes that see 960 and 1080 samples: patience is 1000
LATER = AT + 480  # fluctuation has lasted for 8 minutes
BOTTLENECKS = pytest.mark.parametrize("rule", ["CPUBottleneck", "IOBottleneck"])
CORE_LIMIT = {"CPUBottleneck": 0.9, "IOBottleneck": 0.5}


def starving(rule: str, cores: Any, gpus: Any, run: str) -> Series:
    """`cores` are of the reading that the rule looks at."""
    of_cores = (cores, None) if rule == "CPUBottleneck" else (np.zeros_like(cores), cores)
    samples = node_samples(of_cores[0], gpus, io_wait=of_cores[1])
    return only(scraped_samples(samples, run), "stepscope_samples_total", "stepscope_gpu_starved")


@BOTTLENECKS
def test_it_fires_after_its_patience_above_its_threshold_and_not_at_it(test: RuleTest, rule: str) -> None:
    for run, concerned in (("at", 540), ("above", 541)):  # of the 1080 that the scrape sees
        gpus = np.ones((ROWS, 2))
        gpus[np.random.default_rng(1).permutation(ROWS)[:concerned], 1] = 0.0
        test.add(starving(rule, np.ones((ROWS, 2)), gpus, run))
        test.equals(
            f"run_instance:stepscope_{rule[:-10].lower()}_starved:ratio{{run='{run}'}}", AT, concerned / ROWS
        )
    test.status(rule, BEFORE, 0)
    test.firing(rule, BEFORE, 0)
    for run, fires in (("at", 0), ("above", 1)):
        test.status(rule, AT, fires, run=run)
        test.firing(rule, AT, fires, run=run)


@BOTTLENECKS
def test_a_sample_counts_only_strictly_beyond_both_thresholds(test: RuleTest, rule: str) -> None:
    cases = [(+0.01, -0.01, 1), (0.0, -0.01, 0), (-0.01, -0.01, 0), (+0.01, 0.0, 0), (+0.01, +0.01, 0)]
    for number, (core, gpu, fires) in enumerate(cases):
        cores, gpus = np.full((ROWS, 2), CORE_LIMIT[rule] + core), np.full((ROWS, 1), 0.1 + gpu)
        test.add(starving(rule, cores, gpus, f"case-{number}"))
        test.status(rule, AT, fires, run=f"case-{number}")


@BOTTLENECKS
def test_with_another_gpu_threshold_zeros_that_the_exporter_leaves_out_count(
    rule: str, rendered: Callable[..., Path], tmp_path: Path
) -> None:
    test = RuleTest(rendered(f"{rule}.gpu_threshold=30") / "stepscope.yml")
    for gpu, fires in ((0.05, 1), (0.29, 1), (0.3, 0), (0.95, 0)):
        test.add(starving(rule, np.ones((ROWS, 2)), np.full((ROWS, 1), gpu), f"gpu-{gpu}"))
        test.status(rule, AT, fires, run=f"gpu-{gpu}")
    test.run(tmp_path)


@BOTTLENECKS
def test_one_pinned_core_of_192_and_one_idle_gpu_of_8_is_a_bottleneck_and_mixed_samples_do_not_count(
    test: RuleTest, rule: str
) -> None:
    cores, gpus = np.zeros((ROWS, 192)), np.ones((ROWS, 8))
    cores[:, 77], gpus[:, 5] = 1.0, 0.0
    test.add(starving(rule, cores, gpus, "pinned"))
    cores, gpus = np.zeros((ROWS, 1)), np.ones((ROWS, 1))
    cores[::2], gpus[1::2] = 1.0, 0.0
    test.add(starving(rule, cores, gpus, "never-together"))
    test.firing(rule, AT, 1, run="pinned")
    test.status(rule, AT, 0, run="never-together")


@BOTTLENECKS
def test_missing_readings_are_neither_high_nor_low_and_without_a_gpu_there_is_no_status(
    test: RuleTest, rule: str
) -> None:
    test.add(starving(rule, np.full((ROWS, 2), NAN), np.zeros((ROWS, 1)), "no-cores"))
    test.add(starving(rule, np.ones((ROWS, 2)), np.full((ROWS, 1), NAN), "no-gpu-reading"))
    test.add(starving(rule, np.ones((ROWS, 2)), np.empty((ROWS, 0)), "no-gpu"))
    test.status(rule, AT, 0, run="no-cores")
    test.gives_nothing(f"stepscope:rule_status{{rule='{rule}',run!='no-cores'}}", AT)
    test.gives_nothing(f"run_instance:stepscope_{rule[:-10].lower()}_starved:ratio{{run='no-gpu'}}", AT)


def first_step(run: str, seconds: float, until: float) -> Series:
    """Returns the series of a run with its first step so many seconds after its start."""
    ages = [15.0 * scrape for scrape in range(int(until / 15) + 1)]
    of_run = f'{{job="stepscope",instance="node-a",run="{run}"}}'
    return {
        f"stepscope_run_age_seconds{of_run}": [*ages],
        f"stepscope_run_start_time_seconds{of_run}": [1.0] * len(ages),
        f"stepscope_run_first_step_time_seconds{of_run}": [
            None if age < seconds else 1.0 + seconds for age in ages
        ],
    }


@BOTTLENECKS
def test_what_happens_before_the_first_step_is_no_bottleneck_unless_it_lasts_for_20_minutes(
    test: RuleTest, rule: str
) -> None:
    """The first run loads for 8 minutes, the second starves for ever, the third has no step in 25 minutes."""
    minutes = 40
    minute = np.arange(120 * minutes) / 120
    for run, starves, start in (
        ("loads", minute < 8, 8),
        ("starves", minute >= 0, 8),
        ("late", minute < 25, 25),
    ):
        cores, gpus = np.ones((len(minute), 2)), np.where(starves, 0.0, 1.0).reshape(-1, 1)
        test.add(starving(rule, cores, gpus, run))
        test.add(first_step(run, 60 * start, 60 * minutes))
    for each in range(minutes):
        test.firing(rule, 60 * each, 0, run="loads")
    for each, of_starving, of_late in ((18, 0, 0), (24, 1, 1), (34, 1, 0)):
        test.firing(rule, 60 * each, of_starving, run="starves")
        test.firing(rule, 60 * each, of_late, run="late")


def test_debuggers_published_run_alerts_with_its_numbers_and_words(test: RuleTest) -> None:
    """3,019 samples of which 2,129 were bottlenecks: 70.52 %; the alert shows the last 15 minutes."""
    cores, gpus = np.full((3030, 8), 0.14), np.full((3030, 1), 0.6)
    concerned = np.random.default_rng(2129).permutation(3000)[:2116]
    cores[concerned, 3], gpus[concerned] = 0.97, 0.04
    in_window = f"{100 * np.mean(gpus[1200:3000] < 0.1):.4g}"
    test.add(starving("CPUBottleneck", cores, gpus, "published"))
    where = {"run": "published", "instance": "node-a", "job": "stepscope"}
    test.alerts(
        "CPUBottleneck",
        100 * 15,
        {
            "labels": {
                "rule": "CPUBottleneck",
                "severity": "warning",
                "audience": "owner",
                "kind": "cause",
                "symptom": "idle GPUs",
                "scope": "node",
                **where,
            },
            "annotations": {
                "summary": "GPUs of node-a idle while a core is busy",
                "description": "On node-a, a core was above 90 % while a GPU was below 10 % in "
                f"{in_window}% of the samples of the last 15 minutes of run published (fires above 50 %).",
                "recommendation": "If other cores are free, give the data loader more workers and let it "
                "prefetch. If all are full, make the transform cheaper or move it to the GPU.",
                "runbook_url": f"{PUBLIC_DOCS}/heuristics.md#cpubottleneck",
                "value": f"{in_window}%",
                "value_order": f"{np.mean(gpus[1200:3000] < 0.1):024.6f}",
            },
        },
    )


def gpu_series(gpu: Any, run: str, **more: Any) -> Series:
    samples = node_samples(np.zeros((len(gpu), 1)), gpu, **more)
    return only(
        scraped_samples(samples, run),
        "stepscope_gpu_utilization",
        "stepscope_gpu_memory",
        "stepscope_cpu",
        "stepscope_samples_total",
    )


def mixed(rows: int, high: float, low: float, share_low: float) -> np.ndarray:
    """Readings of two kinds, evenly mixed."""
    return np.where(np.arange(rows) % 100 < 100 * share_low, low, high).reshape(rows, 1)


def test_low_gpu_utilization_of_the_cases_of_its_numpy_tests(test: RuleTest) -> None:
    """Alerts on fluctuation need 15 % of the window, where the whole run needs Debugger's 5 %."""
    rows = 2 * LATER
    cases = {
        "0.69": (np.full((rows, 1), 0.69), "under-utilised"),
        "0.71": (np.full((rows, 1), 0.71), None),
        "0": (np.zeros((rows, 1)), "under-utilised"),
        "1": (np.ones((rows, 1)), None),
        "idle-20": (mixed(rows, 0.95, 0.0, 0.20), "fluctuating"),
        "idle-14": (mixed(rows, 0.95, 0.0, 0.14), None),
        "low-20": (mixed(rows, 0.95, 0.09, 0.20), "fluctuating"),
        "higher-20": (mixed(rows, 0.95, 0.11, 0.20), None),
        "recovered": (np.where(np.arange(rows) < 500, 0.0, 1.0).reshape(-1, 1), None),
        "lost": (np.where(np.arange(rows) < 500, 1.0, 0.0).reshape(-1, 1), "under-utilised"),
    }
    for run, (gpu, trouble) in cases.items():
        test.add(only(gpu_series(gpu, run), "stepscope_gpu_utilization"))
        test.status("LowGPUUtilization", BEFORE, 0, run=run)
        test.status("LowGPUUtilization", AT, 0 if trouble is None else 1, run=run)
        for word in ("under-utilised", "fluctuating"):
            test.firing("LowGPUUtilization", LATER, int(word == trouble), run=run, trouble=word)
        test.firing("LowGPUUtilization", AT, int(trouble == "under-utilised"), run=run)


def test_a_run_that_only_evaluates_is_under_utilised_after_an_hour(test: RuleTest) -> None:
    minutes = 70
    low = only(gpu_series(np.full((120 * minutes, 1), 0.6), "low"), "stepscope_gpu_utilization")
    for run, phases in (("evaluates", ["eval"]), ("predicts", ["predict"]), ("trains", ["eval", "train"])):
        test.add(of_run(low, run))
        test.add(first_step(run, 30, 60 * minutes))
        for phase in phases:
            of_rank = f'{{job="stepscope",instance="node-a",run="{run}",rank="0",phase="{phase}"}}'
            test.add({f"stepscope_phase_seconds_total{of_rank}": [*np.arange(4 * minutes).tolist()]})
        for minute, fires in ((20, run == "trains"), (56, run == "trains"), (68, True)):
            test.firing("LowGPUUtilization", 60 * minute, int(fires), run=run, trouble="under-utilised")


def test_a_checkpoint_of_20_s_or_a_minute_every_ten_minutes_is_no_fluctuation(test: RuleTest) -> None:
    """A minute fills a quarter of a window, but of no window 8 minutes later."""
    minutes = 60
    second = np.arange(120 * minutes) // 2 % 600
    for seconds in (20, 60):
        gpu = np.where(second < seconds, 0.02, 0.97).reshape(-1, 1)
        test.add(only(gpu_series(gpu, f"{seconds}"), "stepscope_gpu_utilization"))
    for minute in range(10, minutes):
        test.firing("LowGPUUtilization", 60 * minute, 0)
    idle = "run_instance_gpu:stepscope_gpu_idle_utilization:ratio"
    test.equals(f'{idle}{{run="60"}}', 60 * 32, 60 / 255)
    test.status("LowGPUUtilization", 60 * 32, 0, run="20")
    test.status("LowGPUUtilization", 60 * 32, 1, run="60")


def test_gpus_idle_before_the_first_step_or_in_a_long_pause_are_no_finding_of_their_own(
    test: RuleTest,
) -> None:
    """Starts are MaxInitializationTime's, from 20 minutes on; pauses of 10 are TrainingStalled's."""
    minutes = 60
    minute = np.arange(120 * minutes) / 120
    ages = [15.0 * scrape for scrape in range(4 * minutes)]
    saves = (minute >= 30) & (minute < 36)
    paused = ("saves", "waits", "suspended", "idles")
    cases = {
        ("compiles",): (minute < 17, minute < 17, 17),
        ("downloads",): (minute < 40, minute < 40, 40),
        paused: (saves, np.zeros(len(minute)), 1),  # the second GPU waits in a kernel for the first
    }
    for runs, (first, second, start) in cases.items():
        gpus = np.stack([np.where(first, 0.0, 1.0), np.where(second, 0.0, 1.0)], axis=1)
        series = only(gpu_series(gpus, runs[0]), "stepscope_gpu_utilization")
        for run in runs:
            test.add(of_run(series, run))
            test.add(first_step(run, 60 * start, 60 * minutes))
            held = f'{{job="stepscope",instance="node-a",run="{run}",gpu="0",user="a",pid="1"}}'
            idle = [age if age < 60 * start else 0.0 for age in ages]
            test.add({f"stepscope_gpu_held_idle_seconds{held}": idle})
    ended = '{job="stepscope",instance="node-a",run="downloads"}'  # after 55 minutes
    test.add({f"stepscope_run_age_seconds{ended}": [age if age < 3300 else None for age in ages]})
    test.add({f"stepscope_run_end_time_seconds{ended}": [3301.0 if age >= 3300 else None for age in ages]})
    stay = [age - 1800 if 1810 <= age < 2160 else None for age in ages]
    for run, component in (("saves", "checkpoint"), ("waits", "host")):
        of_rank = f'{{job="stepscope",instance="node-a",run="{run}",rank="0",component="{component}"}}'
        test.add({f"stepscope_rank_component_age_seconds{of_rank}": stay})
    stopped = '{job="stepscope",instance="node-a",run="suspended",rank="0",state="stopped"}'
    states = [1.0 if 1800 <= age < 2160 else None for age in ages]
    test.add({f"stepscope_rank_process_state{stopped}": states})
    for each in range(minutes):
        for rule in ("IdleGPU", "LowGPUUtilization"):
            test.firing(rule, 60 * each, 0, run="compiles")
        for rule in ("LoadBalancing", "LowGPUUtilization"):
            for run in ("saves", "waits", "suspended"):
                test.firing(rule, 60 * each, 0, run=run)
        test.firing("MaxInitializationTime", 60 * each, int(20 < each < 40), run="downloads", stage="waiting")
        if each < 20:
            test.firing("IdleGPU", 60 * each, 0, run="downloads")
            test.firing("LowGPUUtilization", 60 * each, 0, run="downloads")
    for each in range(45, minutes):
        late = int(each <= 53)  # said for 13 minutes, and not once more at the end
        test.firing("MaxInitializationTime", 60 * each, late, run="downloads", stage="late")
    test.firing("IdleGPU", 60 * 30, 1, run="downloads")
    test.firing("LowGPUUtilization", 60 * 36, 2, run="downloads")
    test.firing("LowGPUUtilization", 60 * 36, 1, run="idles")
    test.firing("LoadBalancing", 60 * 36, 1, run="idles")


def test_a_gpu_that_is_gone_stops_alerting_when_its_window_is_over(test: RuleTest) -> None:
    gpu = np.zeros((1800, 2))
    gpu[ROWS:, 1] = NAN
    test.add(only(gpu_series(gpu, "run"), "stepscope_gpu_utilization"))
    test.firing("LowGPUUtilization", AT, 1, gpu="1")
    test.firing("LowGPUUtilization", AT + 300, 0, gpu="1")
    test.firing("LowGPUUtilization", AT + 300, 1, gpu="0")
    test.status("LowGPUUtilization", AT + 300, 0, gpu="1")


def test_behind_the_end_of_a_run_its_last_few_samples_are_not_judged(test: RuleTest) -> None:
    """Of the whole last window 4 % are low; half of the samples that are the last to leave it are.

    Status, as no alert is left after the minutes for which one is pending.
    """
    gpu = np.ones((ROWS, 1))
    gpu[-40::2] = 0.0
    stopped = [*range(AT // 15 + 1), *[AT // 15] * 20]  # the scrape whose counters each scrape sees
    for run in ("ended", "gone-on"):
        series = only(gpu_series(gpu, run), "stepscope_gpu_utilization")
        test.add({name: [values[seen] for seen in stopped] for name, values in series.items()})
    labels = 'job="stepscope",instance="node-a",run="ended"'
    test.add({f"stepscope_run_end_time_seconds{{{labels}}}": [None] * (AT // 15) + [AT] * 21})
    test.status("LowGPUUtilization", AT, 0)
    test.status("LowGPUUtilization", AT + 240, 1, run="gone-on")
    test.status("LowGPUUtilization", AT + 240, 0, run="ended")


def test_a_gpu_that_fluctuated_stops_alerting_at_the_first_evaluation_after_its_run(test: RuleTest) -> None:
    gpu = np.ones((3 * ROWS, 1))
    gpu[::5] = 0.0
    test.add(only(gpu_series(gpu, "ended"), "stepscope_gpu_utilization"))
    labels = 'job="stepscope",instance="node-a",run="ended"'
    test.add({f"stepscope_run_end_time_seconds{{{labels}}}": [None] * (LATER // 15 + 1) + [LATER + 10] * 40})
    test.firing("LowGPUUtilization", LATER, 1, trouble="fluctuating")
    test.firing("LowGPUUtilization", LATER + 240, 0)


def test_without_gpus_low_gpu_utilization_has_no_target(test: RuleTest) -> None:
    test.add(gpu_series(np.empty((ROWS, 0)), "run"))
    test.gives_nothing('stepscope:rule_status{rule="LowGPUUtilization"}', AT)


def test_a_window_longer_than_patience_takes_all_there_is(
    rendered: Callable[..., Path], tmp_path: Path
) -> None:
    rules = rendered("LowGPUUtilization.patience=10") / "stepscope.yml"
    test = RuleTest(rules)
    test.add(only(gpu_series(np.zeros((150, 1)), "run"), "stepscope_gpu_utilization", "stepscope_samples"))
    test.firing("LowGPUUtilization", 0, 0)
    test.firing("LowGPUUtilization", 60, 1)
    test.run(tmp_path)


def test_batch_size_needs_gpu_memory_and_cores_to_be_low(test: RuleTest) -> None:
    low, high = np.full((ROWS, 1), 0.3), np.full((ROWS, 1), 0.9)
    cases = {
        "small": (low, low, low, 1),
        "busy-gpu": (high, low, low, 0),
        "full-memory": (low, high, low, 0),
        "busy-cores": (low, low, high, 0),
    }
    for run, (gpu, memory, cores, fires) in cases.items():
        samples = node_samples(cores, gpu, gpu_memory=memory)
        test.add(only(scraped_samples(samples, run), "stepscope_gpu", "stepscope_cpu_utilization_samples"))
        test.status("BatchSize", BEFORE, 0, run=run)
        test.firing("BatchSize", AT, fires, run=run)


def test_gpu_memory_that_rises_within_a_minute_and_stays_alerts_and_slow_growth_does_not(
    test: RuleTest,
) -> None:
    rows = 2100
    time = np.arange(rows) / 2  # seconds
    cases = {
        "steady": (np.full(rows, 0.5), 0),
        "jump": (np.where(time < 600, 0.5, 0.5501), 1),
        "small-jump": (np.where(time < 600, 0.5, 0.55), 0),
        "fall": (np.where(time < 600, 0.5, 0.3), 0),
        "slow": (0.1 + 0.04 * time / 60, 0),
        "fast": (0.1 + 0.051 * time / 60, 1),
        "evaluation": (np.where((time > 600) & (time < 770), 0.8, 0.5), 0),
        "as-high-before": (np.where((time > 540) | (time < 30), 0.8, 0.5), 0),
        "before-patience": (np.where(time < 400, 0.3, 0.6), 0),
        "first-step": (np.where(time < 600, 0.5, 0.9), 0),
        "after-it": (np.where(time < 600, 0.5, 0.9), 1),
        "loads-late": (np.where(time < 600, 0.5, 0.9), 0),
    }
    test.add(first_step("first-step", 600, time[-1]))
    test.add(first_step("after-it", 240, time[-1]))
    prepares = 'stepscope_run_age_seconds{job="stepscope",instance="node-a",run="loads-late"}'
    test.add({prepares: [1800.0 + 15 * scrape for scrape in range(int(time[-1] / 15))]})
    for run, (memory, fires) in cases.items():
        test.add(
            only(
                gpu_series(np.ones((rows, 1)), run, gpu_memory=memory.reshape(-1, 1)),
                "stepscope_gpu_memory",
            )
        )
        for minute in range(17):
            counted = fires and (minute >= 12 if run == "fast" else minute == 13)
            test.status("GPUMemoryIncrease", 60 * minute + 30, int(counted), run=run)
        test.firing("GPUMemoryIncrease", 840, fires, run=run)
    test.firing("GPUMemoryIncrease", 960, 1, run="jump")  # it is kept firing, so that it is seen


def test_gpus_that_are_used_differently_are_further_apart_than_the_threshold(test: RuleTest) -> None:
    rows = 1200  # the group is evaluated each two minutes: at 8 min (960 samples) and at 10 min (1200)
    high = np.ones(rows)

    def with_idle(share: float) -> np.ndarray:
        return np.where(np.arange(rows) % 20 < 20 * share, 0.0, 1.0)

    def without_first(missing: int, readings: np.ndarray) -> np.ndarray:
        return np.where(np.arange(rows) < missing, np.nan, readings)

    cases = {
        "alike": ([high, high], 0.0, 0),
        "at": ([high, with_idle(0.2)], 0.2, 0),
        "above": ([high, with_idle(0.25)], 0.25, 1),
        "between": ([with_idle(0.5), with_idle(0.6), with_idle(0.35)], 0.25, 1),
        "one": ([high], 0.0, 0),
        # A GPU that was read 100 times less counts as little different as that allows: (385 - 100) / 1200.
        "one-read-less": ([high, without_first(100, with_idle(0.35))], 285 / 1200, 1),
        "one-hardly-read": ([high, high, without_first(700, with_idle(0.5))], 0.0, 0),
    }
    for run, (gpus, distance, fires) in cases.items():
        test.add(only(gpu_series(np.stack(gpus, axis=1), run), "stepscope_gpu_utilization"))
        test.add({f'stepscope_samples_total{{job="stepscope",instance="node-a",run="{run}"}}': [1.0] * 41})
        test.gives_nothing(f'run_instance:stepscope_gpu_load_distance:max{{run="{run}"}}', 480)
        test.equals(f'run_instance:stepscope_gpu_load_distance:max{{run="{run}"}}', 600, distance)
        test.status("LoadBalancing", 600, fires, run=run)
        test.firing("LoadBalancing", 600, fires, run=run)
