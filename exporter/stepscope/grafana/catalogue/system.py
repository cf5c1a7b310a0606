"""System: the load of the GPUs, cores, memory, disks and links of a node."""

from collections.abc import Iterable
from typing import Any

from stepscope.grafana import variables
from stepscope.grafana.looks import Override, by_name, dashed, dotted, fixed, numbered
from stepscope.grafana.page import Dashboard, of_one_run
from stepscope.grafana.panels import Panel, device_heatmap, repeated, section, shares, time_series
from stepscope.grafana.queries import (
    OF_GPU,
    OF_NODE,
    OF_NODE_GPU,
    Target,
    gained,
    lines,
    named_device,
    per_second,
    threshold,
)
from stepscope.rules.cpu_bottleneck import CPUBottleneck
from stepscope.rules.gpu_memory_nearly_full import GPUMemoryNearlyFull
from stepscope.rules.io_bottleneck import IOBottleneck
from stepscope.rules.low_gpu_utilization import LowGPUUtilization
from stepscope.rules.thermal_throttling import ThermalThrottling

UID = "stepscope-system"
ON_NODE = variables.OF_WHICH_NODE
PORT = f"{{{{device}}}} {{{{port}}}}{ON_NODE}"
GPU = f"GPU {{{{gpu}}}}{ON_NODE}"
SAMPLES = "stepscope_gpu_utilization_samples"
# The mean of all 500 ms samples. Scrapes alone could always hit the same part of a step.
MEAN = f"({per_second(f'{SAMPLES}_sum{{{OF_GPU}}}')} / ({per_second(f'{SAMPLES}_count{{{OF_GPU}}}')} > 0))"


def dashboard() -> Dashboard:
    return of_one_run(
        UID,
        "System",
        "The load of the GPUs, cores, memory, disks and links of a run's nodes.",
        [_overview(), _gpus(), _host(), _more_of_gpus(), _links(), _hardware(), _more_of_the_host()],
        variables.of_node(),
        shown=["gpu"],
    )


def _overview() -> list[Panel]:
    readings = f"stepscope_cpu_utilization_ratio{{{OF_NODE}}}"
    cores = f"(avg_over_time({readings}[$__interval]) or {readings})"  # or the last one before
    heatmap = device_heatmap(
        "GPUs and cores of $instance",
        """One row per GPU, then one row per core; dark is idle (0 %), bright is busy (100 %). Dark GPUs with
        one or more bright cores: the cores cannot keep up (CPUBottleneck). Dark GPUs and dark cores: both
        wait, see I/O wait and the network below. One bright GPU among dark ones: the load is unbalanced
        (LoadBalancing). A dark stripe through all GPUs: training pauses for a minute or more; Stepscope /
        Utilisation histograms shows shorter pauses.""",
        lines(f"clamp({named_device(MEAN, 'GPU', 'gpu', 2)}, 0.01, 1)", "{{device}}"),
        lines(f"clamp({named_device(cores, 'core', 'cpu', 3)}, 0.01, 1)", "{{device}}"),
        height=22,  # the labels of 40 rows do not overlap
    )
    return [repeated(heatmap, "instance", in_a_row=4)]


