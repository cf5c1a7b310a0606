"""The NVML library, and every call to it.

Structures and constants are those of nvidia-ml-py (`import pynvml`). The library is loaded as nvidia-ml-py
does it, by the name `libnvidia-ml.so.1` through the dynamic loader, or from a named file. The functions are
called directly and not through pynvml's wrappers, for two reasons:

- pynvml keeps the functions of the first library it loaded for the life of the process.
- pynvml allocates and fills its structures at each call, which makes a batch of 16 fields several times as
  expensive (benchmarks/gpu_tick.py measures both).

Names, arguments and results of the functions: https://docs.nvidia.com/deploy/nvml-api/
"""

import struct
from collections.abc import Callable, Iterable
from ctypes import (
    CDLL,
    Structure,
    byref,
    c_int,
    c_uint,
    c_ulonglong,
    c_void_p,
    cast,
    create_string_buffer,
    sizeof,
)
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

LIBRARY = "libnvidia-ml.so.1"

Handle = Any  # nvmlDevice_t, an opaque pointer

GPM_METRICS = (2, 5, 10)  # NVML_GPM_METRIC_SM_UTIL, _ANY_TENSOR_UTIL, _DRAM_BW_UTIL
ALL_LINKS = 0xFFFF_FFFF  # the scope that asks for the sum over all NVLinks (nvml.h)

# Error codes that the oldest nvidia-ml-py we accept does not have.
_ARGUMENT_VERSION_MISMATCH, _DEPRECATED, _GPU_NOT_FOUND = 25, 26, 28

_UNSUPPORTED = {
    pynvml.NVML_ERROR_INVALID_ARGUMENT,  # a field or version that this driver does not know
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    _ARGUMENT_VERSION_MISMATCH,
    _DEPRECATED,
}
_LOST = {
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_UNINITIALIZED,
    _GPU_NOT_FOUND,
}


