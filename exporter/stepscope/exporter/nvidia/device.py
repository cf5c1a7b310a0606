"""One GPU: the values that it supports, its values at a tick, and the counters kept for it here.

A value that the GPU or its driver does not support is not read again, until the GPU was lost and is back:
then all values are tried again. docs/gpu.md has the table of sources, units and tiers.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import nan
from typing import Any, NamedTuple, TypeVar

from stepscope.exporter.nvidia.health import HARDWARE_FIELDS, HARDWARE_SECONDS, hardware_values
from stepscope.exporter.nvidia.nvml import (
    ALL_LINKS,
    GPM_METRICS,
    FieldBatch,
    Handle,
    Identity,
    Nvml,
    NvmlError,
)
from stepscope.exporter.sampling.sample import GpuSample

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Value = tuple[str, tuple[str, ...], float]  # family (without prefix), label values, value

SLOW_SECONDS = 10.0  # between two readings of values that hardly change: power limit, memory errors
PROCESSES_SECONDS = 2.0  # between two looks for compute processes
LONGEST_PCIE_GAP = 10.0  # the most seconds that one 20 ms measurement of PCIe traffic represents
SHORTEST_GPM_INTERVAL = 0.1  # seconds; NVML needs more than this between two samples

POWER_NOW, POWER_LIMIT, ENERGY = 186, 190, 83  # NVML_FI_DEV_POWER_INSTANT, _CURRENT_LIMIT, _TOTAL_ENERGY_...
CORRECTED, UNCORRECTED = 3, 4  # NVML_FI_DEV_ECC_SBE_VOL_TOTAL, _DBE_VOL_TOTAL
PCIE_SENT, PCIE_RECEIVED = 197, 198  # NVML_FI_DEV_PCIE_COUNT_TX_BYTES, _RX_BYTES
# NVLink in both directions: KiB up to NVLink 4 (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_*), bytes from NVLink 5
# on (NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, _RCV_BYTES).
NVLINK_4 = {138: ("nvlink_transmit_bytes", 1024), 139: ("nvlink_receive_bytes", 1024)}
NVLINK_5 = {202: ("nvlink_transmit_bytes", 1), 204: ("nvlink_receive_bytes", 1)}
NVLINK = NVLINK_4 | NVLINK_5


class Throttle(NamedTuple):
    """A reason for low clocks: the field that counts its nanoseconds, and its bit in the current reasons."""

    reason: str
    field: int
    bit: int  # 0: drivers no longer report it by a bit


# An idle GPU and clocks that a user set are no throttling. Fields 74 and 76 are named
# NVML_FI_DEV_PERF_POLICY_* and, in nanoseconds, NVML_FI_DEV_CLOCKS_EVENT_REASON_*.
THROTTLES = (
    Throttle("sw_power_cap", 74, 0x04),
    Throttle("sync_boost", 76, 0x10),
    Throttle("sw_thermal", 269, 0x20),
    Throttle("hw_thermal", 270, 0x40),
    Throttle("hw_power_brake", 271, 0x80),
    Throttle("board_limit", 77, 0),
    Throttle("reliability", 79, 0),
)
FAST_FIELDS = (
    (POWER_NOW, 0),
    (ENERGY, 0),
    *((throttle.field, 0) for throttle in THROTTLES),
    *((field, ALL_LINKS) for field in NVLINK),
    (PCIE_SENT, 0),
    (PCIE_RECEIVED, 0),
)
# Before R580 these numbers meant something else (power smoothing): NVML's change log, "v575 and v580".
RENUMBERED_FIELDS, RENUMBERED_IN = frozenset({269, 270, 271}), 580
SLOW_FIELDS = ((POWER_LIMIT, 0), (CORRECTED, 0), (UNCORRECTED, 0))


GPM_PARTS = ("sm", "tensor", "dram")  # in the order of GPM_METRICS
HEAT = {"sw_thermal", "hw_thermal"}
POWER = {"sw_power_cap", "hw_power_brake"}


class MigDevice(NamedTuple):
    """A part of a divided GPU, a device itself. Its label has both numbers, as in nvidia-smi: "0:1".

    NVML gives memory and processes of each, but no utilisation: that stays missing. Power, temperature,
    clocks and errors are of the whole GPU.
    """

    label: str
    handle: Handle
    identity: Identity


class Gpu:
    """A GPU by its label. The counters kept here continue when a lost GPU is back."""

    def __init__(self, nvml: Nvml, label: str) -> None:
        self.label = label
        self.identity = Identity("", "", "")
        self.lost = True
        self.handle: Handle = None
        self.sample = GpuSample()  # of the last `read`
        self.samples: dict[str, GpuSample] = {}  # this one, and those of its MIG devices, by label
        # The compute processes on each of them and their bytes, at most PROCESSES_SECONDS old, where known.
        self.processes: dict[str, dict[int, float]] = {}
        self._mig_devices: list[MigDevice] = []
        self._is_mig = False
        self._nvml = nvml
        self._labels = (label,)
        self._cannot: set[Callable[[Handle], Any]] = set()
        self._busy_seconds = 0.0
        self._throttle_seconds = {throttle.reason: 0.0 for throttle in THROTTLES if throttle.bit}
        self._pcie = {"transmit": Traffic(), "receive": Traffic()}
        self._gpm: Gpm | None = None
        self._fast = self._slow = self._hardware = FieldBatch(())
        self._slow_values: list[Value] = []
        self._hardware_values: list[Value] = []
        self._power_limit_watts = nan
        self._ecc_uncorrected_errors = nan
        self._info: Value = ("gpu_info", (), 1)
        self._last_read: float | None = None
        self._due: dict[str, float] = {}  # when each slow reading is due

    def attach(self, handle: Handle, identity: Identity, driver_version: str) -> None:
        """Uses the handle of a GPU after NVML was initialised, or after the GPU was lost."""
        self.detach()
        self.handle, self.identity = handle, identity
        self.lost = False
        self._cannot.clear()
        self._fast, self._slow = FieldBatch(fast_fields(driver_version)), FieldBatch(SLOW_FIELDS)
        self._hardware = FieldBatch(HARDWARE_FIELDS)
        self._due.clear()
        if self._ask(self._nvml.gpm_supported):
            self._gpm = self._ask(lambda _handle: Gpm(self._nvml))
        self._is_mig = bool(self._ask(self._nvml.mig_enabled))
        if self._is_mig:
            logger.info("GPU %s is in MIG mode: NVML gives no utilisation", self.label)
        info = (self.label, identity.uuid, identity.model, driver_version, identity.pci_bus_id)
        self._info = ("gpu_info", info, 1)

    def detach(self) -> None:
        """Drops the handle, because NVML ends."""
        self.lost, self.handle = True, None
        self.samples, self.processes, self._mig_devices = {}, {}, []
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None

    def lose(self) -> None:
        """Notes that the GPU is out of reach: later readings do not continue the earlier readings."""
        handle = self.handle
        self.detach()
        self.handle = handle  # the GPU may answer to it again
        self._last_read = None
        for traffic in self._pcie.values():
            traffic.forget()

    def read(self, now: float, longest_gap: float) -> list[Value]:
        """Fills `sample`, and returns what has more labels. Raises `NvmlError` if the GPU is lost.

        `now`: monotonic seconds. `longest_gap`: the most seconds that one utilisation represents.
        """
        elapsed = 0.0 if self._last_read is None else min(now - self._last_read, longest_gap)
        self._last_read = now
        if now >= self._due.get("hardware", 0.0):
            is_mig = self._ask(self._nvml.mig_enabled)
            if is_mig is not None and is_mig != self._is_mig:  # it was divided, or is whole again
                self.attach(self.handle, self.identity, self._info[1][3])
        self.sample = GpuSample(lost=0.0, model=self.identity.model, uuid=self.identity.uuid)
        self.samples = {self.label: self.sample}
        if (memory := self.memory()) is not None:
            self.sample.memory_used_bytes, self.sample.memory_total_bytes = memory
        self._read_utilization(elapsed)
        values: list[Value] = [("gpu_up", self._labels, 1), self._info]
        values += self._read_fast_fields(elapsed)
        values += self._read_sensors()
        self._read_gpm(now)
        values += self._read_slow(now)
        values += self._read_hardware(now)
        if self._is_mig:
            values += self._read_mig(now)  # a process belongs to a MIG device
        else:
            self._read_processes(now)
        for label, processes in self.processes.items():
            self.samples[label].compute_processes = len(processes)
        return values

    def measure_pcie(self, direction: str, now: float) -> None:
        """Measures traffic ("transmit" or "receive") for 20 ms, unless the driver counts it."""
        question = self._nvml.pcie_transmitted if direction == "transmit" else self._nvml.pcie_received
        if self.lost or self._pcie[direction].counted:
            return
        kilobytes_per_second = self._ask(question)
        if kilobytes_per_second is not None:
            self._pcie[direction].add_rate(kilobytes_per_second * 1000.0, now)

    def _ask(self, question: Callable[[Handle], Answer], is_sign: bool = False) -> Answer | None:
        """Returns the answer, or None. A question that the GPU does not support is not asked again."""
        if question in self._cannot:
            return None
        try:
            return question(self.handle)
        except NvmlError as error:
            if error.lost or (is_sign and error.unclear):
                raise
            if error.unsupported:
                self._cannot.add(question)
            return None

    def _ask_either(
        self,
        question: Callable[[Handle], Answer],
        instead: Callable[[Handle], Answer],
        is_sign: bool = False,
    ) -> Answer | None:
        """Asks the second question only if the GPU does not support the first question."""
        answer = self._ask(question, is_sign)
        return self._ask(instead, is_sign) if question in self._cannot else answer

    def memory(self) -> tuple[int, int] | None:
        """Returns the bytes used and in total. This is read first, as the sign of life.

        Here, UNKNOWN and INVALID_ARGUMENT also mean that the GPU is lost. Some drivers report UNKNOWN for
        a GPU that fell off the bus, and INVALID_ARGUMENT for a handle that is no longer valid.
        """
        return self._ask_either(self._nvml.memory_v2, self._nvml.memory, is_sign=True)

    def _read_utilization(self, elapsed: float) -> None:
        percent = self._ask(self._nvml.utilization)
        if percent is None:
            return
        utilization, bandwidth = percent[0] / 100, percent[1] / 100
        self._busy_seconds += utilization * elapsed
        self.sample.utilization_ratio = utilization
        self.sample.memory_bandwidth_utilization_ratio = bandwidth
        self.sample.busy_seconds = self._busy_seconds

    def _read_fast_fields(self, elapsed: float) -> Iterable[Value]:
        answers, self._fast = self._read_fields(self._fast)
        milliwatts = answers.get(POWER_NOW)
        if milliwatts is None and not self._has(POWER_NOW):
            milliwatts = self._ask(self._nvml.power)
        if milliwatts is not None:
            self.sample.power_watts = milliwatts / 1000
        if (millijoules := answers.get(ENERGY)) is not None:
            self.sample.energy_joules = millijoules / 1000
        self._read_traffic(answers)
        return self._throttling(answers, elapsed)

    def _read_fields(self, batch: FieldBatch) -> tuple[dict[int, float], FieldBatch]:
        """Returns the valid answers, and the batch without the fields that this GPU does not support."""
        if not batch.fields:
            return {}, batch
        try:
            answers = self._nvml.fields(self.handle, batch)
        except NvmlError as error:
            if error.lost:
                raise
            return {}, FieldBatch(()) if error.unsupported else batch
        never = batch.unsupported() if len(answers) < len(batch.fields) else set()
        if not answers.keys().isdisjoint(NVLINK_4):
            never |= answers.keys() & NVLINK_5.keys()  # the same bytes again
        if never:
            batch = FieldBatch(field for field in batch.fields if field[0] not in never)
            answers = {field: value for field, value in answers.items() if field not in never}
        return answers, batch

    def _has(self, field: int) -> bool:
        """Returns whether the GPU supports a fast field."""
        return field in self._fast.ids

    def _throttling(self, answers: dict[int, float], elapsed: float) -> Iterable[Value]:
        known: dict[str, float] = {}
        integrated = self._integrate_reasons(elapsed)
        for reason, field, bit in THROTTLES:
            if field in answers:
                seconds = answers[field] / 1e9
            elif bit and integrated and not self._has(field):
                seconds = self._throttle_seconds[reason]
            else:
                continue
            known[reason] = seconds
            yield "gpu_throttle_seconds_total", (self.label, reason), seconds
        self.sample.throttle_seconds = _sum_of(known.values())
        self.sample.thermal_throttle_seconds = _sum_of(known[reason] for reason in HEAT & known.keys())
        self.sample.power_throttle_seconds = _sum_of(known[reason] for reason in POWER & known.keys())

    def _integrate_reasons(self, elapsed: float) -> bool:
        """Adds up the time of each reason that the driver does not count. Returns whether NVML answered."""
        uncounted = [throttle for throttle in THROTTLES if throttle.bit and not self._has(throttle.field)]
        if not uncounted:
            return False
        reasons = self._ask_either(self._nvml.clock_reasons, self._nvml.throttle_reasons)
        for throttle in uncounted:
            if reasons is not None and reasons & throttle.bit:
                self._throttle_seconds[throttle.reason] += elapsed
        return reasons is not None

    def _read_traffic(self, answers: dict[int, float]) -> None:
        for field, (attribute, unit) in NVLINK.items():
            if field in answers:
                setattr(self.sample, attribute, answers[field] * unit)
        for direction, field in (("transmit", PCIE_SENT), ("receive", PCIE_RECEIVED)):
            traffic = self._pcie[direction]
            traffic.counted = self._has(field)
            if field in answers:
                traffic.add_count(answers[field])
            if traffic.known:
                setattr(self.sample, f"pcie_{direction}_bytes", traffic.bytes)

    def _read_sensors(self) -> Iterable[Value]:
        celsius = self._ask_either(self._nvml.temperature_v1, self._nvml.temperature)
        if celsius is not None:
            self.sample.temperature_celsius = celsius
        if (megahertz := self._ask(self._nvml.sm_clock)) is not None:
            self.sample.clock_hertz = megahertz * 1e6
            yield "gpu_clock_hertz", (self.label, "sm"), megahertz * 1e6
        if (megahertz := self._ask(self._nvml.memory_clock)) is not None:
            yield "gpu_clock_hertz", (self.label, "memory"), megahertz * 1e6

    def _read_gpm(self, now: float) -> None:
        if self._gpm is None:
            return
        try:
            for part, percent in zip(GPM_PARTS, self._gpm.read(self.handle, now), strict=True):
                if percent is not None:
                    setattr(self.sample, f"{part}_active_ratio", percent / 100)
        except NvmlError as error:
            if error.lost:
                raise
            if error.unsupported:  # as by a GPU in MIG mode, only here
                self._gpm.close()
                self._gpm = None

    def _read_slow(self, now: float) -> list[Value]:
        if self._is_due("slow", now, SLOW_SECONDS):
            self._slow_values = list(self._slow_tier())
        self.sample.power_limit_watts = self._power_limit_watts
        self.sample.ecc_uncorrected_errors = self._ecc_uncorrected_errors
        return self._slow_values

    def _slow_tier(self) -> Iterable[Value]:
        answers, self._slow = self._read_fields(self._slow)
        milliwatts = answers.get(POWER_LIMIT)
        if milliwatts is None:
            milliwatts = self._ask(self._nvml.power_limit)
        self._power_limit_watts = nan if milliwatts is None else milliwatts / 1000
        self._ecc_uncorrected_errors = answers.get(UNCORRECTED, nan)
        for field, severity in ((CORRECTED, "corrected"), (UNCORRECTED, "uncorrected")):
            if field in answers:
                yield "gpu_ecc_errors_total", (self.label, severity), answers[field]

    def _read_hardware(self, now: float) -> list[Value]:
        if self._is_due("hardware", now, HARDWARE_SECONDS):
            answers, self._hardware = self._read_fields(self._hardware)
            self._hardware_values = [*hardware_values(self.label, answers), *self._pcie_link()]
        return self._hardware_values

    def _pcie_link(self) -> Iterable[Value]:
        nvml = self._nvml
        for name, question in (
            ("gpu_pcie_link_width", nvml.pcie_width),
            ("gpu_pcie_link_max_width", nvml.pcie_max_width),
            ("gpu_pcie_link_generation", nvml.pcie_generation),
            ("gpu_pcie_link_max_generation", nvml.pcie_max_generation),
        ):
            if (answer := self._ask(question)) is not None:
                yield name, self._labels, answer

    def _read_processes(self, now: float) -> None:
        if self._is_due("processes", now, PROCESSES_SECONDS):
            nvml = self._nvml
            processes = self._ask_either(nvml.compute_processes, nvml.compute_processes_v2)
            self.processes = {} if processes is None else {self.label: dict(processes)}

    def _read_mig(self, now: float) -> Iterable[Value]:
        """Reads the MIG devices. They may come and go at any time."""
        if now >= self._due.get("mig", 0.0):
            self._due["mig"] = now + PROCESSES_SECONDS
            self._mig_devices = self._list_mig()
        self.processes = {}
        for label, handle, (uuid, model, pci_bus_id) in self._mig_devices:
            try:
                used, total = self._nvml.memory_v2(handle)
                self.samples[label] = GpuSample(
                    memory_used_bytes=used, memory_total_bytes=total, model=model, uuid=uuid
                )
                self.processes[label] = dict(self._nvml.compute_processes(handle))
            except NvmlError as error:
                if error.lost:
                    raise
                if label not in self.samples:
                    self._due["mig"] = 0.0  # it is gone
                    continue
            yield "gpu_info", (label, uuid, model, self._info[1][3], pci_bus_id), 1

    def _list_mig(self) -> list[MigDevice]:
        nvml, found = self._nvml, []
        try:
            for number in range(nvml.most_mig_devices(self.handle)):
                if (device := nvml.mig_handle(self.handle, number)) is not None:
                    identity = nvml.mig_identity(device, self.identity)
                    found.append(MigDevice(f"{self.label}:{number}", device, identity))
        except NvmlError as error:
            if error.lost:
                raise
            return []
        return found

    def _is_due(self, what: str, now: float, period: float) -> bool:
        """Returns whether to read now. The GPUs' slow readings are spread over several ticks."""
        due = self._due.get(what, 0.0)
        if is_due := now >= due:
            self._due[what] = now + (period if due else period * (1 + int(self.label) % 8) / 8)
        return is_due


