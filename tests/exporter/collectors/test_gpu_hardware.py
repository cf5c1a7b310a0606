"""What tells of failing hardware: memory rows, PCIe and NVLink, read once a minute."""

import pytest
from stepscope.exporter.nvidia import health

from tests.support.fake_nvml import FakeNvml
from tests.support.gpu_ticks import GpuTicks

NOT_SUPPORTED = 3
REMAPPING_PENDING, REPLAYS = 144, 94
HARDWARE = {family.name.removeprefix("stepscope_gpu_") for family in health.families()}


def test_every_value_of_a_gpu_with_worn_memory_and_bad_links(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.set_fields(
        1, {82: 95, 142: 3, 143: 2, 144: 1, 145: 1, 31: 1, 94: 7, 38: 1, 45: 2, 52: 3, 59: 4, 208: 5, 214: 6}
    )
    nvml.set(1, pcie_width=8, pcie_generation=1)
    ticks.tick()
    assert ticks.value("memory_temperature_celsius", "1") == 95
    assert ticks.samples("remapped_rows_total")["1", "corrected"] == 3
    assert ticks.samples("remapped_rows_total")["1", "uncorrected"] == 2
    assert ticks.samples("row_remapping_pending") == {("0",): 0, ("1",): 1}
    assert ticks.samples("row_remapping_failed") == {("0",): 0, ("1",): 1}
    assert ticks.samples("page_retirement_pending") == {("1",): 1}
    assert ticks.samples("pcie_replays_total") == {("0",): 0, ("1",): 7}
    assert ticks.samples("pcie_link_width") == {("0",): 16, ("1",): 8}
    assert ticks.samples("pcie_link_max_width") == {("0",): 16, ("1",): 16}
    assert ticks.samples("pcie_link_generation") == {("0",): 5, ("1",): 1}
    assert ticks.samples("pcie_link_max_generation") == {("0",): 5, ("1",): 5}
    errors = {
        kind: count for (gpu, kind), count in ticks.samples("nvlink_errors_total").items() if gpu == "1"
    }
    assert errors == {
        "crc_flit": 1,
        "crc_data": 2,
        "replay": 3,
        "recovery": 4,
        "receive": 5,
        "failed_recovery": 6,
    }


def test_hardware_is_read_once_a_minute(nvml: FakeNvml, ticks: GpuTicks) -> None:
    ticks.tick()
    ticks.tick(60)  # the second reading comes earlier for some GPUs, to spread them
    read = nvml.calls()["nvmlDeviceGetCurrPcieLinkWidth", 0]
    nvml.set_fields(0, {REPLAYS: 9})
    for _ in range(100):
        ticks.tick(0.5)
    assert nvml.calls()["nvmlDeviceGetCurrPcieLinkWidth", 0] == read
    assert ticks.value("pcie_replays_total", "0") == 0
    ticks.tick(10)
    assert nvml.calls()["nvmlDeviceGetCurrPcieLinkWidth", 0] == read + 1
    assert ticks.value("pcie_replays_total", "0") == 9


def test_a_gpu_without_these_values_is_asked_once_and_logs_nothing(
    nvml: FakeNvml, ticks: GpuTicks, caplog: pytest.LogCaptureFixture
) -> None:
    nvml.set_fields(0, dict.fromkeys((82, 142, 143, 144, 145, 94, 38, 45, 52, 59)))
    functions = [
        f"nvmlDeviceGet{of}PcieLink{what}" for of in ("Curr", "Max") for what in ("Width", "Generation")
    ]
    for function in functions:
        nvml.fail(0, function, NOT_SUPPORTED)
    for _ in range(5):
        ticks.tick(61)
    calls = nvml.calls()
    assert {calls[function, 0] for function in functions} == {1}
    assert not ticks.published_of("0") & HARDWARE
    assert ticks.published_of("1") >= HARDWARE - {"page_retirement_pending"}
    assert not [record for record in caplog.records if record.levelname != "INFO"]
    # The batch of the minute is empty after the first reading; the others stay as they were.
    assert calls["nvmlDeviceGetFieldValues", 1] - calls["nvmlDeviceGetFieldValues", 0] == 4


def test_a_lost_gpu_publishes_nothing_of_its_hardware_and_is_read_at_once_when_back(
    nvml: FakeNvml, ticks: GpuTicks
) -> None:
    ticks.tick()
    nvml.lose(0)
    ticks.tick()
    assert "pcie_link_width" not in ticks.published_of("0")
    nvml.restore(0)
    nvml.set_fields(0, {REMAPPING_PENDING: 1})
    ticks.tick(11)
    ticks.tick()
    assert ticks.value("row_remapping_pending", "0") == 1
