"""GPUError and ThermalThrottling: what the driver counts of each GPU."""

from typing import Any

import numpy as np
import pytest
from stepscope.common.xids import XIDS, xid
from stepscope.evaluation.analysis import RuleResult
from stepscope.measurements.gpu_errors import ErrorsOfGpu
from stepscope.runs.model import GpuFacts, NodeFacts

from tests.support.few_rules import judged
from tests.support.source import START, node_samples, run_facts

NAN = float("nan")


def result(rule: str, rows: int, of_gpus: dict[str, Any], **parameters: Any) -> RuleResult:
    """`of_gpus`: columns of one GPU, or (rows, GPUs)."""
    gpus = max((np.asarray(column).reshape(rows, -1).shape[1] for column in of_gpus.values()), default=1)
    samples = node_samples(np.zeros((rows, 1)), np.ones((rows, gpus)), of_gpus=of_gpus)
    return judged(rule, samples, **parameters)


def errors(*counted: float, last: float = NAN, ecc: Any = None, **parameters: float) -> RuleResult:
    columns = {"gpu_xid_errors": counted, "gpu_last_xid": np.full(len(counted), last)}
    if ecc is not None:
        columns["gpu_ecc_uncorrected_errors"] = ecc
    return result("GPUError", len(counted), columns, **parameters)


@pytest.mark.parametrize("number", [48, 63, 74, 79, 94, 95, 119, 999])
def test_an_error_of_the_gpu_fires(number: int) -> None:
    found = errors(0, 0, 1, 1, last=number)
    assert (found.status, found.violations, found.triggered) == ("found", 1, 1)
    assert found.finding == f"GPU 0 of node-a reported XID {number} ({xid(number).meaning})."
    assert found.recommendation == xid(number).remedy


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 109])
def test_an_error_of_the_program_does_not_but_is_told(number: int) -> None:
    found = errors(0, 0, 1, 1, last=number)
    assert (found.status, found.violations) == ("healthy", 0)
    assert f"the program failed on GPU 0 of node-a: XID {number}" in found.finding
    assert found.details["gpus"][0]["errors"][0]["of_the_program"]


def test_every_known_number_has_a_meaning_and_a_mend() -> None:
    assert all(len(one.meaning) > 10 and one.remedy.endswith(".") for one in XIDS.values())
    assert [number for number in XIDS if xid(number).of_the_program] == [13, 31, 43, 45, 68, 109]


@pytest.mark.parametrize(("count", "status"), [(1, "healthy"), (2, "healthy"), (3, "found")])
def test_more_errors_than_the_threshold_are_needed(count: int, status: str) -> None:
    assert errors(0, count, last=79, threshold=2).status == status


def test_what_was_counted_before_the_run_is_not_the_runs() -> None:
    found = errors(7, 7, 7, last=79, ecc=[3, 3, 3])
    assert (found.status, found.finding) == ("healthy", "No GPU reported a hardware or driver error.")


def test_a_counter_that_begins_anew_counts_from_0() -> None:
    assert errors(7, 7, 2, 2, last=79).violations == 2
    assert errors(0, 0, 0, 0, ecc=[5, 5, 1, 1]).violations == 1


def test_missing_readings_hide_no_error_that_came_meanwhile() -> None:
    assert errors(0, NAN, NAN, 3, last=79).violations == 3
    assert errors(NAN, NAN, NAN).status == "not enough data"


def test_memory_errors_that_were_not_corrected_fire() -> None:
    found = errors(0, 0, 0, ecc=[4, 4, 6])
    assert (found.status, found.violations) == ("found", 2)
    assert "memory errors that ECC could not correct" in found.finding
    assert "replaced" in found.recommendation


def test_the_first_error_is_named_first_and_its_mend_given() -> None:
    numbers = np.where(np.arange(10) < 5, 94, 63)
    columns = {"gpu_xid_errors": np.repeat([0, 1, 2], [3, 4, 3]), "gpu_last_xid": numbers}
    found = result("GPUError", 10, columns)
    assert found.finding.index("XID 94") < found.finding.index("XID 63")
    assert found.recommendation == xid(94).remedy
    assert found.details["gpus"][0]["errors"][0]["first"] == START + 1.5


def test_errors_count_at_each_scan_from_then_on_and_each_gpu_is_told() -> None:
    counter = np.zeros((360, 3))
    counter[150:, 0] = counter[250:, 2] = 1
    found = result("GPUError", 360, {"gpu_xid_errors": counter, "gpu_last_xid": np.full((360, 3), 79)})
    assert (found.triggered, found.violations, found.datapoints) == (2 + 1, 2, 360)
    assert found.finding.startswith("GPU 0 of node-a reported XID 79")
    assert ", and 1 of 2 other GPUs had errors" in found.finding


def test_gpus_that_the_run_does_not_use_are_no_other_gpus_of_the_run() -> None:
    columns = {"gpu_ecc_uncorrected_errors": np.outer(np.arange(4), [1, 0, 0])}
    samples = node_samples(np.zeros((4, 1)), np.ones((4, 3)), of_gpus=columns)
    for by, more in (
        ("", ""),
        ("processes", "; the run's 2 other GPUs had no errors"),
        (None, "; the run's 2"),
    ):
        used = tuple(GpuFacts(str(gpu), by=by if gpu else "processes") for gpu in range(3))
        facts = run_facts(nodes=[NodeFacts("node-a", gpus=used)])
        finding = judged("GPUError", samples, facts=facts).finding
        assert ("other GPU" in finding) is bool(more)
        assert more in finding


