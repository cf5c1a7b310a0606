"""The rules for dcgm-exporter and node_exporter, with series as these publish them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest, Values

pytestmark = needs_prometheus

SCRAPES = 60
END = (SCRAPES - 1) * 15
MIB = 80_000.0


@pytest.fixture(scope="module")
def rules(rendered: Callable[..., Path]) -> Path:
    return rendered() / "optional" / "dcgm-and-node-exporter.yml"


def gpu(node: str, utilisation: Values, used: float = 0.4, number: int = 0) -> dict[str, Values]:
    """One GPU, in percent and MiB, under the labels of dcgm-exporter."""
    labels = (
        f'job="dcgm",instance="10.0.0.1:9400",gpu="{number}",UUID="GPU-{node}-{number}",device="nvidia{number}",'
        f'modelName="NVIDIA H100 80GB HBM3",Hostname="{node}"'
    )
    return {
        f"DCGM_FI_DEV_GPU_UTIL{{{labels}}}": utilisation,
        f"DCGM_FI_DEV_FB_USED{{{labels}}}": [used * MIB] * len(utilisation),
        f"DCGM_FI_DEV_FB_FREE{{{labels}}}": [(1 - used) * MIB] * len(utilisation),
    }


def cores(node: str, *busy: float, waiting: float = 0.5) -> dict[str, Values]:
    """Cores that are busy for a share of each second, under the labels of node_exporter.

    They wait for storage for the share `waiting` of the rest.
    """
    target = f'job="node",instance="{node}.example:9100"'
    series: dict[str, Values] = {f'node_uname_info{{{target},nodename="{node}"}}': [1.0] * SCRAPES}
    for cpu, share in enumerate(busy):
        rest = 1 - share
        modes = {"user": share, "idle": rest * (1 - waiting), "iowait": rest * waiting}
        for mode, part in modes.items():
            name = f'node_cpu_seconds_total{{{target},cpu="{cpu}",mode="{mode}"}}'
            series[name] = [15 * part * number for number in range(SCRAPES)]
    return series


def always(percent: float) -> Values:
    return [percent] * SCRAPES


def test_gpus_that_are_used_little_alert_and_say_how_coarse_that_is(test: RuleTest) -> None:
    test.add(gpu("low", always(30.0)) | gpu("busy", always(95.0)) | gpu("unused", always(0.0), used=0.001))
    fits = [0.0 if number % 5 == 0 else 95.0 for number in range(SCRAPES)]
    test.add(gpu("fits", fits) | gpu("started", [0.0] * 10, used=0.5))
    where = {"resolution": "scrape", "run": "unknown", "gpu": "0"}
    test.firing("LowGPUUtilization", END, 1)
    test.firing("LowGPUUtilization", END, 1, instance="low", trouble="under-utilised", **where)
    test.firing("LowGPUUtilization", END, 1, "pending", instance="fits", trouble="fluctuating", **where)
    test.status("LowGPUUtilization", END, 0, instance="unused")
    test.status("LowGPUUtilization", 135, 0, instance="started")
    test.firing("LowGPUUtilization", 570, 0)  # patience and window are of 40 scrapes at least


def test_a_small_batch_leaves_gpu_memory_and_cores_idle(test: RuleTest) -> None:
    test.add(gpu("small", always(30.0)) | cores("small", 0.2, 0.3))
    test.add(gpu("full", always(30.0), used=0.9) | cores("full", 0.2, 0.3))
    test.add(gpu("loading", always(30.0)) | cores("loading", 0.9, 0.9))
    test.firing("BatchSize", END, 1)
    test.firing("BatchSize", END, 1, instance="small", severity="info")
    test.equals('instance:node_cpu_utilization:mean_ratio{instance="small"}', END, 0.25)


def test_a_busy_core_beside_an_idle_gpu_in_most_scrapes_is_a_bottleneck(test: RuleTest) -> None:
    half = [5.0 if number % 5 < 3 else 90.0 for number in range(SCRAPES)]
    test.add(gpu("starved", half) | gpu("starved", always(95.0), number=1) | cores("starved", 0.1, 0.97))
    test.add(gpu("seldom", [5.0 if n % 5 < 2 else 90.0 for n in range(SCRAPES)]) | cores("seldom", 0.1, 0.97))
    test.add(gpu("calm", half) | cores("calm", 0.1, 0.85))
    test.add(gpu("idle", always(0.0), used=0.0) | cores("idle", 0.1, 0.97))
    test.firing("CPUBottleneck", END, 1)
    test.firing("CPUBottleneck", END, 1, instance="starved", run="unknown", resolution="scrape")
    test.firing("CPUBottleneck", 500, 0)  # patience: 1000 samples are 500 s
    test.gives_nothing('instance:node_cpu_starved:avg_ratio{instance="idle"}', END)


def test_without_these_exporters_there_is_neither_alert_nor_error(test: RuleTest) -> None:
    test.add({"up": always(1.0)})
    test.gives_nothing("ALERTS", END)
    test.gives_nothing("stepscope:rule_status", END)
