"""System: what the GPUs, cores, memory, disks and links of a node do, in one look and one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainwatch.dashboards import variables
from trainwatch.dashboards.looks import Override, by_pattern, coloured, numbered
from trainwatch.dashboards.page import Dashboard, of_one_run
from trainwatch.dashboards.panels import Panel, device_heatmap, repeated, section, shares, time_series
from trainwatch.dashboards.queries import (
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

UID = "trainwatch-system"
GPU = "{{instance}} GPU {{gpu}}"


def dashboard() -> Dashboard:
    return of_one_run(
        UID,
        "System",
        "What the GPUs, cores, memory, disks and links of the nodes of a run do.",
        [*_overview(), *_gpus(), *_links(), *_host()],
        variables.gpu(),
    )


def mean_of_samples(histogram: str) -> str:
    """Of all samples of 500 ms. Readings at each scrape may beat with the steps: always, or never, hit a
    gap."""
    sums, counts = (per_second(f"{histogram}_{part}{{{OF_GPU}}}") for part in ("sum", "count"))
    return f"({sums} / ({counts} > 0))"


def mean_of_readings(series: str) -> str:
    """Of those of each point of the chart; the last one where a point has none of its own."""
    return f"(avg_over_time({series}[$__interval]) or {series})"


def _overview() -> list[Panel]:
    gpus = mean_of_samples("trainwatch_gpu_utilization_samples")
    cores = mean_of_readings(f"trainwatch_cpu_utilization_ratio{{{OF_NODE}}}")
    heatmap = device_heatmap(
        1,
        "GPUs and cores of $instance",
        """A row a GPU, then a row a core; dark is idle (0 %), bright is busy (100 %). Bright GPUs are
        what you pay for. Dark GPUs beside one or more bright cores: the cores cannot keep up
        (CPUBottleneck). Dark GPUs and dark cores: both wait, look at I/O wait and the network below. One
        bright GPU among dark ones: work is not shared (LoadBalancing). A dark stripe through all GPUs:
        something pauses the training for a minute or more; for shorter pauses see Trainwatch /
        Utilisation histograms.""",
        lines(f"clamp({named_device(gpus, 'GPU', 'gpu', 2)}, 0.01, 1)", "{{device}}"),
        lines(f"clamp({named_device(cores, 'core', 'cpu', 3)}, 0.01, 1)", "{{device}}"),
    )
    return [repeated(heatmap, "instance")]


def _gpus() -> list[Panel]:
    memory = f"trainwatch_gpu_memory_used_bytes{{{OF_NODE_GPU}}} / trainwatch_gpu_memory_total_bytes"
    return [
        section(10, "GPUs"),
        _of_gpus(
            11,
            "GPU utilisation",
            """Share of the time in which some kernel ran. High is necessary, not sufficient: one busy
            multiprocessor is enough, and a hang in a collective reads 100 %. Below the line:
            LowGPUUtilization.""",
            lines(mean_of_samples("trainwatch_gpu_utilization_samples"), GPU),
            threshold("LowGPUUtilization", "threshold_p95", "below"),
            unit="percentunit",
            highest=1,
        ),
        _of_gpus(
            12,
            "GPU memory",
            """Used memory as a share of all. Low together with low utilisation: a larger batch fits
            (BatchSize). A line that climbs steadily is a leak (GPUMemoryLeak); near the top the run may
            end for want of memory (GPUMemoryNearlyFull).""",
            lines(memory, GPU),
            threshold("GPUMemoryNearlyFull", "threshold"),
            unit="percentunit",
            highest=1,
        ),
        _of_gpus(
            13,
            "How full busy GPUs are",
            """Memory bandwidth in use; on GPUs that tell (Hopper and later) also the share of
            multiprocessors and of tensor cores at work. Low here beside a high utilisation: kernels are
            too small, or not made of matrix products in 16 or 8 bits.""",
            *(
                lines(
                    f"avg_over_time(trainwatch_gpu_{of}_ratio{{{OF_NODE_GPU}}}[$__rate_interval])",
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
            # All lines of a GPU have its colour; how they are drawn tells what they are of.
            overrides=[
                by_pattern("multiprocessors$", custom__lineStyle={"fill": "dash", "dash": [10, 5]}),
                by_pattern("tensor cores$", custom__lineStyle={"fill": "dot", "dash": [2, 4]}),
            ],
        ),
        _of_gpus(
            14,
            "GPU power",
            """The truest sign of work: a GPU that computes draws most of its limit. Power that falls while
            utilisation stays at 100 % is a hang (TrainingStalled) or kernels that only wait.""",
            # The mean; of GPUs that do not count their energy, the reading.
            lines(
                f"""
                max by (instance, gpu) (
                  {per_second(f"trainwatch_gpu_energy_joules_total{{{OF_NODE_GPU}}}")}
                    or trainwatch_gpu_power_watts{{{OF_NODE_GPU}}}
                )
                """,
                GPU,
            ),
            lines(f"max(trainwatch_gpu_power_limit_watts{{{OF_NODE_GPU}}})", "limit"),
            unit="watt",
            overrides=coloured(("limit",)),
        ),
        _of_gpus(
            15,
            "GPU temperature",
            """Compare the GPUs of a node, and nodes of a rack: one that is hotter than the others has worse
            cooling. From about 85 to 90 degrees on clocks are held down; the panel on throttling says so.""",
            lines(f"trainwatch_gpu_temperature_celsius{{{OF_NODE_GPU}}}", GPU),
            unit="celsius",
            lowest=None,
        ),
        _of_gpus(
            16,
            "GPU clocks",
            """The multiprocessors' clock. A clock that falls under load is held down by heat or by the
            power limit; in a job of many GPUs all wait for the slowest.""",
            lines(f'trainwatch_gpu_clock_hertz{{{OF_NODE_GPU}, clock="sm"}}', GPU),
            unit="hertz",
        ),
        _of_gpus(
            17,
            "Throttling",
            """Share of the time in which clocks were held down, by reason. sw_thermal and hw_thermal are
            heat: look after the cooling (ThermalThrottling, the line). sw_power_cap is the power limit
            doing its work, which is usual under full load.""",
            lines(
                per_second(f"trainwatch_gpu_throttle_seconds_total{{{OF_NODE_GPU}}}"),
                f"{GPU} {{{{reason}}}}",
            ),
            threshold("ThermalThrottling", "threshold"),
            unit="percentunit",
        ),
        _of_gpus(
            18,
            "GPU errors",
            """New memory errors (ECC) and errors that the driver reported (XID) since the point before.
            Corrected ones are harmless when few; any uncorrected one, or an XID that is not the
            program's, means: take the machine out of use and run NVIDIA's diagnostics (GPUError).""",
            lines(gained(f"trainwatch_gpu_ecc_errors_total{{{OF_NODE_GPU}}}"), f"{GPU} {{{{severity}}}} ECC"),
            lines(gained(f"trainwatch_gpu_xid_errors_total{{{OF_NODE_GPU}}}"), f"{GPU} XID {{{{xid}}}}"),
        ),
    ]


def _links() -> list[Panel]:
    return [
        section(20, "Links between GPUs and host"),
        _traffic(
            21,
            "PCIe of each GPU, received",
            """What the host sends to the GPU: input data, and parameters that are kept in the host's
            memory. Near the limit of the link (about 25 GB/s for PCIe 4 x16) copies hold up the GPU: pin
            memory, copy asynchronously, send less.""",
            "trainwatch_gpu_pcie_receive_bytes_total",
        ),
        _traffic(
            22,
            "PCIe of each GPU, sent",
            """What the GPU sends to the host. Much of it in every step: losses or outputs that are read
            back too often.""",
            "trainwatch_gpu_pcie_transmit_bytes_total",
        ),
        _traffic(
            23,
            "NVLink of each GPU, received",
            """What GPUs send to each other. No traffic at all in data-parallel training: NCCL does not
            use NVLink (see NCCL_DEBUG=INFO). GPUs that differ much: an uneven share of the work.""",
            "trainwatch_gpu_nvlink_receive_bytes_total",
        ),
        _traffic(
            24,
            "NVLink of each GPU, sent",
            "The other direction; in an all-reduce it is about as much as what is received.",
            "trainwatch_gpu_nvlink_transmit_bytes_total",
        ),
    ]


def _host() -> list[Panel]:
    cores = f"trainwatch_cpu_utilization_ratio{{{OF_NODE}}}"
    waiting = f"trainwatch_cpu_io_wait_ratio{{{OF_NODE}}}"
    return [
        section(30, "Host"),
        shares(
            31,
            "CPU",
            """The busiest core and the mean of all. A busiest core above the line while GPUs idle is
            CPUBottleneck, even where the mean is low: one pinned core among many is enough.""",
            lines(f"max by (instance) ({cores})", "{{instance}} busiest core"),
            lines(f"avg by (instance) ({cores})", "{{instance}} mean of cores"),
            threshold("CPUBottleneck", "cpu_threshold"),
        ),
        shares(
            32,
            "Waiting for I/O",
            """Share of a core's time in which it had nothing to do but wait for a disk or a network file
            system. High beside idle GPUs: storage is too slow (IOBottleneck). Prefetch, keep the data on
            local storage.""",
            lines(f"max by (instance) ({waiting})", "{{instance}} most waiting core"),
            lines(f"avg by (instance) ({waiting})", "{{instance}} mean of cores"),
            threshold("IOBottleneck", "io_threshold"),
        ),
        time_series(
            33,
            "Memory",
            """Used memory of the host, without caches, and swap. Loader workers that each keep a copy of
            the data set show as a climb; swap in use makes everything slow.""",
            lines(f"trainwatch_memory_used_bytes{{{OF_NODE}}}", "{{instance}} used"),
            lines(f"trainwatch_memory_total_bytes{{{OF_NODE}}}", "{{instance}} total"),
            lines(f"trainwatch_swap_used_bytes{{{OF_NODE}}}", "{{instance}} swap"),
            unit="bytes",
        ),
        time_series(
            34,
            "Pressure",
            """Share of the time in which some task waited for CPU, memory or I/O (the kernel's pressure
            stall information). CPU: more runnable tasks than cores, so too many loader workers. Memory:
            the host runs out of it.""",
            lines(
                per_second(f"trainwatch_pressure_waiting_seconds_total{{{OF_NODE}}}"),
                "{{instance}} {{resource}}",
            ),
            unit="percentunit",
        ),
        time_series(
            35,
            "Disk",
            """Bytes a second, read and written, and how long the disk was at work. Steady reading at a
            flat top is a disk at its limit; bursts of writing are checkpoints.""",
            _bytes("disk_read", "read"),
            _bytes("disk_written", "written"),
            unit="Bps",
        ),
        time_series(
            36,
            "Disks at work",
            """Share of the time in which a disk had something to do. Near 100 %: it is the limit for
            reads that come one after the other; arrays and NVMe disks can take more at once.""",
            lines(
                per_second(f"trainwatch_disk_io_time_seconds_total{{{OF_NODE}}}"),
                "{{instance}} {{device}}",
            ),
            unit="percentunit",
        ),
        time_series(
            37,
            "Network",
            """Bytes a second over all interfaces. Data from a network file system comes in here, and
            gradients of other nodes where there is no InfiniBand.""",
            _bytes("network_receive", "received"),
            _bytes("network_transmit", "sent"),
            unit="Bps",
        ),
    ]


def _of_gpus(
    id: int, title: str, description: str, *targets: Target, overrides: Iterable[Override] = (), **look: Any
) -> Panel:
    """A `time_series` with each GPU in its colour, the same in all panels."""
    return time_series(id, title, description, *targets, overrides=[*numbered("GPU"), *overrides], **look)


def _traffic(id: int, title: str, description: str, counter: str) -> Panel:
    return _of_gpus(id, title, description, lines(per_second(f"{counter}{{{OF_NODE_GPU}}}"), GPU), unit="Bps")


def _bytes(counter: str, direction: str) -> Target:
    """Bytes a second of a node, over all its devices."""
    rate = per_second(f"trainwatch_{counter}_bytes_total{{{OF_NODE}}}")
    return lines(f"sum by (instance) ({rate})", f"{{{{instance}}}} {direction}")