@pytest.mark.parametrize(
    ("seconds", "status"), [(119.5, "healthy"), (120, "found"), (120.5, "found"), (NAN, "not enough data")]
)
def test_a_gpu_out_of_reach_for_two_minutes_is_an_error(seconds: float, status: str) -> None:
    lost = np.zeros((400, 2))
    if seconds == seconds:
        lost[100 : 101 + round(seconds / 0.5), 1] = 1
    else:
        lost[:] = NAN
    xids = np.where(lost == lost, 0.0, NAN)
    found = result("GPUError", 400, {"gpu_lost": lost, "gpu_xid_errors": xids})
    assert found.status == status
    if status == "found":
        assert found.finding == (
            "GPU 1 of node-a did not answer the driver; the run's 1 other GPU had no errors."
        )
        assert "dmesg" in str(found.recommendation)
        assert (found.violations, found.details["gpus"][1]["errors"][0]["xid"]) == (1, None)


def test_each_loss_counts_once_whatever_blocks_the_samples_come_in() -> None:
    lost = np.zeros(2000, dtype=np.float64)
    lost[100:500] = lost[600:1500] = 1
    lost[700:710] = NAN  # the exporter was restarted
    times = np.arange(2000, dtype=np.float64) / 2
    for size in (2000, 7, 240):
        gpu = ErrorsOfGpu()
        rows = [
            first + row
            for first in range(0, 2000, size)
            for row in gpu._losses(times[first : first + size], lost[first : first + size])
        ]
        assert rows == [340, 840]


def test_a_lost_gpu_is_named_with_what_it_reported_before() -> None:
    columns = {"gpu_lost": np.repeat([0, 1], 300), "gpu_xid_errors": np.repeat([0, 1], [290, 310])}
    found = result("GPUError", 600, {**columns, "gpu_last_xid": np.full(600, 79.0)})
    assert found.finding == (
        "GPU 0 of node-a reported XID 79 (the GPU has fallen off the bus) and did not answer the driver."
    )
    assert found.recommendation == xid(79).remedy


def hot(share: float, rows: int = 241, **parameters: float) -> RuleResult:
    """A GPU whose clocks are held down by heat for this share of the time; at 0.5 s a row."""
    heat = {"gpu_thermal_throttle_seconds": 100 + share * 0.5 * np.arange(rows)}
    return result("ThermalThrottling", rows, heat, **parameters)


@pytest.mark.parametrize(
    ("share", "status"), [(0, "healthy"), (0.25, "healthy"), (0.25 + 1 / 1024, "found"), (1, "found")]
)
def test_it_fires_above_its_share_of_the_time_and_not_at_it(share: float, status: str) -> None:
    assert hot(share, threshold=25).status == status


@pytest.mark.parametrize(
    ("rows", "status"), [(119, "not enough data"), (120, "not enough data"), (121, "found")]
)
def test_patience_delays_the_first_decision(rows: int, status: str) -> None:
    assert hot(0.5, rows).status == status


def test_gpus_without_error_counters_are_not_judged() -> None:
    found = result("ThermalThrottling", 500, {})
    assert (found.status, "No GPU reported how long" in found.finding) == ("not enough data", True)


def test_heat_costs_the_share_of_the_clock_that_was_missing() -> None:
    held = np.repeat([0.0, 1.0], [100, 200]) * 0.5
    columns = {
        "gpu_thermal_throttle_seconds": np.cumsum(held),
        "gpu_clock_hertz": np.where(held > 0, 1.2e9, 2e9),
        "gpu_power_throttle_seconds": 0.25 * np.arange(300),
    }
    found = result("ThermalThrottling", 300, columns)
    assert found.seconds_lost == pytest.approx(100 * 0.4)
    gpu = found.details["gpus"][0]
    assert (gpu["heat_seconds"], gpu["power_seconds"]) == pytest.approx((100, 299 * 0.25))
    assert "for 66.9 % of the time (1 min 40 s)" in found.finding


def test_without_a_clock_no_time_is_claimed() -> None:
    assert (hot(0.5).status, hot(0.5).seconds_lost) == ("found", 0)


def test_a_counter_that_begins_anew_adds_nothing_and_gaps_are_bridged() -> None:
    counter = 0.25 * np.arange(300.0)
    counter[200:] -= counter[200]
    counter[50:100] = NAN
    found = result("ThermalThrottling", 300, {"gpu_thermal_throttle_seconds": counter})
    assert found.details["gpus"][0]["heat_seconds"] == pytest.approx(0.25 * 298)


def test_the_hottest_gpu_is_named() -> None:
    heat = np.outer(np.arange(300) * 0.5, [0.0, 0.1, 0.9, 0.2])
    found = result("ThermalThrottling", 300, {"gpu_thermal_throttle_seconds": heat})
    assert found.finding.startswith("Heat throttled GPU 2 of node-a for 90.0 % of the time")
    assert "; it throttled 2 of 3 other GPUs too;" in found.finding
    assert (found.triggered, found.datapoints) == (2 * 3, 300)
