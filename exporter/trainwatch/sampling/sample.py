"""One sample of a node, which the sampler passes to the sample counters and to the recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan


@dataclass(slots=True)
class GpuSample:
    """The values of one GPU. Ratios are 0..1, all others in base units; NaN if the GPU has no value."""

    utilization: float = nan
    memory_used_bytes: float = nan
    memory_total_bytes: float = nan
    memory_bandwidth_utilization: float = nan
    power_watts: float = nan
    temperature_celsius: float = nan
    sm_clock_hertz: float = nan
    energy_joules: float = nan  # counter, since the driver was loaded
    throttle_seconds: float = nan  # counter, all reasons except idle and application clocks
    thermal_throttle_seconds: float = nan  # the part because of heat (sw_thermal, hw_thermal)
    power_throttle_seconds: float = nan  # the part because of power (sw_power_cap, hw_power_brake)
    ecc_uncorrected_errors: float = nan  # counter, since the driver was loaded
    xid_errors: float = nan  # counter of all XID errors, since the exporter started
    last_xid: float = nan  # the last error's number; an error of the GPU precedes one of the program
    sm_active: float = nan
    tensor_active: float = nan
    power_limit_watts: float = nan
    model: str = ""  # "NVIDIA H100 80GB HBM3"
    uuid: str = ""


@dataclass(slots=True)
class Sample:
    """A node at one moment. The part of a collector that failed or is off stays empty, as it is here.

    `cpu_*` have one value per core, in the order of `cpus`. Byte counters are sums over devices since boot.
    `gpus` has the GPUs that answered, by the `gpu` label (NVML's index as a string), and the XID errors of
    lost GPUs. `gpu_processes` maps the pid of each compute process on a GPU to its gpu label.
    """

    time: float  # seconds since the epoch
    interval: float = 0.5  # seconds, the sampler's
    cpus: tuple[str, ...] = ()
    cpu_utilization: list[float] = field(default_factory=list)
    cpu_io_wait: list[float] = field(default_factory=list)
    memory_used_bytes: float = nan
    memory_total_bytes: float = nan
    swap_used_bytes: float = nan
    disk_read_bytes: float = nan
    disk_written_bytes: float = nan
    network_received_bytes: float = nan
    network_transmitted_bytes: float = nan
    gpus: dict[str, GpuSample] = field(default_factory=dict)
    gpu_processes: dict[int, str] = field(default_factory=dict)
    driver_version: str = ""
