"""One sample of a node, which the sampler passes to the sample counters and to the recording."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan, nan

from stepscope.exporter.sampling.quantities import counter, gauge, per_core, quantities_of


@dataclass(slots=True)
class GpuSample:
    """The values of one GPU. Ratios are 0..1, all others in base units; NaN if the GPU has no value."""

    utilization_ratio: float = gauge(
        "Share of the driver's last sample period with a kernel running.", bits=32
    )
    memory_used_bytes: float = gauge("Memory in use, without the driver's own memory.")
    memory_total_bytes: float = gauge("Total memory.")
    memory_bandwidth_utilization_ratio: float = gauge(
        "Share of the driver's last sample period in which memory was read or written.", bits=32
    )
    power_watts: float = gauge("Power drawn.", bits=32)
    power_limit_watts: float = gauge("Power that the driver allows.", bits=0)
    temperature_celsius: float = gauge("Temperature of the chip.", bits=32)
    # A sample has only the clock of the multiprocessors,
    clock_hertz: float = gauge("Clock frequency, of the multiprocessors (sm) and of the memory.", "clock")
    busy_seconds: float = counter("Utilisation added up over time.", bits=0, full_only=True)
    energy_joules: float = counter("Energy used since the driver was loaded.")
    # all reasons except idle and application clocks together,
    throttle_seconds: float = counter("Time in which the clocks were throttled, by reason.", "reason")
    thermal_throttle_seconds: float = counter()  # the part because of heat (sw_thermal, hw_thermal)
    power_throttle_seconds: float = counter()  # the part because of power (sw_power_cap, hw_power_brake)
    pcie_receive_bytes: float = counter("Received over PCIe since the exporter started.", bits=0)
    pcie_transmit_bytes: float = counter("Sent over PCIe since the exporter started.", bits=0)
    nvlink_receive_bytes: float = counter("Received over all NVLinks.", bits=0)
    nvlink_transmit_bytes: float = counter("Sent over all NVLinks.", bits=0)
    ecc_uncorrected_errors: float = counter(
        "Memory errors since the driver was loaded, by severity.", "severity", part_of="ecc_errors"
    )
    # and the errors of all numbers together.
    xid_errors: float = counter("XID errors that the driver reported since the exporter started.", "xid")
    last_xid: float = gauge()  # the last error's number; an error of the GPU precedes one of the program
    lost: float = gauge(bits=32)  # 1: the driver no longer reaches it, 0: it answers
    sm_active_ratio: float = gauge(
        "Share of the multiprocessors that were busy since the last sample.", bits=32
    )
    tensor_active_ratio: float = gauge(
        "Share of the time since the last sample with tensor operations.", bits=32
    )
    dram_active_ratio: float = gauge(
        "Share of the peak memory bandwidth used since the last sample.", bits=0, full_only=True
    )
    compute_processes: float = gauge(bits=32)  # how many hold memory of the GPU
    model: str = ""  # "NVIDIA H100 80GB HBM3"
    uuid: str = ""


GPU_QUANTITIES = quantities_of(GpuSample, "gpu")


@dataclass(slots=True)
class RankProcess:
    """A live training process."""

    pid: int | None  # in the exporter's procfs; None: it is out of sight
    rank: int
    local_rank: int | None
    world_size: int
    owner: int  # uid
    devices: tuple[str, ...] = ()  # UUIDs of the GPUs that it reports, as NVML writes them
    visible_devices: str = ""  # its CUDA_VISIBLE_DEVICES; "": not set, "-1": empty
    contained: bool = False  # in another container than the exporter: GPUs may have other numbers there
    pids: frozenset[int] = frozenset()  # its own and those of all that it started, some seconds old
    paused_seconds: dict[str, float] = field(default_factory=dict)  # of its rank so far, by reason


PAUSES = ("stopped", "no_core", "throttled")  # why a rank could not run although it had work
# How it is known that a run uses a GPU, the weakest evidence first. A recording has the places in this tuple.
EVIDENCE = ("", "node", "environment", "devices", "processes")


@dataclass(frozen=True, slots=True)
class GpuUse:
    """How it is known that a run uses a GPU."""

    # "processes": NVML lists a process of the run; "devices": the training process reports the GPU;
    # "environment": CUDA_VISIBLE_DEVICES; "node": there is one run, and nobody else on any GPU.
    by: str
    ranks: tuple[int, ...] = ()  # that use it; empty: not known


@dataclass(slots=True)
class HostUse:
    """The use of the host by the processes of a run, some seconds old. NaN: not known.

    Counters begin when the exporter first sees the run, and never fall. Seconds of a core are summed over
    cores, so that they may pass faster than time.
    """

    cpus: tuple[str, ...] = ()  # the cores on which they may run; empty: not known
    cpu_cores: float = gauge()  # cores' worth of CPU time that it used between the last two looks
    io_waiting_ratio: float = gauge()  # share of the time between the last two looks that it waited for I/O
    allowed_cores: float = gauge()  # how many it may keep busy at most
    cpu_limit_cores: float = gauge("CPU limit of the run's cgroup, in cores; there is none without a limit.")
    cpu_seconds: float = counter("CPU time of the run's processes on this node, with those that have ended.")
    other_cpu_seconds: float = counter("CPU time of everything else on the cores that the run may use.")
    main_threads_ran_seconds: float = counter(
        "Time in which the main threads of the run's processes had a core."
    )
    main_threads_waited_seconds: float = counter(
        "Time in which they were ready to run and not throttled, but had no core."
    )
    cpu_periods: float = counter("Periods in which the run's cgroup was busy and its CPU limit was enforced.")
    cpu_throttled_periods: float = counter("Periods in which the CPU limit of the run's cgroup was used up.")
    cpu_throttled_seconds: float = counter(
        "Time for which the CPU limit stopped the run's cgroup, summed over cores."
    )
    memory_bytes: float = gauge(
        "Memory in use in the run's cgroup, without cached files that are not in use.", full_only=True
    )
    memory_limit_bytes: float = gauge(
        "Memory limit of the run's cgroup; there is none without a limit.", full_only=True
    )
    anonymous_memory_bytes: float = gauge(
        "Memory of the run's processes that is no file's, in RAM or swapped out."
    )
    memory_capacity_bytes: float = gauge(
        "The smaller one of the memory limit of the run's cgroup and the node's memory."
    )
    oom_kills: float = counter(
        "Processes that the kernel killed in the run's cgroup because memory had run out.", full_only=True
    )
    major_page_faults: float = counter(
        "Page faults of the run's processes that had to read from a disk.", full_only=True
    )
    disk_read_bytes: float = counter("Bytes that the run's processes read from disks.", full_only=True)
    disk_written_bytes: float = counter("Bytes that the run's processes wrote to disks.", full_only=True)
    neighbour_cpu_seconds: dict[str, float] = field(default_factory=dict)  # by user
    waiting_seconds: dict[str, float] = field(default_factory=dict)  # pressure of the cgroup, by resource

    def of_own(self, cpus: Sequence[str], values: Sequence[float]) -> Sequence[float]:
        """Returns the values of its own cores, of one per core in `cpus`; all if its cores are not known."""
        if not self.cpus or self.cpus == cpus or len(cpus) != len(values):
            return values
        own = set(self.cpus)
        return [value for cpu, value in zip(cpus, values, strict=True) if cpu in own]


RUN_QUANTITIES = quantities_of(HostUse, "run")


@dataclass(slots=True)
class RunSample:
    """A run's part of this node. The collector `training` makes it, and others add what the run uses."""

    processes: list[RankProcess] = field(default_factory=list)
    pids: frozenset[int] = frozenset()  # of these processes and all that they started, some seconds old
    gpus: dict[str, GpuUse] = field(default_factory=dict)  # by GPU label; empty: without evidence
    host: HostUse = field(default_factory=HostUse)
    name: str = ""  # of its launches; "": not known


