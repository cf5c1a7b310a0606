"""What the GPU collector does when drivers are missing, GPUs are lost and calls hang."""

import logging
import threading
from collections.abc import Iterator
from math import isnan
from pathlib import Path

import pytest
from stepscope.exporter.nvidia import thread as gpu_thread
from stepscope.exporter.nvidia.session import NoReadingError
from stepscope.exporter.nvidia.xid_events import last_xids
from stepscope.exporter.sampling.registry import Registry
from stepscope.exporter.sampling.sample import Sample

from tests.support.fake_nvml import FakeNvml
from tests.support.gpu_ticks import GpuTicks
from tests.support.waiting import wait_until

INVALID_ARGUMENT, GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND, UNKNOWN = 2, 15, 16, 28, 999
SHORT = 2.0  # seconds of sample interval where a call hangs: a tick fails after half of them


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "nvml", gpus=3)


@pytest.fixture
def ticks(nvml: FakeNvml) -> Iterator[GpuTicks]:
    ticks = GpuTicks(nvml.library)
    yield ticks
    nvml.release()
    ticks.collector.close()


def calls_of(nvml: FakeNvml, function: str) -> int:
    return sum(number for (name, _), number in nvml.calls().items() if name == function)


@pytest.mark.parametrize("code", [INVALID_ARGUMENT, GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND, UNKNOWN])
def test_a_lost_gpu_is_down_with_no_other_value_and_the_others_go_on(
    nvml: FakeNvml, ticks: GpuTicks, code: int
) -> None:
    ticks.tick()
    ticks.tick()
    everything = ticks.published_of("1")
    nvml.lose(1, code)
    for _ in range(3):
        sample = ticks.tick()
        assert ticks.samples("up") == {("0",): 1, ("1",): 0, ("2",): 1}
        assert ticks.published_of("1") == {"up"}
        assert ticks.published_of("0") == ticks.published_of("2") == everything
        assert {gpu: read.lost for gpu, read in sample.gpus.items()} == {"0": 0, "1": 1, "2": 0}
        assert isnan(sample.gpus["1"].utilization_ratio)


def test_an_unknown_error_of_one_value_costs_only_that_value(nvml: FakeNvml, ticks: GpuTicks) -> None:
    ticks.tick()
    nvml.fail(1, "nvmlDeviceGetTemperatureV", UNKNOWN)
    for _ in range(2):
        ticks.tick()
        assert ticks.published_of("0") - ticks.published_of("1") == {"temperature_celsius"}
        assert ticks.value("up", "1") == 1


def test_a_gpu_that_is_lost_in_the_middle_of_a_reading_leaves_no_half_of_it(
    nvml: FakeNvml, ticks: GpuTicks
) -> None:
    ticks.tick()
    nvml.fail(1, "nvmlDeviceGetClockInfo", GPU_IS_LOST)  # asked after most of the others
    nvml.run_processes(1, 4711)
    sample = ticks.tick(after=10)
    assert ticks.published_of("1") == {"up"}
    assert ticks.value("up", "1") == 0
    assert "1" not in sample.gpu_processes


