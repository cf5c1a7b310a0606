"""The simulated GPUs: answers of NVML for the real GPU collector."""

from dataclasses import dataclass
from typing import Any

import pynvml

from stepscope.demo.scenario import GPUS
from stepscope.exporter.nvidia.nvml import FieldBatch, Handle, Identity, Nvml, NvmlError

DRIVER = "580.0-simulated"
MODEL = "Simulated H100 80GB"
MEMORY_BYTES = 80 * 1024**3
POWER_LIMIT_WATTS = 700.0
IDLE_WATTS, BUSY_WATTS = 90.0, 610.0
IDLE_CELSIUS = 34.0
CLOCK_MEGAHERTZ, HOT_CLOCK_MEGAHERTZ, MEMORY_CLOCK_MEGAHERTZ = 1980, 1200, 2619
WARMING = 0.05  # share of the difference to its final temperature by which a GPU warms per tick
LINK_BYTES, PCIE_BYTES = 60e9, 0.4e9  # per second, of a busy GPU

# NVML_FI_DEV_...: power now and its limit, energy, thermal throttling, memory errors, traffic.
POWER_NOW, POWER_LIMIT, ENERGY, HEAT = 186, 190, 83, 269
CORRECTED, UNCORRECTED = 3, 4
NVLINK_SENT, NVLINK_RECEIVED, PCIE_SENT, PCIE_RECEIVED = 138, 139, 197, 198


@dataclass
class SimulatedGpu:
    """The readings of one GPU."""

    percent: int = 0  # utilisation, as NVML gives it
    memory_bytes: int = 0
    pids: tuple[int, ...] = ()
    watts: float = IDLE_WATTS
    celsius: float = IDLE_CELSIUS
    megahertz: int = CLOCK_MEGAHERTZ
    joules: float = 0.0
    heat_seconds: float = 0.0
    busy_seconds: float = 0.0
    uncorrected_errors: int = 0

    def advance(self, seconds: float, load: float, celsius: float, hot: bool, spinning: bool) -> None:
        """Advances at a utilisation of `load`; `celsius` is the final temperature of an always busy GPU."""
        self.percent = round(100 * load)
        self.megahertz = HOT_CLOCK_MEGAHERTZ if hot else CLOCK_MEGAHERTZ
        # Spinning kernels use little of the chip.
        effort = load * (0.25 if spinning else self.megahertz / CLOCK_MEGAHERTZ)
        self.watts = IDLE_WATTS + (BUSY_WATTS - IDLE_WATTS) * effort
        goal = IDLE_CELSIUS + (celsius - IDLE_CELSIUS) * (1.0 if hot else effort)
        self.celsius += (goal - self.celsius) * WARMING
        self.joules += self.watts * seconds
        self.heat_seconds += seconds if hot else 0.0
        self.busy_seconds += load * seconds

    def answers(self) -> dict[int, float]:
        """Returns values by field, in NVML's units: milliwatts, millijoules, nanoseconds, KiB, bytes."""
        link, bus = self.busy_seconds * LINK_BYTES / 1024, self.busy_seconds * PCIE_BYTES
        return {
            POWER_NOW: round(1000 * self.watts),
            POWER_LIMIT: 1000 * POWER_LIMIT_WATTS,
            ENERGY: round(1000 * self.joules),
            HEAT: round(1e9 * self.heat_seconds),
            CORRECTED: 0,
            UNCORRECTED: self.uncorrected_errors,
            NVLINK_SENT: round(link),
            NVLINK_RECEIVED: round(link),
            PCIE_SENT: round(bus / 4),
            PCIE_RECEIVED: round(bus),
        }


class SimulatedNvml(Nvml):
    """Answers for the GPUs of a simulation; handles are their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.gpus = [SimulatedGpu() for _ in range(GPUS)]

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def driver_version(self) -> str:
        return DRIVER

    def count(self) -> int:
        return GPUS

    def handle(self, index: int) -> Handle:
        return index

    def identity(self, handle: Handle) -> Identity:
        return Identity(f"GPU-simulated-{handle}", MODEL, f"00000000:{0x10 + handle:02X}:00.0")

    def mig_enabled(self, handle: Handle) -> bool:
        return False

    def gpm_supported(self, handle: Handle) -> bool:
        return False

    def fields(self, handle: Handle, batch: FieldBatch) -> dict[int, float]:
        answers = self.gpus[handle].answers()
        return {field: answers[field] for field in batch.ids if field in answers}

    def utilization(self, handle: Handle) -> tuple[int, int]:
        percent = self.gpus[handle].percent
        return percent, percent // 2

    def memory_v2(self, handle: Handle) -> tuple[int, int]:
        return self.gpus[handle].memory_bytes, MEMORY_BYTES

    def temperature_v1(self, handle: Handle) -> int:
        return round(self.gpus[handle].celsius)

    def sm_clock(self, handle: Handle) -> int:
        return self.gpus[handle].megahertz

    def memory_clock(self, handle: Handle) -> int:
        return MEMORY_CLOCK_MEGAHERTZ

    def compute_processes(self, handle: Handle) -> list[tuple[int, float]]:
        gpu = self.gpus[handle]
        return [(pid, gpu.memory_bytes / len(gpu.pids)) for pid in gpu.pids]

    def event_set(self) -> Any:
        """Raises NvmlError: there are no XID errors here."""
        raise NvmlError("nvmlEventSetCreate", pynvml.NVML_ERROR_NOT_SUPPORTED)