def _sum_of(seconds: Iterable[float]) -> float:
    """Returns the sum, or NaN without values."""
    values = list(seconds)
    return sum(values) if values else nan


def fast_fields(driver_version: str) -> Iterable[tuple[int, int]]:
    """Returns (id, scope) of the fast fields that have this meaning in a driver such as "580.95.05"."""
    major = driver_version.partition(".")[0]
    if major.isdigit() and int(major) >= RENUMBERED_IN:
        return FAST_FIELDS
    return [(field, scope) for field, scope in FAST_FIELDS if field not in RENUMBERED_FIELDS]


class Traffic:
    """Bytes in one direction, monotonic: from the driver's counter or from measured rates."""

    def __init__(self) -> None:
        self.bytes = 0.0
        self.known = False  # from the first reading on
        self.counted = True  # by the driver, unless it is known not to
        self._last_count: float | None = None
        self._last_rate: float | None = None  # when

    def forget(self) -> None:
        """Forgets the last reading: the next reading does not continue it."""
        self._last_count = self._last_rate = None
        self.known = False
        self.counted = True

    def add_count(self, count: float) -> None:
        """Adds a reading of the driver's counter, which wraps at 32 bits (`nvidia-smi pci --getCounters`)."""
        if self._last_count is not None:
            difference = count - self._last_count
            if difference < 0:
                difference = difference + 2**32 if self._last_count < 2**32 else count
            self.bytes += difference
        self._last_count = count
        self.known = True

    def add_rate(self, bytes_per_second: float, now: float) -> None:
        """Adds a rate measured now, for the time since the last measurement."""
        if self._last_rate is not None:
            self.bytes += bytes_per_second * min(now - self._last_rate, LONGEST_PCIE_GAP)
        self._last_rate = now
        self.known = True


class Gpm:
    """Two GPM samples of one GPU: each reading overwrites the older sample."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._older, self._newer = nvml.gpm_allocate(), nvml.gpm_allocate()
        self._taken: float | None = None

    def read(self, handle: Handle, now: float) -> Sequence[float | None]:
        """Returns the percent of each of GPM_METRICS since the last call; None if the GPU has no value."""
        if self._taken is not None and now - self._taken <= SHORTEST_GPM_INTERVAL:
            return (None,) * len(GPM_METRICS)
        self._nvml.gpm_sample(handle, self._older)
        self._older, self._newer = self._newer, self._older
        first, self._taken = self._taken is None, now
        if first:
            return (None,) * len(GPM_METRICS)
        return self._nvml.gpm_metrics(self._older, self._newer)

    def close(self) -> None:
        """Frees the samples, unless NVML has ended."""
        with suppress(NvmlError):
            self._nvml.gpm_free(self._older)
            self._nvml.gpm_free(self._newer)