def _gpus() -> list[Panel]:
    memory = f"stepscope_gpu_memory_used_bytes{{{OF_NODE_GPU}}} / stepscope_gpu_memory_total_bytes"
    throttled = per_second(f"stepscope_gpu_throttle_seconds_total{{{OF_NODE_GPU}}}")
    return [
        section("GPUs"),
        _of_gpus(
            "GPU utilisation",
            """Share of the time in which some kernel ran. It is high even with a single busy
            multiprocessor, and 100 % if training hangs in a collective. The dashed line is the threshold
            of LowGPUUtilization.""",
            lines(MEAN, GPU),
            threshold(LowGPUUtilization, "threshold_p95", f"{SAMPLES}_count{{{OF_GPU}}}", "below"),
            unit="percentunit",
            highest=1,
        ),
        _of_gpus(
            "GPU memory",
            """Used share of the memory. If utilisation is low too, a larger batch fits (BatchSize). A
            steadily rising line is a leak (GPUMemoryLeak). Near the top the run may fail with out of
            memory (GPUMemoryNearlyFull, the dashed line).""",
            lines(memory, GPU),
            threshold(GPUMemoryNearlyFull, "threshold", memory),
            unit="percentunit",
            highest=1,
        ),
        _of_gpus(
            "GPU power",
            """The most reliable sign of work: a computing GPU draws most of its limit. If power drops while
            utilisation stays at 100 %, the run hangs (TrainingStalled) or kernels only wait.""",
            # The mean; GPUs without an energy counter have only the reading.
            lines(
                f"""
                max by (cluster, instance, gpu) (
                  {per_second(f"stepscope_gpu_energy_joules_total{{{OF_NODE_GPU}}}")}
                    or stepscope_gpu_power_watts{{{OF_NODE_GPU}}}
                )
                """,
                GPU,
            ),
            lines(f"max(stepscope_gpu_power_limit_watts{{{OF_NODE_GPU}}})", "limit"),
            unit="watt",
            overrides=[by_name("limit", color=fixed("text")), dashed("^limit$")],
        ),
        _of_gpus(
            "Throttling",
            """Share of the time in which the clocks of a node's worst GPU were reduced, by reason.
            sw_thermal and hw_thermal are heat: check the cooling (ThermalThrottling, the dashed line).
            sw_power_cap is the power limit, which is normal under full load.""",
            lines(
                f"max by (instance, reason) ({throttled})",
                f"{{{{reason}}}}{ON_NODE}",
            ),
            threshold(ThermalThrottling, "threshold", throttled),
            unit="percentunit",
        ),
    ]


def _host() -> list[Panel]:
    cores = f"stepscope_cpu_utilization_ratio{{{OF_NODE}}}"
    waiting = f"stepscope_cpu_io_wait_ratio{{{OF_NODE}}}"
    return [
        section("Host"),
        shares(
            "CPU",
            """The busiest core and the mean of all cores. If the busiest core is above the dashed line while
            GPUs are idle, CPUBottleneck fires: one pinned core is enough, even if the mean is low.""",
            lines(f"max by (cluster, instance) ({cores})", f"busiest core{ON_NODE}"),
            lines(f"avg by (cluster, instance) ({cores})", f"mean of cores{ON_NODE}"),
            threshold(CPUBottleneck, "cpu_threshold", cores),
        ),
        shares(
            "I/O wait",
            """Share of the time in which a core only waited for a disk or a network file system. High with
            idle GPUs: storage is too slow (IOBottleneck, the dashed line). Prefetch, or keep the data on a
            local disk.""",
            lines(f"max by (cluster, instance) ({waiting})", f"highest core{ON_NODE}"),
            lines(f"avg by (cluster, instance) ({waiting})", f"mean of cores{ON_NODE}"),
            threshold(IOBottleneck, "io_threshold", waiting),
        ),
        time_series(
            "Memory",
            """Used memory of the host without caches, and swap. It rises if every loader worker keeps its
            own copy of the data set. Swap makes everything slow.""",
            lines(f"stepscope_memory_used_bytes{{{OF_NODE}}}", f"used{ON_NODE}"),
            lines(f"stepscope_memory_total_bytes{{{OF_NODE}}}", f"total{ON_NODE}"),
            lines(f"stepscope_swap_used_bytes{{{OF_NODE}}}", f"swap{ON_NODE}"),
            unit="bytes",
        ),
        time_series(
            "Network",
            """Bytes per second over all interfaces: data from network file systems, and without InfiniBand
            also gradients of other nodes.""",
            _bytes("network_receive", "received"),
            _bytes("network_transmit", "sent"),
            unit="Bps",
        ),
    ]


def _temperature(title: str, description: str, of: str) -> Panel:
    degrees = lines(f"stepscope_{of}_celsius{{{OF_NODE_GPU}}}", GPU)
    return _of_gpus(title, description, degrees, unit="celsius", lowest=20, at_least=90)


