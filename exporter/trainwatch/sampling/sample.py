"""One 500 ms sample of a node: what the sampler hands to the sample counters and to the recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan


@dataclass(slots=True)
class GpuSample:
    """What one GPU said. Ratios are 0..1, everything else in base units; NaN where the GPU gives none."""

    utilization: float = nan
    memory_used_bytes: float = nan
    memory_total_bytes: float = nan
    memory_bandwidth_utilization: float = nan
    power_watts: float = nan
    temperature_celsius: float = nan
    sm_clock_hertz: float = nan
    energy_joules: float = nan  # counter, since the driver was loaded
    throttle_seconds: float = nan  # counter, all reasons but idle and application clocks
    thermal_throttle_seconds: float = nan  # of it because of heat (sw_thermal, hw_thermal)
    power_throttle_seconds: float = nan  # of it because of power (sw_power_cap, hw_power_brake)
    ecc_uncorrected_errors: float = nan  # counter, since the driver was loaded
    xid_errors: float = nan  # counter of all XID errors, since the exporter started
    last_xid: float = nan  # the number of the last one; one of the GPU goes before one of the program
    sm_active: float = nan
    tensor_active: float = nan
    power_limit_watts: float = nan
    model: str = ""  # "NVIDIA H100 80GB HBM3"
    uuid: str = ""


@dataclass(slots=True)
class Sample:
    """A node at one moment. A collector that failed or is off leaves its part as it is here: empty.

    `cpu_*` have one value a core, in the order of `cpus`; byte counters are sums over devices,
    counted since boot; `gpus` is keyed by the `gpu` label (NVML's index as a string) and holds only
    GPUs that answered, and of one that is lost its XID errors. `gpu_processes` maps the pid of each compute
    process on a GPU to its gpu label.
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
