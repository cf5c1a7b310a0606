"""GPUMemoryLeak, GPUMemoryNearlyFull, ThermalThrottling and GPUError in promtool.

Their series are of the GPU, not of a run: the sample counters say which run uses it.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from stepscope.common import PUBLIC_DOCS

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest, Values

pytestmark = needs_prometheus

TOTAL = 80e9


def labels(node: str, **more: str) -> str:
    pairs = {"job": "stepscope", "instance": node, "gpu": "0", **more}
    return ",".join(f'{name}="{value}"' for name, value in pairs.items())


def readings(node: str, scrapes: int) -> dict[str, Values]:
    name = f"stepscope_gpu_utilization_samples_count{{{labels(node, run='run')}}}"
    ticks = f'stepscope_sampler_ticks_total{{job="stepscope",instance="{node}"}}'
    counts = [30.0 * number for number in range(scrapes)]
    return {name: counts, name.replace("utilization", "memory"): counts, ticks: counts}


def memory(node: str, used: np.ndarray, is_mig: bool = False) -> dict[str, Values]:
    """Returns the memory of a GPU; that of a MIG device has no readings of utilisation."""
    counts = readings(node, len(used))
    if is_mig:
        counts |= {name: [0.0] * len(used) for name in counts if "utilization" in name}
    return {
        **counts,
        f"stepscope_gpu_memory_used_bytes{{{labels(node)}}}": (TOTAL * used).tolist(),
        f"stepscope_gpu_memory_total_bytes{{{labels(node)}}}": [TOTAL] * len(used),
    }


def minutes(count: float) -> np.ndarray:
    return np.arange(round(count * 4) + 1) / 4


def test_memory_that_grows_for_as_long_as_one_looks_leaks_and_jumps_do_not(
    rendered: Callable[..., Path], tmp_path: Path
) -> None:
    time = minutes(20)
    sawtooth = 0.05 * (np.arange(len(time)) % 3)
    cases = {
        "leak": (0.2 + 0.004 * time, 1),
        "leak-of-a-mig-device": (0.2 + 0.004 * time, 1),
        "leak-under-steps": (0.2 + 0.004 * time + sawtooth, 1),
        "too-little": (0.2 + 0.001 * time, 0),
        "flat": (0.5 + sawtooth, 0),
        "jump": (np.where(time < 12, 0.2, 0.5), 0),
        "three-jumps": (0.2 + 0.1 * (time > 10.5) + 0.1 * (time > 13) + 0.1 * (time > 15.5), 0),
        "levels-off": (np.minimum(0.2 + 0.1 * time, 0.7), 0),
        "falls": (0.9 - 0.01 * time, 0),
    }
    test = RuleTest(rendered("GPUMemoryLeak.warm_up=0") / "stepscope.yml")
    for node, (used, leaks) in cases.items():
        test.add(memory(node, used, is_mig="mig" in node))
        test.status("GPUMemoryLeak", 600, 0, instance=node)  # patience: 1200 readings
        test.status("GPUMemoryLeak", 1140, leaks, instance=node)
        test.firing("GPUMemoryLeak", 1140, leaks, instance=node, run="run", gpu="0")
    test.run(tmp_path)


def test_of_a_mig_device_only_the_memory_is_judged(test: RuleTest) -> None:
    """Its run has samples, but no reading of a utilisation."""
    used = np.full(len(minutes(15)), 0.5)
    counts = [30.0 * number for number in range(len(used))]
    bucket = f"stepscope_gpu_utilization_samples_bucket{{{labels('node', run='run', le='0.1')}}}"
    test.add(
        {
            **memory("node", used, is_mig=True),
            bucket: [0.0] * len(used),
            'stepscope_samples_total{job="stepscope",instance="node",run="run"}': counts,
            f"stepscope_run_gpu_info{{{labels('node', run='run', uuid='MIG-1', rank='0')}}}": [1.0]
            * len(used),
        }
    )
    of_memory = "GPUMemoryLeak|GPUMemoryNearlyFull|GPUMemoryIncrease"
    for rule in of_memory.split("|"):
        test.status(rule, 840, 0, instance="node")
    test.gives_nothing(f'stepscope:rule_status{{rule!~"{of_memory}"}}', 840)


def test_a_slow_leak_is_seen_after_an_hour_more_than_caches_may_fill(test: RuleTest) -> None:
    test.add(memory("slow", 0.2 + 0.0004 * minutes(150)))  # 2.4 points an hour
    for minute in (30, 80, 118):
        test.firing("GPUMemoryLeak", 60 * minute, 0)
    test.firing("GPUMemoryLeak", 60 * 130, 1)
    test.equals("run_instance_gpu:stepscope_gpu_memory_leak:growth_ratio", 60 * 130, 0.024)


def test_caches_may_grow_for_a_run_s_first_hour_and_a_leak_goes_on(test: RuleTest) -> None:
    time = minutes(200)
    test.add(memory("cache", 0.5 + 0.003 * np.minimum(time, 60)))
    test.add(memory("slow-cache", 0.5 + 0.003 * np.minimum(time, 72)))
    test.add(memory("leak", 0.2 + 0.003 * np.minimum(time, 100)))
    test.add(memory("fast-leak", 0.2 + 0.005 * np.minimum(time, 80)))
    late = np.minimum(time, 80)
    test.add(memory("late", 0.2 + 0.015 * np.minimum(late, 15) + 0.005 * np.maximum(late - 15, 0)))
    for minute in range(16, 200, 4):
        test.firing("GPUMemoryLeak", 60 * minute, 0, instance="cache")
        test.firing("GPUMemoryLeak", 60 * minute, 0, instance="slow-cache")
        test.firing("GPUMemoryNearlyFull", 60 * minute, 0, instance="cache", trouble="filling")
    test.firing("GPUMemoryLeak", 60 * 64, 0)  # the last ten minutes have a part of the first hour
    test.firing("GPUMemoryLeak", 60 * 76, 1, instance="fast-leak")
    test.firing("GPUMemoryLeak", 60 * 80, 0, instance="leak")  # a slow cache may still fill like this
    test.firing("GPUMemoryLeak", 60 * 92, 1, instance="leak")
    test.firing("GPUMemoryNearlyFull", 60 * 40, 0)  # it will be full, but not within the first hour
    test.firing("GPUMemoryNearlyFull", 60 * 76, 1, instance="late", trouble="filling")


def test_memory_that_is_nearly_full_or_will_be_alerts(test: RuleTest) -> None:
    time = minutes(12)
    cases = {
        "full": (np.full(len(time), 0.951), "full", 1),
        "at": (np.full(len(time), 0.95), "full", 0),
        "filling": (0.2 + 0.035 * time, "filling", 1),  # full in 13 minutes
        "cache": (0.2 + 0.02 * time, "filling", 0),  # in half an hour, and the run has just begun
        "filling-slowly": (0.2 + 0.002 * time, "filling", 0),
        "jump": (np.where(time < 9, 0.2, 0.6), "filling", 0),
    }
    for node, (used, trouble, fires) in cases.items():
        test.add(memory(node, used))
        test.status("GPUMemoryNearlyFull", 60, 0, instance=node)  # patience: 120 readings
        test.status("GPUMemoryNearlyFull", 600, fires, instance=node)
        test.firing("GPUMemoryNearlyFull", 600, fires, instance=node)
        test.firing("GPUMemoryNearlyFull", 600, fires, instance=node, trouble=trouble)
    test.equals(
        'run_instance_gpu:stepscope_gpu_memory_full_in:seconds{instance="filling"}',
        720,
        60 * 0.38 / 0.035,
        1e-6,
    )


def test_a_gpu_that_heat_slows_down_alerts_and_one_at_its_power_limit_does_not(test: RuleTest) -> None:
    cases = [
        ("hot", "sw_thermal", 0.06, 1),
        ("warm", "hw_thermal", 0.04, 0),
        ("busy", "sw_power_cap", 0.9, 0),
    ]
    for node, reason, share, fires in cases:
        name = f"stepscope_gpu_throttle_seconds_total{{{labels(node, reason=reason)}}}"
        test.add({**readings(node, 41), name: [15 * share * number for number in range(41)]})
        test.status("ThermalThrottling", 60, 0, instance=node)
        test.status("ThermalThrottling", 600, fires, instance=node)
        test.firing("ThermalThrottling", 600, fires, instance=node, gpu="0", run="run")
    test.equals(
        'run_instance_gpu:stepscope_gpu_thermal_throttle:ratio{instance="hot"}', 600, 0.06, tolerance=1e-6
    )


def test_heat_fires_above_its_threshold(rendered: Callable[..., Path], tmp_path: Path) -> None:
    """A sixteenth of the time, which has no rounding."""
    test = RuleTest(rendered("ThermalThrottling.threshold=6.25") / "stepscope.yml")
    for node, share, fires in (("below", 0.0624, 0), ("at", 0.0625, 0), ("above", 0.0626, 1)):
        name = f"stepscope_gpu_throttle_seconds_total{{{labels(node, reason='sw_thermal')}}}"
        test.add({**readings(node, 41), name: [15 * share * number for number in range(41)]})
        test.status("ThermalThrottling", 600, fires, instance=node)
    test.run(tmp_path)


def test_new_errors_of_a_gpu_are_critical_and_those_of_programs_are_not(test: RuleTest) -> None:
    none: Values = [None] * 40
    xid = "stepscope_gpu_xid_errors_total"
    ecc = "stepscope_gpu_ecc_errors_total"
    series: dict[str, Values] = {}
    for node in ("new", "more", "old", "program", "memory", "corrected"):
        series |= readings(node, 80)
    series |= {
        f"{xid}{{{labels('new', xid='79')}}}": [*none, *[1.0] * 40],
        f"{xid}{{{labels('more', xid='48')}}}": [2.0] * 40 + [3.0] * 40,
        f"{xid}{{{labels('old', xid='48')}}}": [2.0] * 80,
        f"{xid}{{{labels('program', xid='31')}}}": [*none, *[1.0] * 40],
        f"{ecc}{{{labels('memory', severity='uncorrected')}}}": [1.0] * 40 + [2.0] * 40,
        f"{ecc}{{{labels('corrected', severity='corrected')}}}": [1.0] * 40 + [9.0] * 40,
    }
    test.add(series)
    test.firing("GPUError", 585, 0)
    test.firing("GPUError", 600, 3, severity="critical", run="run", gpu="0")
    for node, trouble in (("new", "xid"), ("more", "xid"), ("memory", "memory")):
        test.status("GPUError", 600, 1, instance=node)
        test.firing("GPUError", 600, 1, instance=node, trouble=trouble)
        test.status("GPUError", 1000, 0, instance=node)  # no longer new
        test.firing("GPUError", 1000, 1, instance=node)  # but still to be seen
    for node in ("old", "program", "corrected"):
        test.status("GPUError", 600, 0, instance=node)


def test_an_error_that_ends_its_run_at_once_is_told_and_one_after_a_run_blames_none(test: RuleTest) -> None:
    for node, end, error in (("dies", 40, 40), ("dies-later", 41, 40), ("over", 28, 40)):
        run = f'job="stepscope",instance="{node}",run="run"'
        test.add(readings(node, 80))
        test.add({f"stepscope_run_end_time_seconds{{{run}}}": [*[None] * end, *[1.0] * (80 - end)]})
        for counter, labelled in (
            ("gpu_xid_errors_total", labels(node, xid="79")),
            ("gpu_ecc_errors_total", labels(node, severity="uncorrected")),
        ):
            before = None if "xid" in counter else 0.0
            errors: Values = [*[before] * error, *[1.0] * (80 - error)]
            test.add({f"stepscope_{counter}{{{labelled}}}": errors})
    test.firing("GPUError", 585, 0)
    for at in (600, 705, 1000):
        test.firing("GPUError", at, 4)
        for node in ("dies", "dies-later"):
            test.firing("GPUError", at, 1, instance=node, trouble="xid")
            test.firing("GPUError", at, 1, instance=node, trouble="memory")


def test_an_error_names_its_xid(test: RuleTest) -> None:
    counter = f"stepscope_gpu_xid_errors_total{{{labels('node-a', xid='79')}}}"
    test.add({**readings("node-a", 60), counter: [*[None] * 40, *[1.0] * 20]})
    where = {"job": "stepscope", "instance": "node-a", "gpu": "0", "run": "run"}
    test.alerts(
        "GPUError",
        600,
        {
            "labels": {
                "rule": "GPUError",
                "severity": "critical",
                "audience": "platform",
                "kind": "cause",
                "trouble": "xid",
                **where,
            },
            "annotations": {
                "summary": "GPU 0 of node-a reported an error",
                "description": "In run run, the driver reported 1 new errors of GPU 0 of node-a that the "
                "program did not cause. XIDs so far: 79. GPUs of the run with such errors: 1 of 1.",
                "recommendation": "Take the machine out of use and run NVIDIA's diagnostics "
                "(dcgmi diag -r 3).",
                "runbook_url": f"{PUBLIC_DOCS}/heuristics.md#gpuerror",
                "value": "1",
                "value_order": f"{1:024.6f}",
            },
        },
    )


def test_a_gpu_of_a_run_that_has_ended_gives_no_alert(test: RuleTest) -> None:
    test.add(memory("ended", np.full(61, 0.99)))
    ends: Values = [*[None] * 20, *[300.0] * 41]
    test.add({'stepscope_run_end_time_seconds{job="stepscope",instance="ended",run="run"}': ends})
    test.firing("GPUMemoryNearlyFull", 285, 1)
    test.status("GPUMemoryNearlyFull", 300, 0)
    test.firing("GPUMemoryNearlyFull", 600, 0)


def test_a_gpu_that_is_held_without_work_names_its_holder(test: RuleTest) -> None:
    cases = [
        ("below", 899, "resnet-1", 0),
        ("at", 900, "resnet-1", 0),
        ("above", 901, "resnet-1", 1),
        ("own", 901, "", 1),
        ("hours", 7201, "", 1),
    ]
    for node, seconds, run, fires in cases:
        holder = labels(node, run=run, user="ada", pid="4711")
        test.add({f"stepscope_gpu_held_idle_seconds{{{holder}}}": [float(seconds)] * 9})
        more = {"run": run} if run else {}
        more["severity"] = "info" if node == "own" else "warning"  # its user may think, for two hours
        test.firing("IdleGPU", 60, fires, instance=node, gpu="0", user="ada", pid="4711", **more)
    test.firing("IdleGPU", 60, 3)
