"""What the GPU collector publishes, through the real ctypes path from a fake libnvidia-ml.so."""

import gc
import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import pairwise
from math import isnan
from pathlib import Path
from types import FunctionType

import pytest
from stepscope.common.errors import UserError
from stepscope.exporter.collectors import add_flags, enabled
from stepscope.exporter.collectors.gpu import GpuCollector
from stepscope.exporter.nvidia import health
from stepscope.exporter.nvidia.nvml import FieldBatch
from stepscope.exporter.sampling.sample import GpuSample

from tests.support.fake_nvml import FakeNvml
from tests.support.gpu_ticks import GpuTicks
from tests.support.processes import ran

NOT_SUPPORTED = 3


@pytest.fixture
def old_nvml(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "old", gpus=1, old_driver=True)


@pytest.fixture
def old_ticks(old_nvml: FakeNvml) -> Iterator[GpuTicks]:
    ticks = GpuTicks(old_nvml.library)
    yield ticks
    ticks.collector.close()


def test_every_value_of_two_gpus_in_base_units(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.set_fields(1, {79: 250_000_000, 4: 5})
    ticks.tick()
    ticks.tick()
    hardware = {family.name for family in health.families()}  # tested in test_gpu_hardware.py
    published = {
        family.name: dict(family.samples)
        for family in ticks.collector.families
        if family.samples and family.name not in hardware
    }
    throttled = {
        "sw_power_cap": (1.0, 1.0),
        "sync_boost": (0, 0),
        "sw_thermal": (2.0, 2.0),
        "hw_thermal": (0, 0),
        "hw_power_brake": (0, 0),
        "board_limit": (0, 0),
        "reliability": (0, 0.25),
    }
    model = "NVIDIA H100 80GB HBM3"
    assert published == {
        "stepscope_gpu_up": {("0",): 1, ("1",): 1},
        "stepscope_gpu_info": {
            ("0", "GPU-00000000-0000-0000-0000-000000000000", model, "580.95.05", "00000000:10:00.0"): 1,
            ("1", "GPU-00000000-0000-0000-0000-000000000001", model, "580.95.05", "00000000:11:00.0"): 1,
        },
        "stepscope_gpu_utilization_ratio": {("0",): 0.9, ("1",): 0.91},
        "stepscope_gpu_memory_used_bytes": {("0",): 40_000_000_000, ("1",): 40_000_000_001},
        "stepscope_gpu_memory_total_bytes": {("0",): 85_899_345_920, ("1",): 85_899_345_920},
        "stepscope_gpu_memory_bandwidth_utilization_ratio": {("0",): 0.4, ("1",): 0.41},
        "stepscope_gpu_power_watts": {("0",): 612.0, ("1",): 612.001},
        "stepscope_gpu_power_limit_watts": {("0",): 700.0, ("1",): 700.0},
        "stepscope_gpu_temperature_celsius": {("0",): 50, ("1",): 51},
        "stepscope_gpu_clock_hertz": {
            ("0", "sm"): 1.98e9,
            ("0", "memory"): 2.619e9,
            ("1", "sm"): 1.98e9,
            ("1", "memory"): 2.619e9,
        },
        "stepscope_gpu_sm_active_ratio": {("0",): 0.8, ("1",): 0.81},
        "stepscope_gpu_tensor_active_ratio": {("0",): 0.3, ("1",): 0.31},
        "stepscope_gpu_dram_active_ratio": {("0",): 0.2, ("1",): 0.21},
        "stepscope_gpu_busy_seconds_total": {("0",): 0.45, ("1",): 0.455},
        "stepscope_gpu_energy_joules_total": {("0",): 5000.0, ("1",): 5000.001},
        "stepscope_gpu_throttle_seconds_total": {
            (gpu, reason): of_gpu[int(gpu)] for reason, of_gpu in throttled.items() for gpu in "01"
        },
        "stepscope_gpu_pcie_receive_bytes_total": {("0",): 0, ("1",): 0},
        "stepscope_gpu_pcie_transmit_bytes_total": {("0",): 0, ("1",): 0},
        "stepscope_gpu_nvlink_receive_bytes_total": {("0",): 4 * 2**20, ("1",): 4 * 2**20},
        "stepscope_gpu_nvlink_transmit_bytes_total": {("0",): 2 * 2**20, ("1",): 2 * 2**20},
        "stepscope_gpu_ecc_errors_total": {
            ("0", "corrected"): 0,
            ("0", "uncorrected"): 0,
            ("1", "corrected"): 1,
            ("1", "uncorrected"): 5,
        },
    }


def test_the_sample_carries_the_gpus_and_their_compute_processes(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.run_processes(0, 4711, 4712)
    nvml.run_processes(1, 4713)
    ticks.tick()
    sample = ticks.tick()
    assert list(sample.gpus) == ["0", "1"]
    assert sample.gpus["1"] == GpuSample(
        utilization_ratio=0.91,
        memory_used_bytes=40_000_000_001,
        memory_total_bytes=85_899_345_920,
        memory_bandwidth_utilization_ratio=0.41,
        power_watts=612.001,
        temperature_celsius=51,
        clock_hertz=1.98e9,
        busy_seconds=0.91 * 0.5,
        energy_joules=5000.001,
        throttle_seconds=3.0,
        thermal_throttle_seconds=2.0,
        power_throttle_seconds=1.0,
        pcie_receive_bytes=0.0,
        pcie_transmit_bytes=0.0,
        nvlink_receive_bytes=4 * 2**20,
        nvlink_transmit_bytes=2 * 2**20,
        ecc_uncorrected_errors=0.0,
        xid_errors=0.0,
        last_xid=sample.gpus["1"].last_xid,  # NaN, which equals nothing but itself
        lost=0.0,
        sm_active_ratio=0.81,
        tensor_active_ratio=0.31,
        dram_active_ratio=0.21,
        power_limit_watts=700.0,
        compute_processes=1,
        model="NVIDIA H100 80GB HBM3",
        uuid="GPU-00000000-0000-0000-0000-000000000001",
    )
    assert isnan(sample.gpus["1"].last_xid)
    assert sample.gpu_processes == {"0": {4711: 1.0, 4712: 1.0}, "1": {4713: 1.0}}
    assert sample.driver_version == "580.95.05"


def test_a_tick_shows_what_changed_since_the_last_one(nvml: FakeNvml, ticks: GpuTicks) -> None:
    ticks.tick()
    nvml.set(0, utilization=3, memory_used=17, temperature=88, sm_clock_mhz=210)
    nvml.set_fields(0, {186: 71_500, 83: 5_000_900})
    sample = ticks.tick()
    assert ticks.value("utilization_ratio", "0") == 0.03
    assert ticks.value("memory_used_bytes", "0") == 17
    assert ticks.value("temperature_celsius", "0") == 88
    assert ticks.value("clock_hertz", "0", "sm") == 210e6
    assert ticks.value("power_watts", "0") == 71.5
    assert ticks.value("energy_joules_total", "0") == 5000.9
    assert sample.gpus["0"].utilization_ratio == 0.03


def test_busy_time_is_the_utilisation_added_up(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.set(0, utilization=50)
    ticks.tick()
    assert ticks.value("busy_seconds_total", "0") == 0
    ticks.tick(after=0.5)
    assert ticks.value("busy_seconds_total", "0") == 0.25
    nvml.set(0, utilization=100)
    ticks.tick(after=2.0)
    assert ticks.value("busy_seconds_total", "0") == 2.25


def test_busy_time_does_not_grow_over_a_gap_longer_than_two_intervals(
    nvml: FakeNvml, ticks: GpuTicks
) -> None:
    nvml.set(0, utilization=100)
    ticks.tick(interval=10)
    ticks.tick(after=500, interval=10)
    assert ticks.value("busy_seconds_total", "0") == 20


def test_pcie_bytes_go_on_when_the_drivers_counter_wraps_at_32_bits(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.set_fields(0, {197: 2**32 - 100, 198: 500})
    ticks.tick()
    nvml.set_fields(0, {197: 2**32 - 40, 198: 2500})
    ticks.tick()
    assert ticks.value("pcie_transmit_bytes_total", "0") == 60
    nvml.set_fields(0, {197: 10})
    ticks.tick()
    assert ticks.value("pcie_transmit_bytes_total", "0") == 110
    assert ticks.value("pcie_receive_bytes_total", "0") == 2000


def test_nvlink_5_counts_bytes_in_fields_of_its_own(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.set_fields(0, {138: None, 139: None, 202: 123, 204: 456})
    nvml.set_fields(1, {202: 7, 204: 8})  # both generations' fields: the first ones count
    for _ in range(2):
        ticks.tick()
        assert ticks.samples("nvlink_transmit_bytes_total") == {("0",): 123, ("1",): 2 * 2**20}
        assert ticks.samples("nvlink_receive_bytes_total") == {("0",): 456, ("1",): 4 * 2**20}


def test_a_gpu_without_nvlink_ecc_energy_or_gpm_has_no_such_metrics(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.set(0, gpm=0)
    nvml.set_fields(0, dict.fromkeys((3, 4, 83, 138, 139)))
    ticks.tick()
    sample = ticks.tick().gpus["0"]
    missing = {
        "nvlink_receive_bytes_total",
        "nvlink_transmit_bytes_total",
        "ecc_errors_total",
        "energy_joules_total",
        "sm_active_ratio",
        "tensor_active_ratio",
        "dram_active_ratio",
    }
    assert ticks.published_of("1") - ticks.published_of("0") == missing
    assert isnan(sample.energy_joules)
    assert isnan(sample.sm_active_ratio)
    assert sample.power_watts == 612.0


def test_mig_devices_have_their_own_memory_and_processes_and_no_utilisation(
    nvml: FakeNvml, ticks: GpuTicks
) -> None:
    nvml.run_processes(1, 4711)
    nvml.divide(1, mig_0=(4711,), mig_2=(4712, 4713))
    sample = ticks.tick()
    assert set(sample.gpus) == {"0", "1", "1:0", "1:2"}
    part = sample.gpus["1:2"]
    assert (part.uuid, part.model) == ("MIG-00000001-2", "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert (part.memory_used_bytes, part.memory_total_bytes) == (1e9, 1e10)
    assert isnan(part.utilization_ratio)
    assert sample.gpu_processes == {"0": {}, "1:0": {4711: 1.0}, "1:2": {4712: 1.0, 4713: 1.0}}
    assert ticks.published_of("1:0") == {"info", "memory_used_bytes", "memory_total_bytes"}
    assert ticks.value("power_watts", "1") > 0


def test_mig_devices_come_and_go(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.divide(0, mig_0=(), mig_1=())
    assert set(ticks.tick().gpus) == {"0", "0:0", "0:1", "1"}
    nvml.divide(0, mig_1=(), mig_3=())
    assert set(ticks.tick().gpus) == {"0", "0:1", "1"}
    assert set(ticks.tick(after=2).gpus) == {"0", "0:1", "0:3", "1"}


def test_a_gpu_is_divided_and_made_whole_again_while_it_is_watched(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.run_processes(0, 4711)
    ticks.tick()
    ticks.tick()
    everything = ticks.published_of("0")
    nvml.divide(0, mig_0=(4711,))
    sample = ticks.tick(after=60)
    assert sample.gpu_processes == {"0:0": {4711: 1.0}, "1": {}}
    assert "utilization_ratio" not in ticks.published_of("0")
    nvml.divide(0)
    ticks.tick(after=60)
    sample = ticks.tick()
    assert sample.gpu_processes == {"0": {4711: 1.0}, "1": {}}
    assert ticks.published_of("0") == everything


def test_mig_devices_that_may_not_be_listed_leave_nothing_behind_at_each_look(
    nvml: FakeNvml, ticks: GpuTicks
) -> None:
    nvml.divide(0, mig_0=())
    nvml.fail(0, "nvmlDeviceGetMaxMigDeviceCount", NOT_SUPPORTED)
    for _ in range(5):
        assert set(ticks.tick(after=2).gpus) == {"0", "1"}
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    assert sum(each.__qualname__.startswith("Gpu._read_mig.") for each in functions) <= 1


def test_a_gpu_in_mig_mode_gives_everything_but_its_utilisation(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.set(0, mig_mode=1)
    nvml.fail(0, "nvmlGpmSampleGet", NOT_SUPPORTED)
    ticks.tick()
    sample = ticks.tick().gpus["0"]
    assert ticks.value("up", "0") == 1
    assert ticks.published_of("1") - ticks.published_of("0") == {
        "utilization_ratio",
        "memory_bandwidth_utilization_ratio",
        "busy_seconds_total",
        "sm_active_ratio",
        "tensor_active_ratio",
        "dram_active_ratio",
    }
    assert isnan(sample.utilization_ratio)
    assert sample.memory_used_bytes == 40_000_000_000


def test_an_old_driver_is_asked_by_the_functions_that_it_has(old_nvml: FakeNvml, old_ticks: GpuTicks) -> None:
    old_nvml.run_processes(0, 99)
    old_ticks.tick()
    sample = old_ticks.tick()
    assert old_ticks.value("memory_used_bytes", "0") == 40_000_000_000
    assert old_ticks.value("memory_total_bytes", "0") == 85_299_345_920  # without the driver's own share
    assert old_ticks.value("temperature_celsius", "0") == 50
    assert old_ticks.value("power_watts", "0") == 500.0
    assert old_ticks.value("power_limit_watts", "0") == 700.0
    assert sample.gpu_processes == {"0": {99: 1.0}}
    assert not old_ticks.samples("sm_active_ratio")
    assert not old_ticks.samples("nvlink_transmit_bytes_total")


def test_throttling_that_an_old_driver_does_not_count_is_added_up_from_the_reasons_now(
    old_nvml: FakeNvml, old_ticks: GpuTicks
) -> None:
    thermal, brake, idle, power_cap = 0x20, 0x80, 0x01, 0x04
    old_nvml.set(0, clock_reasons=thermal | idle | power_cap)
    old_ticks.tick()
    old_ticks.tick(after=0.5)
    old_nvml.set(0, clock_reasons=brake)
    sample = old_ticks.tick(after=0.25)
    assert old_ticks.samples("throttle_seconds_total") == {
        ("0", "sw_power_cap"): 1.0,  # counted by the driver, and so not by us
        ("0", "sync_boost"): 0,
        ("0", "sw_thermal"): 0.5,
        ("0", "hw_thermal"): 0,
        ("0", "hw_power_brake"): 0.25,
        ("0", "board_limit"): 0,
        ("0", "reliability"): 0,
    }
    assert sample.gpus["0"].throttle_seconds == 1.75
    assert sample.gpus["0"].thermal_throttle_seconds == 0.5
    assert sample.gpus["0"].power_throttle_seconds == 1.25


def test_fields_that_meant_something_else_before_driver_580_are_not_read(
    nvml: FakeNvml, ticks: GpuTicks
) -> None:
    nvml.set_driver("575.57.08")
    nvml.set_fields(0, {269: 17, 270: 10**15, 271: 10**15})
    nvml.set(0, clock_reasons=0x40)
    ticks.tick()
    ticks.tick(after=0.5)
    assert ticks.value("throttle_seconds_total", "0", "sw_thermal") == 0
    assert ticks.value("throttle_seconds_total", "0", "hw_thermal") == 0.5
    assert ticks.value("throttle_seconds_total", "0", "hw_power_brake") == 0


def test_pcie_traffic_that_an_old_driver_does_not_count_is_measured_between_ticks(
    old_nvml: FakeNvml, old_ticks: GpuTicks
) -> None:
    old_nvml.set(0, pcie_tx_kbps=1000, pcie_rx_kbps=3000)
    old_ticks.tick()  # both directions are measured for the first time behind it
    assert not old_ticks.samples("pcie_transmit_bytes_total")
    old_ticks.tick(after=0)
    assert old_ticks.value("pcie_transmit_bytes_total", "0") == 0
    old_ticks.tick(after=2.0)  # and again
    old_ticks.tick(after=0)
    assert old_ticks.value("pcie_transmit_bytes_total", "0") == 2_000_000
    assert old_ticks.value("pcie_receive_bytes_total", "0") == 6_000_000


def test_a_field_of_an_unknown_type_costs_only_itself() -> None:
    batch = FieldBatch([(1, 0), (2, 0)])
    for slot, kind in zip(batch.buffer, (1, 7), strict=True):
        slot.valueType = kind
        slot.value.uiVal = 5
    assert batch.values() == {1: 5}


def test_a_power_limit_that_changed_is_seen_within_ten_seconds(nvml: FakeNvml, ticks: GpuTicks) -> None:
    ticks.tick()
    ticks.tick()
    nvml.set_fields(0, {190: 350_000})
    ticks.tick(after=10)
    assert ticks.value("power_limit_watts", "0") == 350.0


def test_a_compute_process_that_ended_is_gone_within_two_seconds(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.run_processes(1, 4711)
    assert ticks.tick().gpu_processes["1"] == {4711: 1.0}
    nvml.run_processes(1)
    assert ticks.tick(after=2).gpu_processes["1"] == {}


def test_a_minute_of_ticks_makes_a_fixed_number_of_calls_for_each_gpu(tmp_path: Path) -> None:
    nvml = FakeNvml(tmp_path, gpus=8)
    ticks = GpuTicks(nvml.library)
    try:
        ticks.tick()
        before = nvml.calls()
        for _ in range(120):
            ticks.tick(after=0.5)
        after = nvml.calls()
    finally:
        ticks.collector.close()
    made = {key: number - before.get(key, 0) for key, number in after.items()}
    for gpu in range(8):
        of_gpu = {name: number for (name, of), number in made.items() if of == gpu and number}
        assert of_gpu == {
            "nvmlDeviceGetMemoryInfo_v2": 120,
            "nvmlDeviceGetUtilizationRates": 120,
            "nvmlDeviceGetFieldValues": 120 + 6 + 1,  # slow ones, and those of every minute
            "nvmlDeviceGetMigMode": 1,
            "nvmlDeviceGetCurrPcieLinkWidth": 1,
            "nvmlDeviceGetMaxPcieLinkWidth": 1,
            "nvmlDeviceGetCurrPcieLinkGeneration": 1,
            "nvmlDeviceGetMaxPcieLinkGeneration": 1,
            "nvmlDeviceGetTemperatureV": 120,
            "nvmlDeviceGetClockInfo": 240,  # multiprocessors and memory
            "nvmlGpmSampleGet": 120,
            "nvmlGpmMetricsGet": 120,
            "nvmlDeviceGetComputeRunningProcesses_v3": 30,  # every 2 s
        }
    others = {name for (name, gpu), number in made.items() if gpu is None and number}
    assert others <= {"nvmlEventSetWait_v2"}


def test_slow_readings_of_eight_gpus_are_spread_over_the_ticks(tmp_path: Path) -> None:
    nvml = FakeNvml(tmp_path, gpus=8)
    ticks = GpuTicks(nvml.library)

    def field_calls() -> int:
        return sum(number for (name, _), number in nvml.calls().items() if name == "nvmlDeviceGetFieldValues")

    try:
        ticks.tick()
        counts = [field_calls()]
        for _ in range(40):
            ticks.tick(after=0.5)
            counts.append(field_calls())
    finally:
        ticks.collector.close()
    slow_calls = [later - earlier - 8 for earlier, later in pairwise(counts)]
    assert max(slow_calls) == 2  # one of them may be of the hardware, which is read every minute
    assert sum(slow_calls) == 16 + 2


def test_what_a_gpu_cannot_say_is_asked_once_and_not_at_each_tick(nvml: FakeNvml, ticks: GpuTicks) -> None:
    for function in (
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetMemoryInfo_v2",
    ):
        nvml.fail(0, function, NOT_SUPPORTED)
    for _ in range(5):
        ticks.tick()
    calls = nvml.calls()
    assert calls["nvmlDeviceGetUtilizationRates", 0] == 1
    assert calls["nvmlDeviceGetUtilizationRates", 1] == 5
    assert calls["nvmlDeviceGetTemperatureV", 0] == 1
    assert calls["nvmlDeviceGetTemperature", 0] == 5
    assert calls["nvmlDeviceGetMemoryInfo_v2", 0] == 1
    assert ticks.value("temperature_celsius", "0") == 50
    assert ticks.published_of("1") - ticks.published_of("0") == {
        "utilization_ratio",
        "memory_bandwidth_utilization_ratio",
        "busy_seconds_total",
    }


def test_a_value_that_is_missing_for_a_moment_is_asked_for_again(nvml: FakeNvml, ticks: GpuTicks) -> None:
    in_use = 19
    ticks.tick()
    nvml.fail(0, "nvmlDeviceGetUtilizationRates", in_use)
    sample = ticks.tick().gpus["0"]
    assert "utilization_ratio" not in ticks.published_of("0")
    assert isnan(sample.utilization_ratio)
    nvml.fail(0, "nvmlDeviceGetUtilizationRates", 0)
    ticks.tick()
    assert ticks.value("utilization_ratio", "0") == 0.9


def test_the_flag_names_a_library_and_a_wrong_one_is_one_line_unless_no_gpu_is_read(nvml: FakeNvml) -> None:
    parser = ArgumentParser()
    add_flags(parser, [GpuCollector])
    wrong = ["--path.nvml-library", "/no/such.so"]
    with pytest.raises(UserError, match=r"^--path\.nvml-library /no/such\.so: there is no such file"):
        enabled(vars(parser.parse_args(wrong)), [GpuCollector])
    assert enabled(vars(parser.parse_args([*wrong, "--no-collector.gpu"])), [GpuCollector]) == []
    flags = parser.parse_args(["--path.nvml-library", os.path.relpath(nvml.library)])
    assert flags.path_nvml_library.is_absolute()
    assert flags.path_nvml_library.samefile(nvml.library)


def test_without_the_flag_the_dynamic_loader_finds_the_library(nvml: FakeNvml) -> None:
    code = (
        "from stepscope.exporter.collectors.gpu import GpuCollector\n"
        "from stepscope.exporter.sampling.sample import Sample\n"
        "collector, sample = GpuCollector(), Sample(time=0, interval=60)\n"
        "collector.collect(sample)\n"
        "collector.close()\n"
        "print(*(gpu.utilization_ratio for gpu in sample.gpus.values()))\n"
    )
    environment = os.environ | nvml.environment()
    result = ran([sys.executable, "-c", code], env=environment)
    assert (result.stdout, result.stderr) == ("0.9 0.91\n", "")


@pytest.mark.gpu
def test_a_real_gpu_answers_with_plausible_values() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
        number = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        pytest.skip(f"no NVIDIA GPU to test with: {error}")
    ticks = GpuTicks()
    try:
        for _ in range(3):
            sample = ticks.tick(interval=60)
            time.sleep(0.2)  # GPM wants more than 0.1 s between two samples
    finally:
        ticks.collector.close()
    assert len(sample.gpus) == number
    for label, gpu in sample.gpus.items():
        assert gpu.uuid.startswith("GPU-")
        assert ticks.value("up", label) == 1
        assert 0 <= gpu.utilization_ratio <= 1 or isnan(gpu.utilization_ratio)
        assert 0 < gpu.memory_total_bytes < 2**42
        assert 0 <= gpu.memory_used_bytes <= gpu.memory_total_bytes
        assert 1 < gpu.power_watts < 2000
        assert 0 < gpu.temperature_celsius < 120