def test_a_lost_gpu_comes_back_and_our_counters_go_on(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.set(1, utilization=100)
    nvml.set_fields(1, {197: 1000})
    ticks.tick()
    nvml.set_fields(1, {197: 1500})
    ticks.tick(after=4)
    everything = ticks.published_of("1")
    assert ticks.value("busy_seconds_total", "1") == 4
    nvml.lose(1)
    ticks.tick()
    nvml.restore(1)
    nvml.set_fields(1, {197: 300})
    ticks.tick(after=10)  # behind this one the GPU is looked for
    sample = ticks.tick()
    assert ticks.value("up", "1") == 1
    assert "1" in sample.gpus
    assert ticks.value("busy_seconds_total", "1") == 4  # nothing of the time of which nothing is known
    assert ticks.value("pcie_transmit_bytes_total", "1") == 500  # its counter began anew: no wrap
    ticks.tick(after=1)
    assert ticks.value("busy_seconds_total", "1") == 5
    assert ticks.published_of("1") == everything
    assert calls_of(nvml, "nvmlInitWithFlags") == 1


def test_a_gpu_that_only_an_nvml_started_anew_can_see_comes_back(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.set(0, utilization=100)
    ticks.tick()
    nvml.lose(2, until_init=True)
    ticks.tick(after=1)
    nvml.restore(2)
    ticks.tick(after=1)
    assert ticks.value("up", "2") == 0
    ticks.tick(after=10)
    ticks.tick(after=1)
    assert ticks.samples("up") == {("0",): 1, ("1",): 1, ("2",): 1}
    assert ticks.value("utilization_ratio", "2") == 0.92
    # 1 + 1 + 10 + 1 seconds, though NVML was restarted in between.
    assert ticks.value("busy_seconds_total", "0") == 13
    calls = nvml.calls()
    assert calls["nvmlInitWithFlags", None] == calls["nvmlShutdown", None] + 1 == 2


def test_labels_stay_when_nvml_counts_anew_without_the_lost_gpu(nvml: FakeNvml, ticks: GpuTicks) -> None:
    ticks.tick()
    nvml.hide(0)
    ticks.tick()
    ticks.tick(after=10)  # after it NVML is restarted, and has 2 GPUs
    ticks.tick()
    assert ticks.samples("up") == {("0",): 0, ("1",): 1, ("2",): 1}
    assert ticks.samples("temperature_celsius") == {("1",): 51, ("2",): 52}
    assert {labels[:2] for labels in ticks.samples("info")} == {
        ("1", "GPU-00000000-0000-0000-0000-000000000001"),
        ("2", "GPU-00000000-0000-0000-0000-000000000002"),
    }
    nvml.restore(0)
    ticks.tick(after=20)
    ticks.tick()
    assert ticks.samples("temperature_celsius") == {("0",): 50, ("1",): 51, ("2",): 52}


def test_nvml_is_started_anew_less_and_less_often_for_a_gpu_that_stays_lost(
    nvml: FakeNvml, ticks: GpuTicks
) -> None:
    ticks.tick()
    nvml.lose(1)
    for _ in range(4 * 60):
        ticks.tick(after=1)
    ticks.tick(after=0)
    # Looked for after 10 s, and then at least 10, 20, 40 and 80 s apart.
    assert calls_of(nvml, "nvmlInitWithFlags") - 1 == 5
    assert ticks.samples("up") == {("0",): 1, ("1",): 0, ("2",): 1}


def test_a_gpu_that_was_lost_before_the_exporter_started_is_down_and_can_come(
    nvml: FakeNvml, ticks: GpuTicks
) -> None:
    nvml.lose(1)
    ticks.tick()
    assert ticks.samples("up") == {("0",): 1, ("1",): 0, ("2",): 1}
    nvml.restore(1)
    ticks.tick(after=10)
    ticks.tick()
    assert ticks.samples("up") == {("0",): 1, ("1",): 1, ("2",): 1}
    assert ticks.value("temperature_celsius", "1") == 51


def test_what_was_unsupported_is_tried_again_when_the_gpu_is_back(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.fail(1, "nvmlDeviceGetUtilizationRates", 3)
    nvml.set_fields(1, {83: None})
    ticks.tick()
    assert not {"utilization_ratio", "energy_joules_total"} & ticks.published_of("1")
    nvml.lose(1)
    ticks.tick()
    nvml.fail(1, "nvmlDeviceGetUtilizationRates", 0)
    nvml.set_fields(1, {83: 7000})
    nvml.restore(1)
    ticks.tick(after=10)
    ticks.tick()
    assert ticks.value("utilization_ratio", "1") == 0.91
    assert ticks.value("energy_joules_total", "1") == 7.0


def test_a_hanging_call_fails_the_tick_in_one_sentence_and_no_second_call_is_made(
    nvml: FakeNvml, ticks: GpuTicks
) -> None:
    ticks.tick()
    nvml.hang("nvmlDeviceGetUtilizationRates", 2)
    for _ in range(4):
        with pytest.raises(
            NoReadingError, match=r"^nvmlDeviceGetUtilizationRates, about GPU 2, has not returned yet"
        ):
            ticks.tick(interval=SHORT)
    calls = nvml.calls()
    assert calls["nvmlDeviceGetUtilizationRates", 2] == 2
    assert calls["nvmlDeviceGetUtilizationRates", 0] == 2
    nvml.set(2, utilization=7)
    nvml.release()

    def recovered() -> bool:
        try:
            ticks.tick()
        except NoReadingError:  # the thread has not noticed yet
            return False
        return True

    wait_until(recovered)
    assert ticks.value("utilization_ratio", "2") == 0.07
    assert nvml.calls()["nvmlDeviceGetUtilizationRates", 2] == 3


def test_a_hang_costs_the_exporter_only_the_gpu_metrics_and_one_line_in_the_log(
    nvml: FakeNvml, ticks: GpuTicks, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry([ticks.collector])

    def success() -> float:
        (family,) = (
            family for family in registry.own_families if family.name == "stepscope_collector_success"
        )
        return family.samples[("gpu",)]

    registry.collect(Sample(time=0, interval=60))
    assert success() == 1
    assert ticks.samples("up")
    nvml.hang("nvmlDeviceGetMemoryInfo_v2", 0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            sample = Sample(time=0, interval=SHORT)
            registry.collect(sample)
            assert success() == 0
            assert not any(family.samples for family in ticks.collector.families)
            assert sample.gpus == {}
    assert [record.getMessage() for record in caplog.records] == [
        "collector gpu failed: nvmlDeviceGetMemoryInfo_v2, about GPU 0, has not returned yet; "
        "the exporter continues when it does"
    ]


def test_a_driver_that_hangs_in_starting_is_said(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.hang("nvmlInitWithFlags")
    with pytest.raises(NoReadingError, match=r"^nvmlInitWithFlags, about the driver, has not returned yet"):
        ticks.tick(interval=SHORT)


def test_closing_does_not_wait_for_a_hanging_call(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_thread, "CLOSING_SECONDS", 0.05)
    ticks = GpuTicks(nvml.library)
    ticks.tick()
    nvml.hang("nvmlDeviceGetMemoryInfo_v2", 0)
    with pytest.raises(NoReadingError):
        ticks.tick(interval=SHORT)
    ticks.collector.close()
    assert calls_of(nvml, "nvmlShutdown") == 0
    nvml.release()
    wait_until(lambda: calls_of(nvml, "nvmlShutdown") == 1)


def test_an_nvml_that_says_it_is_not_initialised_is_started_anew(nvml: FakeNvml, ticks: GpuTicks) -> None:
    uninitialised = 1
    ticks.tick()
    nvml.fail(1, "nvmlDeviceGetMemoryInfo_v2", uninitialised)
    with pytest.raises(NoReadingError, match=r"^NVML must be restarted"):
        ticks.tick(after=10)
    nvml.fail(1, "nvmlDeviceGetMemoryInfo_v2", 0)
    ticks.tick()
    assert ticks.samples("up") == {("0",): 1, ("1",): 1, ("2",): 1}
    assert calls_of(nvml, "nvmlInitWithFlags") == 2


def test_without_a_driver_there_is_nothing_but_a_reason_that_stays_the_same(tmp_path: Path) -> None:
    ticks = GpuTicks(tmp_path / "libnvidia-ml.so.1")
    reasons = set()
    for _ in range(30):
        with pytest.raises(NoReadingError) as caught:
            ticks.tick()
        reasons.add(str(caught.value))
    assert not any(family.samples for family in ticks.collector.families)
    (reason,) = reasons
    assert reason.startswith("no NVIDIA driver here (")
    assert reason.endswith("looking again every 10 s")
    ticks.collector.close()


def test_a_driver_that_is_installed_later_is_found(tmp_path: Path) -> None:
    ticks = GpuTicks(tmp_path / "libnvidia-ml.so.1")
    with pytest.raises(NoReadingError):
        ticks.tick()
    FakeNvml(tmp_path, gpus=1)
    with pytest.raises(NoReadingError):
        ticks.tick(after=9)
    ticks.tick(after=1)
    assert ticks.samples("up") == {("0",): 1}
    ticks.collector.close()


def test_a_driver_that_is_not_loaded_is_asked_again_at_a_slow_pace(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.unload_driver()
    for _ in range(61):
        with pytest.raises(
            NoReadingError, match=r"^no answer from the driver \(nvmlInitWithFlags: Driver Not Loaded\)"
        ):
            ticks.tick(after=0.5)
    assert calls_of(nvml, "nvmlInitWithFlags") == 4
    nvml.load_driver()
    ticks.tick(after=10)
    assert ticks.samples("up") == {("0",): 1, ("1",): 1, ("2",): 1}


def test_a_driver_without_a_gpu_is_said(tmp_path: Path) -> None:
    ticks = GpuTicks(FakeNvml(tmp_path, gpus=0).library)
    with pytest.raises(NoReadingError, match=r"^NVML finds no GPU; looking again every 10 s$"):
        ticks.tick()
    ticks.collector.close()


def test_xid_errors_are_counted_by_gpu_and_number_and_stay_over_a_restart_of_nvml(
    nvml: FakeNvml, ticks: GpuTicks
) -> None:
    def counts() -> dict[tuple[str, ...], float]:
        ticks.tick(after=0)
        return ticks.samples("xid_errors_total")

    assert counts() == {}
    nvml.post_xid(1, 79)
    nvml.post_xid(1, 79)
    nvml.post_xid(0, 31)
    wait_until(lambda: counts() == {("1", "79"): 2, ("0", "31"): 1})
    nvml.lose(1, until_init=True)
    ticks.tick()
    assert ticks.published_of("1") == {"up", "xid_errors_total"}  # why it was lost stays to be seen
    nvml.restore(1)
    ticks.tick(after=10)
    ticks.tick()
    assert calls_of(nvml, "nvmlInitWithFlags") == 2
    nvml.post_xid(1, 79)
    wait_until(lambda: counts() == {("1", "79"): 3, ("0", "31"): 1})


def test_the_sample_has_the_xid_errors_also_of_a_gpu_that_is_lost(nvml: FakeNvml, ticks: GpuTicks) -> None:
    def errors() -> dict[str, float]:
        return {gpu: sample.xid_errors for gpu, sample in ticks.tick().gpus.items()}

    assert errors() == {"0": 0, "1": 0, "2": 0}
    nvml.post_xid(1, 79)
    nvml.post_xid(0, 31)
    wait_until(lambda: errors() == {"0": 1, "1": 1, "2": 0})
    nvml.lose(1)
    nvml.lose(2)
    gpus = ticks.tick().gpus
    assert (gpus["0"].last_xid, gpus["1"].last_xid) == (31, 79)
    assert isnan(gpus["2"].last_xid)
    assert isnan(gpus["1"].utilization_ratio)
    assert gpus["1"].uuid


def test_a_gpu_that_reports_no_events_to_a_new_nvml_has_no_number_of_xid_errors(
    nvml: FakeNvml, ticks: GpuTicks
) -> None:
    def errors() -> list[str]:
        return [gpu for gpu, sample in ticks.tick(after=10).gpus.items() if not isnan(sample.xid_errors)]

    assert errors() == ["0", "1", "2"]
    nvml.fail(0, "nvmlDeviceRegisterEvents", 999)
    nvml.lose(1, until_init=True)
    ticks.tick()
    nvml.restore(1)
    wait_until(lambda: bool(errors()) and ticks.samples("up")[("1",)] == 1)
    assert errors() == ["1", "2"]


def test_xid_errors_are_counted_of_a_gpu_that_was_lost_when_nvml_started_and_answers_to_its_handle_later(
    nvml: FakeNvml, ticks: GpuTicks
) -> None:
    nvml.fail(1, "nvmlGpmQueryDeviceSupport", GPU_IS_LOST)
    assert ticks.tick().gpus["1"].lost == 1
    nvml.fail(1, "nvmlGpmQueryDeviceSupport", 0)
    ticks.tick(after=10)
    wait_until(lambda: ticks.tick(after=0).gpus["1"].xid_errors == 0)
    assert calls_of(nvml, "nvmlInitWithFlags") == 1
    nvml.post_xid(1, 79)
    nvml.post_xid(0, 31)
    counted = {("1", "79"): 1, ("0", "31"): 1}
    wait_until(lambda: ticks.tick(after=0) and ticks.samples("xid_errors_total") == counted)
    assert ticks.tick(after=0).gpus["1"].xid_errors == 1


@pytest.mark.parametrize("order", [("79", "45"), ("45", "79")])
def test_of_several_xid_errors_of_a_tick_that_of_the_gpu_is_kept(order: tuple[str, str]) -> None:
    """XID 45 only says that a program ended."""
    now = {("1", xid): 2 for xid in order}
    assert last_xids({("1", "79"): 1}, {**now, ("0", "31"): 1}) == {"0": 31, "1": 79}
    assert last_xids(now, {**now, ("1", "45"): 3}) == {"1": 45}
    assert last_xids(now, now) == {}


def test_waiting_for_xid_errors_does_not_hold_up_a_tick(nvml: FakeNvml, ticks: GpuTicks) -> None:
    nvml.hang("nvmlEventSetWait_v2")
    ticks.tick()
    wait_until(lambda: calls_of(nvml, "nvmlEventSetWait_v2") == 1)  # on its own thread
    for _ in range(3):
        ticks.tick()
    assert calls_of(nvml, "nvmlEventSetWait_v2") == 1
    assert ticks.samples("up") == {("0",): 1, ("1",): 1, ("2",): 1}


def test_closing_ends_the_threads_and_nvml(nvml: FakeNvml) -> None:
    before = set(threading.enumerate())
    ticks = GpuTicks(nvml.library)
    ticks.tick()
    ours = set(threading.enumerate()) - before
    assert {thread.name for thread in ours} == {"nvml", "xid"}
    ticks.collector.close()
    assert not any(thread.is_alive() for thread in ours)
    calls = nvml.calls()
    assert calls["nvmlShutdown", None] == calls["nvmlInitWithFlags", None] == 1
    assert calls["nvmlEventSetFree", None] == calls["nvmlEventSetCreate", None] == 1
    assert calls["nvmlGpmSampleFree", None] == calls["nvmlGpmSampleAlloc", None] == 6


def test_a_collector_that_was_never_asked_closes_without_a_thread(nvml: FakeNvml) -> None:
    GpuTicks(nvml.library).collector.close()
    assert nvml.calls() == {}