@dataclass(slots=True)
class Sample:
    """A node at one moment. The part of a collector that failed or is off stays empty, as it is here.

    `cpu_*` have one value per core, in the order of `cpus`. Counters of disks and networks are sums over
    devices since boot.
    `gpus` has the GPUs that answered, by the `gpu` label (NVML's index as a string), and the XID errors of
    lost GPUs. `gpu_processes` has the pids of the compute processes on each GPU whose driver lists them,
    with the bytes of memory that each holds (NaN: not known). `runs` has the runs whose
    ledgers are held, by the label `run`.
    """

    time: float  # seconds since the epoch
    interval: float = 0.5  # seconds, the sampler's
    monotonic: float = nan  # seconds on a clock that nobody sets; without one: `time`
    cpus: tuple[str, ...] = ()
    cpu_utilization_ratio: list[float] = field(
        default_factory=list,
        metadata=per_core(
            "Share of the last sample interval in which the core was neither idle nor waiting for I/O."
        ),
    )
    cpu_io_wait_ratio: list[float] = field(
        default_factory=list,
        metadata=per_core(
            "Share of the last sample interval in which the core was idle while a task of it waited for I/O."
        ),
    )
    memory_used_bytes: float = gauge(
        "Memory that programs cannot get without swapping: total less available."
    )
    memory_total_bytes: float = gauge("Memory of the host.")
    swap_used_bytes: float = gauge("Swap space in use.")
    disk_read_bytes: float = counter("Bytes read from the disk.", "device")
    disk_written_bytes: float = counter("Bytes written to the disk.", "device")
    disk_operations: float = counter(
        "Completed operations of the disk, read or write; those that the kernel merged count once.",
        *("device", "operation"),
    )
    network_receive_bytes: float = counter("Bytes received by the network interface.", "device")
    network_transmit_bytes: float = counter("Bytes sent by the network interface.", "device")
    gpus: dict[str, GpuSample] = field(default_factory=dict)
    gpu_processes: dict[str, dict[int, float]] = field(default_factory=dict)
    driver_version: str = ""
    runs: dict[str, RunSample] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isnan(self.monotonic):
            self.monotonic = self.time


NODE_QUANTITIES = quantities_of(Sample, "")