class NvmlError(Exception):
    """An NVML function that did not succeed."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function}: {pynvml.NVMLError(code)}")
        self.code = code

    @property
    def unsupported(self) -> bool:
        """Returns whether this GPU or driver does not support the call, so a retry is pointless."""
        return self.code in _UNSUPPORTED

    @property
    def lost(self) -> bool:
        """Returns whether the GPU is out of reach, also because NVML must be initialised again."""
        return self.code in _LOST

    @property
    def uninitialised(self) -> bool:
        """Returns whether NVML must be initialised again."""
        return bool(self.code == pynvml.NVML_ERROR_UNINITIALIZED)

    @property
    def unclear(self) -> bool:
        """Returns whether the error may mean a lost GPU or something harmless, depending on the call."""
        return self.code in (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_INVALID_ARGUMENT)

    @property
    def timeout(self) -> bool:
        """Returns whether the wait timed out."""
        return bool(self.code == pynvml.NVML_ERROR_TIMEOUT)


class LibraryMissingError(Exception):
    """The NVML library cannot be loaded; the message has the reason."""


class Identity(NamedTuple):
    """The names by which NVML identifies a GPU."""

    uuid: str
    model: str
    pci_bus_id: str


class FieldBatch:
    """Fields that one call reads, and its buffer, which every call uses again."""

    def __init__(self, fields: Iterable[tuple[int, int]]) -> None:
        self.fields = tuple(fields)  # (id, scope); the scope is 0 except for NVLink
        self.ids = frozenset(identifier for identifier, _scope in self.fields)
        self.buffer = (pynvml.c_nvmlFieldValue_t * len(self.fields))()
        for slot, (identifier, scope) in zip(self.buffer, self.fields, strict=True):
            slot.fieldId = identifier
            slot.scopeId = scope

    def values(self) -> dict[int, float]:
        """Returns the valid answers of the last call, by field."""
        return {
            identifier: value if kind == _UNSIGNED_LONG_LONG else _value(kind, value)
            for identifier, _scope, _time, _latency, kind, code, value in _FIELD.iter_unpack(self.buffer)
            if code == 0 and kind in _VALUES  # a later driver may have more
        }

    def unsupported(self) -> set[int]:
        """Returns the fields that this GPU or driver does not support, by the last call."""
        return {answer[0] for answer in _FIELD.iter_unpack(self.buffer) if answer[5] in _UNSUPPORTED}


_FIELD = struct.Struct("=IIqqIIQ")  # nvmlFieldValue_t: id, scope, timestamp, latency, type, code, value
_UNSIGNED_LONG_LONG = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
# The formats of a value's eight bytes, by NVML's value types.
_VALUES = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "<d",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "<I4x",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "<Q",
    _UNSIGNED_LONG_LONG: "<Q",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "<q",
    5: "<i4x",  # signed int
    6: "<H6x",  # unsigned short
}


def _value(kind: int, raw: int) -> float:
    value: float = struct.unpack(_VALUES[kind], raw.to_bytes(8, "little"))[0]
    return value


# Two structures that are missing or wrong in the oldest nvidia-ml-py we accept.
class _Temperature(Structure):
    """nvmlTemperature_v1_t."""

    _fields_ = (("version", c_uint), ("sensor", c_uint), ("temperature", c_int))


class _Process(Structure):
    """nvmlProcessInfo_v2_t, which version 3 of the function uses too."""

    _fields_ = (
        ("pid", c_uint),
        ("used_bytes", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


def _asks(function: str, *arguments: Any, into: str = "_unsigned") -> Callable[["Nvml", Handle], int]:
    """Returns a method that returns what a function says about a device, a number."""
    return lambda nvml, handle: nvml._number(function, handle, *arguments, into=into)


class Nvml:
    """NVML, one call at a time and from one thread, except `wait_for_event`, which has its own.

    `library` is the file to load; without it the dynamic loader looks for libnvidia-ml.so.1. Every method
    raises `NvmlError` if NVML does not return `NVML_SUCCESS`, with FUNCTION_NOT_FOUND if the driver's
    library is too old for the function.
    """

    def __init__(self, library: Path | None = None) -> None:
        self.calling: str | None = None  # the function that has not returned yet; read by other threads
        self.subject = "the driver"  # what the call is about; set by the caller
        self._name = LIBRARY if library is None else str(library)
        self._library: CDLL | None = None
        self._functions: dict[str, Any] = {}
        self._utilization = pynvml.c_nvmlUtilization_t()
        self._memory = pynvml.c_nvmlMemory_t()
        self._memory_v2 = pynvml.c_nvmlMemory_v2_t()
        self._memory_v2.version = pynvml.nvmlMemory_v2
        self._temperature = _Temperature(version=sizeof(_Temperature) | 1 << 24, sensor=0)
        self._unsigned, self._reasons = c_uint(), c_ulonglong()
        self._metrics = pynvml.c_nvmlGpmMetricsGet_t()
        self._metrics.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._metrics.numMetrics = len(GPM_METRICS)
        self._metric_slots = self._metrics.metrics[: len(GPM_METRICS)]
        for slot, identifier in zip(self._metric_slots, GPM_METRICS, strict=True):
            slot.metricId = identifier

    def start(self) -> None:
        """Loads the library at the first call, and initialises it. Raises `LibraryMissingError` too."""
        if self._library is None:
            try:
                self._library = CDLL(self._name)
            except OSError as error:
                raise LibraryMissingError(str(error)) from error
        self._call("nvmlInitWithFlags", 0)

    def stop(self) -> None:
        """Undoes one `start`; every handle is invalid afterwards."""
        self._call("nvmlShutdown")

    def driver_version(self) -> str:
        text = create_string_buffer(96)
        self._call("nvmlSystemGetDriverVersion", text, c_uint(96))
        return text.value.decode()

    def count(self) -> int:
        """Returns the number of GPUs that NVML knows, in reach or not."""
        return self._number("nvmlDeviceGetCount_v2")

    def handle(self, index: int) -> Handle:
        handle = pynvml.c_nvmlDevice_t()
        self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
        return handle

    def identity(self, handle: Handle) -> Identity:
        uuid, model = self._names(handle)
        pci = pynvml.nvmlPciInfo_t()
        self._call("nvmlDeviceGetPciInfo_v3", handle, byref(pci))
        return Identity(uuid, model, pci.busId)

    def _names(self, handle: Handle) -> tuple[str, str]:
        text = create_string_buffer(96)
        self._call("nvmlDeviceGetUUID", handle, text, c_uint(96))
        uuid = text.value.decode()
        self._call("nvmlDeviceGetName", handle, text, c_uint(96))
        return uuid, text.value.decode()

    def mig_enabled(self, handle: Handle) -> bool:
        """Returns whether the GPU is divided into MIG devices."""
        current, pending = c_uint(), c_uint()
        self._call("nvmlDeviceGetMigMode", handle, byref(current), byref(pending))
        return bool(current.value)

    def mig_handle(self, handle: Handle, number: int) -> Handle | None:
        """Returns the handle of a MIG device; None if there is none with this number."""
        device = pynvml.c_nvmlDevice_t()
        try:
            self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, c_uint(number), byref(device))
        except NvmlError as error:
            if error.code != pynvml.NVML_ERROR_NOT_FOUND:
                raise
            return None
        return device

    def mig_identity(self, device: Handle, parent: Identity) -> Identity:
        """Returns the identity of a MIG device, which has the PCI address of its GPU."""
        uuid, model = self._names(device)
        return Identity(uuid, model, parent.pci_bus_id)

    def fields(self, handle: Handle, batch: FieldBatch) -> dict[int, float]:
        """Reads a batch in one call. Returns the valid answers, in the units of the fields."""
        self._call("nvmlDeviceGetFieldValues", handle, c_int(len(batch.fields)), batch.buffer)
        return batch.values()

    def utilization(self, handle: Handle) -> tuple[int, int]:
        """Returns the percent of the driver's sample period with a kernel running, and with memory in use."""
        self._call("nvmlDeviceGetUtilizationRates", handle, byref(self._utilization))
        return self._utilization.gpu, self._utilization.memory

    def memory(self, handle: Handle) -> tuple[int, int]:
        """Returns the bytes used and in total. The driver's own memory counts as used from R510 on."""
        self._call("nvmlDeviceGetMemoryInfo", handle, byref(self._memory))
        return self._memory.used, self._memory.total

    def memory_v2(self, handle: Handle) -> tuple[int, int]:
        """Returns the bytes used and in total. The driver's own memory is only in the total. Since R510."""
        self._call("nvmlDeviceGetMemoryInfo_v2", handle, byref(self._memory_v2))
        return self._memory_v2.used, self._memory_v2.total

    def temperature_v1(self, handle: Handle) -> int:
        """Returns degrees Celsius."""
        self._call("nvmlDeviceGetTemperatureV", handle, byref(self._temperature))
        return int(self._temperature.temperature)

    def compute_processes(self, handle: Handle) -> list[tuple[int, float]]:
        """Lists processes with a compute context: the pid, and the bytes of memory (NaN: not known)."""
        return self._processes("nvmlDeviceGetComputeRunningProcesses_v3", handle)

    def compute_processes_v2(self, handle: Handle) -> list[tuple[int, float]]:
        """Lists the same processes with drivers before R535."""
        return self._processes("nvmlDeviceGetComputeRunningProcesses_v2", handle)

    def _processes(self, function: str, handle: Handle) -> list[tuple[int, float]]:
        room = 0
        while True:
            processes = (_Process * room)()
            number = c_uint(room)
            try:
                self._call(function, handle, byref(number), processes if room else None)
            except NvmlError as error:
                if error.code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                    raise
                room = number.value * 2 + 5  # there may be more at the next call
            else:
                return [(process.pid, _known(process.used_bytes)) for process in processes[: number.value]]

    def gpm_supported(self, handle: Handle) -> bool:
        """Returns whether the GPU has GPM, the performance metrics of Hopper and later."""
        support = pynvml.c_nvmlGpmSupport_t()
        support.version = pynvml.NVML_GPM_SUPPORT_VERSION
        self._call("nvmlGpmQueryDeviceSupport", handle, byref(support))
        return bool(support.isSupportedDevice)

    def gpm_allocate(self) -> Any:
        """Allocates one GPM sample, until `gpm_free`."""
        sample = pynvml.c_nvmlGpmSample_t()
        self._call("nvmlGpmSampleAlloc", byref(sample))
        return sample

    def gpm_free(self, sample: Any) -> None:
        self._call("nvmlGpmSampleFree", sample)

    def gpm_sample(self, handle: Handle, sample: Any) -> None:
        """Takes a sample."""
        self._call("nvmlGpmSampleGet", handle, sample)

    def gpm_metrics(self, first: Any, second: Any) -> list[float | None]:
        """Returns GPM_METRICS between two samples, in GPM's units; None if the GPU does not have one."""
        self._metrics.sample1, self._metrics.sample2 = first, second
        self._call("nvmlGpmMetricsGet", byref(self._metrics))
        return [None if slot.nvmlReturn else slot.value for slot in self._metric_slots]

    def event_set(self) -> Any:
        """Makes an empty set of events, until `free_event_set`."""
        events = pynvml.c_nvmlEventSet_t()
        self._call("nvmlEventSetCreate", byref(events))
        return events

    def free_event_set(self, events: Any) -> None:
        self._call("nvmlEventSetFree", events)

    def watch_xids(self, handle: Handle, events: Any) -> None:
        """Adds a GPU's XID errors to the set."""
        self._call(
            "nvmlDeviceRegisterEvents", handle, c_ulonglong(pynvml.nvmlEventTypeXidCriticalError), events
        )

    def wait_for_event(self, events: Any, milliseconds: int) -> tuple[int, int]:
        """Blocks until an event. Returns the `address` of its GPU's handle, and its XID."""
        data = pynvml.c_nvmlEventData_t()
        code = self._function("nvmlEventSetWait_v2")(events, byref(data), c_uint(milliseconds))
        if code:
            raise NvmlError("nvmlEventSetWait_v2", code)
        return address(data.device), data.eventData

    temperature = _asks("nvmlDeviceGetTemperature", c_uint(0))  # degrees Celsius; CUDA 14 removes it
    power = _asks("nvmlDeviceGetPowerUsage")  # milliwatts; since Ampere (except GA100) a mean over one second
    power_limit = _asks("nvmlDeviceGetEnforcedPowerLimit")  # milliwatts
    # The reasons for low clocks now: bits nvmlClocksEventReason*. The latter is the name before R535.
    clock_reasons = _asks("nvmlDeviceGetCurrentClocksEventReasons", into="_reasons")
    throttle_reasons = _asks("nvmlDeviceGetCurrentClocksThrottleReasons", into="_reasons")
    sm_clock = _asks("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)  # megahertz
    memory_clock = _asks("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM)  # megahertz
    # KB/s over PCIe in the 20 ms that the call takes.
    pcie_transmitted = _asks("nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_TX_BYTES)
    pcie_received = _asks("nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_RX_BYTES)
    pcie_width = _asks("nvmlDeviceGetCurrPcieLinkWidth")  # lanes now,
    pcie_max_width = _asks("nvmlDeviceGetMaxPcieLinkWidth")  # and the most that the GPU and its slot allow
    pcie_generation = _asks("nvmlDeviceGetCurrPcieLinkGeneration")  # now: an idle GPU lowers it
    pcie_max_generation = _asks("nvmlDeviceGetMaxPcieLinkGeneration")
    most_mig_devices = _asks("nvmlDeviceGetMaxMigDeviceCount")

    def _number(self, function: str, *arguments: Any, into: str = "_unsigned") -> int:
        """Returns what a function writes to its last argument, a number of the type of `into`."""
        written = getattr(self, into)
        self._call(function, *arguments, byref(written))
        return int(written.value)

    def _call(self, name: str, *arguments: Any) -> None:
        function = self._functions.get(name) or self._function(name)
        self.calling = name
        code = function(*arguments)
        self.calling = None
        if code:
            raise NvmlError(name, code)

    def _function(self, name: str) -> Any:
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise NvmlError(name, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) from error
        self._functions[name] = function
        return function


def _known(used_bytes: int) -> float:
    """Returns NaN for NVML_VALUE_NOT_AVAILABLE, as under Windows and in some containers."""
    return nan if used_bytes == 2**64 - 1 else float(used_bytes)


def address(handle: Handle) -> int:
    """Returns the address in a handle, which is the same for all handles of one GPU."""
    return cast(handle, c_void_p).value or 0
