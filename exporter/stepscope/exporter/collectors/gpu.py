"""NVIDIA GPUs through NVML: load, memory, power, clocks, traffic and errors of each.

docs/gpu.md has the source and the tier of each value. It also describes missing and old drivers, calls that
hang and lost GPUs.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic

from stepscope.common.errors import UserError
from stepscope.exporter.nvidia.nvml import Nvml
from stepscope.exporter.nvidia.session import RETRY_SECONDS, Session
from stepscope.exporter.nvidia.thread import NvmlThread
from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.families import Family, LabelValues
from stepscope.exporter.sampling.sample import Sample

PATIENCE_SHARE = 0.5  # of an interval: how long a tick waits for NVML,
LONGEST_PATIENCE = 1.0  # but at most this many seconds


@collector
class GpuCollector(Collector):
    """Every sample has the label `gpu`: NVML's index when the GPU was first seen.

    `library` is the libnvidia-ml.so.1 to use; without it the dynamic loader finds one. `retry_seconds` are
    between looks for a driver or a lost GPU. Only tests and simulations set them and the other arguments.
    """

    name = "gpu"

    def __init__(
        self,
        library: Path | None = None,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = monotonic,
        longest_patience: float = LONGEST_PATIENCE,
        nvml: Nvml | None = None,
    ) -> None:
        self._longest_patience = longest_patience
        nvml = nvml or Nvml(library)
        self._thread = NvmlThread(nvml, Session(nvml, clock, retry_seconds))
        self._families = {family.name.removeprefix("stepscope_"): family for family in _families()}
        self.families = tuple(self._families.values())

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--path.nvml-library",
            dest="path_nvml_library",
            metavar="FILE",
            help="the NVML library (default: libnvidia-ml.so.1, where the dynamic loader finds it)",
        )

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> GpuCollector:
        name = arguments.path_nvml_library
        if name is None:
            return cls()
        library = Path(name).absolute()  # a bare name would be looked up by the loader
        if not library.is_file():
            raise UserError(f"--path.nvml-library {name}: there is no such file; name a libnvidia-ml.so.1")
        return cls(library)

    def collect(self, sample: Sample) -> None:
        """Raises `NoReadingError` without a driver or a GPU, and while a call hangs."""
        reading = self._thread.read(sample.interval, self.patience(sample.interval))
        samples: dict[str, dict[LabelValues, float]] = {name: {} for name in self._families}
        gpus = self.within_limit(reading.samples)
        left_out = reading.samples.keys() - gpus.keys()
        for family, labels, value in reading.values:
            if labels[0] not in left_out:
                samples[family][labels] = value
        for name, published in samples.items():
            self._families[name].publish(published)
        sample.gpus = dict(gpus)
        sample.gpu_processes = reading.processes
        sample.driver_version = reading.driver_version

    def patience(self, interval: float) -> float:
        """Returns the most seconds that a tick waits for NVML, at this interval between ticks."""
        return min(interval * PATIENCE_SHARE, self._longest_patience)

    def close(self) -> None:
        self._thread.close()


def _families() -> Iterable[Family]:
    def gauge(name: str, help: str, *labels: str) -> Family:
        return Family(f"stepscope_gpu_{name}", "gauge", help, ("gpu", *labels))

    def counter(name: str, help: str, *labels: str) -> Family:
        return Family(f"stepscope_gpu_{name}_total", "counter", help, ("gpu", *labels))

    identity = ("uuid", "model", "driver_version", "pci_bus_id")
    yield gauge("up", "Whether the GPU answers (1), or is lost (0).")
    yield Family("stepscope_gpu_info", "info", "Identity of the GPU.", ("gpu", *identity))
    yield gauge("utilization_ratio", "Share of the driver's last sample period with a kernel running.")
    yield gauge("memory_used_bytes", "Memory in use, without the driver's own memory.")
    yield gauge("memory_total_bytes", "Total memory.")
    yield gauge(
        "memory_bandwidth_utilization_ratio",
        "Share of the driver's last sample period in which memory was read or written.",
    )
    yield gauge("power_watts", "Power drawn.")
    yield gauge("power_limit_watts", "Power that the driver allows.")
    yield gauge("temperature_celsius", "Temperature of the chip.")
    yield gauge("clock_hertz", "Clock frequency, of the multiprocessors (sm) and of the memory.", "clock")
    yield gauge("sm_active_ratio", "Share of the multiprocessors that were busy since the last sample.")
    yield gauge("tensor_active_ratio", "Share of the time since the last sample with tensor operations.")
    yield gauge("dram_active_ratio", "Share of the peak memory bandwidth used since the last sample.")
    yield counter("busy_seconds", "Utilisation added up over time.")
    yield counter("energy_joules", "Energy used since the driver was loaded.")
    yield counter("throttle_seconds", "Time in which the clocks were throttled, by reason.", "reason")
    yield counter("pcie_receive_bytes", "Received over PCIe since the exporter started.")
    yield counter("pcie_transmit_bytes", "Sent over PCIe since the exporter started.")
    yield counter("nvlink_receive_bytes", "Received over all NVLinks.")
    yield counter("nvlink_transmit_bytes", "Sent over all NVLinks.")
    yield counter("ecc_errors", "Memory errors since the driver was loaded, by severity.", "severity")
    yield counter("xid_errors", "XID errors that the driver reported since the exporter started.", "xid")