def _more_of_gpus() -> list[Panel]:
    return [
        section("Temperature, clocks, activity and errors of GPUs", collapsed=True),
        _temperature(
            "GPU temperature",
            """Compare the GPUs of a node and the nodes of a rack: a hotter one has worse cooling. Clocks are
            reduced above about 85 to 90 degrees, see "Throttling".""",
            "gpu_temperature",
        ),
        _of_gpus(
            "GPU clocks",
            """Clock of the multiprocessors. If it drops under load, heat or the power limit reduces it. In a
            job of many GPUs all wait for the slowest.""",
            lines(f'stepscope_gpu_clock_hertz{{{OF_NODE_GPU}, clock="sm"}}', GPU),
            unit="hertz",
        ),
        _of_gpus(
            "Memory bandwidth, SM and tensor core activity",
            """Memory bandwidth in use; on Hopper and later also the share of active multiprocessors and
            tensor cores. Low values with a high utilisation: kernels are too small, or have no matrix
            products in 16 or 8 bits.""",
            *(
                lines(
                    f"avg_over_time(stepscope_gpu_{of}_ratio{{{OF_NODE_GPU}}}[$__rate_interval])",
                    f"{GPU} {words}",
                )
                for of, words in {
                    "memory_bandwidth_utilization": "memory bandwidth",
                    "sm_active": "multiprocessors",
                    "tensor_active": "tensor cores",
                }.items()
            ),
            unit="percentunit",
            highest=1,
            # The colour is the GPU's; the line style shows the metric.
            overrides=[
                dashed("multiprocessors$"),
                dotted("tensor cores$"),
            ],
        ),
        _of_gpus(
            "GPU errors",
            """New memory errors (ECC) and driver errors (XID) since the previous point. A few corrected
            errors are harmless. After an uncorrected one, or an XID that the program did not cause, drain
            the machine and run NVIDIA's diagnostics (GPUError).""",
            lines(gained(f"stepscope_gpu_ecc_errors_total{{{OF_NODE_GPU}}}"), f"{GPU} {{{{severity}}}} ECC"),
            lines(gained(f"stepscope_gpu_xid_errors_total{{{OF_NODE_GPU}}}"), f"{GPU} XID {{{{xid}}}}"),
        ),
    ]


def _links() -> list[Panel]:
    return [
        section("Links between GPUs and host", collapsed=True),
        _traffic(
            "Received by each GPU",
            """PCIe: data from the host, which is input data, and parameters in the host's memory. Near the
            limit of the link (about 25 GB/s for PCIe 4 x16) copies block the GPU: pin memory, copy
            asynchronously, send less. NVLink: data from other GPUs. There is a line only for links that the
            GPUs have. Without traffic in data-parallel training, NCCL does not use NVLink (see
            NCCL_DEBUG=INFO).""",
            "receive",
        ),
        _traffic(
            "Sent by each GPU",
            """The other direction. Much over PCIe in every step: losses or outputs are read back too often.
            Over NVLink, an all-reduce sends about as much as it receives.""",
            "transmit",
        ),
    ]


def _hardware() -> list[Panel]:
    return [
        section("Hardware", collapsed=True),
        _of_gpus(
            "Bad GPU memory",
            """Above 0: a bad row or page of memory waits for a reset of the GPU, or could not be replaced
            (RowRemapping). Rows: those that were replaced in the GPU's life.""",
            *(
                lines(f"stepscope_gpu_{of}{{{OF_NODE_GPU}}}", f"{GPU} {words}")
                for of, words in {
                    "row_remapping_pending": "row pending",
                    "page_retirement_pending": "page pending",
                    "row_remapping_failed": "row failed",
                    "remapped_rows_total": "{{severity}} rows",
                }.items()
            ),
        ),
        _temperature(
            "GPU memory temperature",
            """It is often higher than that of the chip. Above its limit, clocks are reduced.""",
            "gpu_memory_temperature",
        ),
        _of_gpus(
            "PCIe links",
            """Share of the lanes and of the generation that GPU and slot allow. Fewer lanes are a fault
            (PCIeLinkDegraded). An idle GPU lowers the generation to save power.""",
            *(
                lines(
                    f"stepscope_gpu_pcie_link_{of}{{{OF_NODE_GPU}}}"
                    f" / stepscope_gpu_pcie_link_max_{of}{{{OF_NODE_GPU}}}",
                    f"{GPU} {of}",
                )
                for of in ("width", "generation")
            ),
            unit="percentunit",
            highest=1,
            overrides=[dashed("generation$")],
        ),
        _of_gpus(
            "Errors of GPU links",
            """New replays of PCIe and errors of NVLink since the previous point (PCIeReplays,
            NVLinkErrors).""",
            lines(gained(f"stepscope_gpu_pcie_replays_total{{{OF_NODE_GPU}}}"), f"{GPU} PCIe replays"),
            lines(
                gained(f"stepscope_gpu_nvlink_errors_total{{{OF_NODE_GPU}}}"), f"{GPU} NVLink {{{{kind}}}}"
            ),
        ),
        time_series(
            "InfiniBand traffic",
            """Bytes per second of all InfiniBand and RoCE ports: gradients of other nodes, which the chart
            Network does not have.""",
            _bytes("infiniband_receive", "received"),
            _bytes("infiniband_transmit", "sent"),
            unit="Bps",
        ),
        time_series(
            "InfiniBand ports",
            """1: the port is active. A port that was active and is not (InfinibandLinkDown) ends the runs
            that use it.""",
            lines(f"stepscope_infiniband_port_up{{{OF_NODE}}}", PORT),
        ),
        time_series(
            "InfiniBand errors and waits",
            """New errors and lost links since the previous point (InfinibandErrors), and thousands of ticks
            in which a port had data but no credit: the network is congested.""",
            lines(gained(f"stepscope_infiniband_errors_total{{{OF_NODE}}}"), f"{PORT} {{{{kind}}}}"),
            lines(gained(f"stepscope_infiniband_link_downed_total{{{OF_NODE}}}"), f"{PORT} link lost"),
            lines(
                f"{gained(f'stepscope_infiniband_transmit_wait_ticks_total{{{OF_NODE}}}')} / 1000",
                f"{PORT} waits",
            ),
            width=24,
        ),
    ]


