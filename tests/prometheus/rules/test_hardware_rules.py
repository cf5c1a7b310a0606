"""Alerts on hardware that fails, and their silence about healthy hardware."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.prometheus.rules.conftest import ran
from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest

pytestmark = needs_prometheus

SCRAPES = 260  # 65 minutes
LATE = 64 * 60


@pytest.fixture
def test(meta: Path, tmp_path: Path) -> Iterator[RuleTest]:
    yield from ran(RuleTest(meta), tmp_path)


def constant(value: float) -> list[float | None]:
    return [value] * SCRAPES


def growing(per_scrape: float) -> list[float | None]:
    return [per_scrape * number for number in range(SCRAPES)]


def gpu(series: str, node: str, labels: str = "") -> str:
    return f'stepscope_gpu_{series}{{job="stepscope",instance="{node}",gpu="0"{labels}}}'


def port(series: str, node: str, labels: str = "") -> str:
    return (
        f'stepscope_infiniband_{series}{{job="stepscope",instance="{node}",device="mlx5_0",port="1"{labels}}}'
    )


def test_memory_that_cannot_be_replaced_is_critical_and_one_that_waits_a_warning(test: RuleTest) -> None:
    for node, pending, failed in (("well", 0, 0), ("waits", 1, 0), ("worn", 0, 1)):
        test.add({gpu("row_remapping_pending", node): constant(pending)})
        test.add({gpu("row_remapping_failed", node): constant(failed)})
    test.add({gpu("page_retirement_pending", "old"): constant(1)})
    test.firing("RowRemapping", LATE, 3)
    test.firing("RowRemapping", LATE, 1, instance="worn", severity="critical", trouble="failed")
    test.firing("RowRemapping", LATE, 1, instance="waits", severity="warning", trouble="pending")
    test.firing("RowRemapping", LATE, 1, instance="old", severity="warning", trouble="pending")


def test_a_narrow_or_slow_link_of_a_busy_gpu_is_degraded_and_of_an_idle_one_not(test: RuleTest) -> None:
    for node, width, generation, used in (
        ("well", 16, 5, 0.9),
        ("narrow", 8, 5, 0.9),
        ("slow", 16, 3, 0.9),
        ("idle", 16, 1, 0.0),
        ("idle and narrow", 8, 1, 0.1),  # at the threshold
    ):
        test.add({gpu("pcie_link_width", node): constant(width)})
        test.add({gpu("pcie_link_max_width", node): constant(16)})
        test.add({gpu("pcie_link_generation", node): constant(generation)})
        test.add({gpu("pcie_link_max_generation", node): constant(5)})
        test.add({gpu("utilization_ratio", node): constant(used)})
    test.firing("PCIeLinkDegraded", LATE, 2)
    test.firing("PCIeLinkDegraded", LATE, 1, instance="narrow", trouble="width")
    test.firing("PCIeLinkDegraded", LATE, 1, instance="slow", trouble="generation")


def test_replays_and_errors_of_links_alert_above_their_thresholds(test: RuleTest) -> None:
    for node, per_scrape in (("well", 0), ("few", 1.9), ("many", 2.1)):  # 8 per minute are 2 per scrape
        test.add({gpu("pcie_replays_total", node): growing(per_scrape)})
    test.firing("PCIeReplays", LATE, 1)
    test.firing("PCIeReplays", LATE, 1, instance="many", severity="warning")
    for node, kind, per_scrape in (
        ("well", "replay", 0),
        ("few", "crc_flit", 1.6),  # 96 in 15 minutes
        ("many", "crc_flit", 1.7),
        ("recovered", "recovery", 0.01),
    ):
        test.add({gpu("nvlink_errors_total", node, f',kind="{kind}"'): growing(per_scrape)})
    test.firing("NVLinkErrors", LATE, 2)
    test.firing("NVLinkErrors", LATE, 1, instance="many", severity="warning", trouble="errors")
    test.firing("NVLinkErrors", LATE, 1, instance="recovered", severity="critical", trouble="recovery")


def test_corrected_memory_errors_and_the_power_brake_alert_above_their_thresholds(test: RuleTest) -> None:
    corrected, brake = ',severity="corrected"', ',reason="hw_power_brake"'
    for node, errors, braked in (
        ("well", 0, 0),
        ("few", 0.4, 0.7),
        ("many", 0.45, 0.8),
    ):  # per scrape
        test.add({gpu("ecc_errors_total", node, corrected): growing(errors)})
        test.add({gpu("throttle_seconds_total", node, brake): growing(braked)})
    for rule, severity in (("CorrectedMemoryErrors", "info"), ("PowerBrake", "warning")):
        test.firing(rule, LATE, 1)
        test.firing(rule, LATE, 1, instance="many", severity=severity)


def test_a_port_that_was_active_is_down_after_two_minutes_and_one_that_never_was_is_not(
    test: RuleTest,
) -> None:
    test.add({port("port_up", "well"): constant(1), port("port_up", "unused"): constant(0)})
    test.add({port("port_up", "down"): [1.0] * 80 + [0.0] * (SCRAPES - 80)})
    test.firing("InfinibandLinkDown", 21 * 60, 0, trouble="down")
    test.firing("InfinibandLinkDown", 23 * 60, 1, trouble="down")
    test.firing("InfinibandLinkDown", LATE, 1, instance="down", trouble="down")
    for node, downs in (("well", 0), ("seldom", 1), ("flaps", 4)):
        series = [float(sum(number > 30 * down for down in range(1, downs + 1))) for number in range(SCRAPES)]
        test.add({port("link_downed_total", node): series})
    test.firing("InfinibandLinkDown", LATE, 1, trouble="flapping")
    test.firing("InfinibandLinkDown", LATE, 1, trouble="flapping", instance="flaps")


def test_link_errors_of_a_port_alert_and_congestion_does_not(test: RuleTest) -> None:
    for node, kind, per_scrape in (
        ("well", "symbol_error", 0),
        ("few", "symbol_error", 0.04),  # 9.6 an hour
        ("many", "symbol_error", 0.045),
        ("crowded", "out_of_sequence", 100),
    ):
        test.add({port("errors_total", node, f',kind="{kind}"'): growing(per_scrape)})
    test.firing("InfinibandErrors", LATE, 1)
    test.firing("InfinibandErrors", LATE, 1, instance="many", kind="symbol_error")


def test_a_disk_that_is_full_soon_alerts_and_one_with_much_space_or_no_history_does_not(
    test: RuleTest,
) -> None:
    free = 'stepscope_run_file_system_free_bytes{job="stepscope",instance="%s",run="run",mountpoint="/"}'
    for node, start, per_scrape in (
        ("well", 15e9, 0.0),
        ("filling", 15e9, 15e6),  # full after 1000 scrapes, 250 minutes
        ("slowly", 15e9, 10e6),
        ("large", 90e9, 90e6),
        ("full", 0.9e9, 0.0),
    ):
        test.add({free % node: [start - per_scrape * number for number in range(SCRAPES)]})
        test.add({(free % node).replace("free", "size"): constant(100e9)})
    test.firing("DiskFilling", 30 * 60, 1)  # one hour is not known yet
    test.firing("DiskFilling", LATE, 2)
    test.firing("DiskFilling", LATE, 1, instance="filling", severity="warning", trouble="filling")
    test.firing("DiskFilling", LATE, 1, instance="full", severity="critical", trouble="full")


def test_the_alert_on_a_disk_that_fills_says_how_much_it_will_lack(test: RuleTest) -> None:
    where = {"job": "stepscope", "instance": "node", "run": "run", "mountpoint": "/", "trouble": "filling"}
    labels = ",".join(f'{name}="{where[name]}"' for name in ("job", "instance", "run", "mountpoint"))
    gib = 1024.0**3
    free = [(16 - number / 64) * gib for number in range(SCRAPES)]
    test.add({f"stepscope_run_file_system_free_bytes{{{labels}}}": free})
    test.add({f"stepscope_run_file_system_size_bytes{{{labels}}}": constant(100 * gib)})
    test.describes(
        "DiskFilling",
        LATE,
        where,
        "Run run works in / on node. In 240 min, it will lack 3GiB at the rate of the last 6 hours.",
    )