def _more_of_the_host() -> list[Panel]:
    return [
        section("Pressure and disks", collapsed=True),
        time_series(
            "Pressure",
            """Share of the time in which some task waited for CPU, memory or I/O (the kernel's pressure
            stall information). CPU: more runnable tasks than cores, for example too many loader workers.
            Memory: the host is running out of memory.""",
            lines(
                per_second(f"stepscope_pressure_waiting_seconds_total{{{OF_NODE}}}"),
                f"{{{{resource}}}}{ON_NODE}",
            ),
            unit="percentunit",
        ),
        time_series(
            "Disk",
            """Bytes read and written per second. A flat plateau of reads is a disk at its limit; bursts of
            writes are checkpoints.""",
            _bytes("disk_read", "read"),
            _bytes("disk_written", "written"),
            unit="Bps",
        ),
        time_series(
            "Free disk space",
            """Share that is free of the file systems in which the run's processes work. Checkpoints written
            to a relative path are there (DiskFilling).""",
            lines(
                f"stepscope_run_file_system_free_bytes{{{OF_NODE}}}"
                f" / stepscope_run_file_system_size_bytes{{{OF_NODE}}}",
                f"{{{{mountpoint}}}}{ON_NODE}",
            ),
            unit="percentunit",
            highest=1,
        ),
        time_series(
            "Disk busy time",
            """Share of the time in which a disk was busy. Near 100 % it limits sequential requests; arrays
            and NVMe disks can serve more in parallel.""",
            lines(
                per_second(f"stepscope_disk_io_time_seconds_total{{{OF_NODE}}}"),
                f"{{{{device}}}}{ON_NODE}",
            ),
            unit="percentunit",
        ),
    ]


def _of_gpus(
    title: str, description: str, *targets: Target, overrides: Iterable[Override] = (), **look: Any
) -> Panel:
    """Returns a `time_series` in which each GPU has the same colour as in all other panels."""
    return time_series(title, description, *targets, overrides=[*numbered("GPU"), *overrides], **look)


def _traffic(title: str, description: str, direction: str) -> Panel:
    """Returns the traffic over PCIe and NVLink; most GPUs have no NVLink, and then no line of it."""
    targets = (
        lines(
            per_second(f"stepscope_gpu_{link.lower()}_{direction}_bytes_total{{{OF_NODE_GPU}}}"),
            f"{GPU} {link}",
        )
        for link in ("PCIe", "NVLink")
    )
    return _of_gpus(title, description, *targets, unit="Bps", overrides=[dashed("NVLink$")])


def _bytes(counter: str, direction: str) -> Target:
    """Returns bytes per second of a node over all its devices."""
    rate = per_second(f"stepscope_{counter}_bytes_total{{{OF_NODE}}}")
    return lines(f"sum by (cluster, instance) ({rate})", f"{direction}{ON_NODE}")
