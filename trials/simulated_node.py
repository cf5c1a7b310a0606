"""A simulated node beyond `stepscope demo`: failing GPUs, cgroups, neighbours, killed ranks."""

from dataclasses import dataclass
from pathlib import Path

import pynvml
from stepscope.demo.gpus import MEMORY_BYTES, MODEL, SimulatedGpu, SimulatedNvml
from stepscope.demo.processes import RunProcesses, SimulatedProcess
from stepscope.demo.runs import Place, SimulatedRun
from stepscope.demo.scenario import Scenario
from stepscope.demo.simulation import SimulatedNode
from stepscope.exporter.nvidia.nvml import Handle, Identity, NvmlError

OTHER_UID = 65_534  # of a neighbour's process
NEIGHBOUR_PID = 50_000  # more than that of the run's first process
PERIOD_MICROSECONDS = 100_000  # of a CPU limit


class FailingNvml(SimulatedNvml):
    """GPUs that may be lost, or divided into MIG devices, whose numbers are after those of the GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[Handle] = set()  # off the bus: NVML answers nothing more about them
        self._divided: dict[int, range] = {}  # the MIG devices of a GPU

    def divide(self, gpu: int, parts: int) -> None:
        """Divides a GPU into MIG devices of equal memory."""
        self._divided[gpu] = range(len(self.gpus), len(self.gpus) + parts)
        self.gpus += [SimulatedGpu() for _ in range(parts)]

    def handle(self, index: int) -> Handle:
        self._answers(index)
        return index

    def _answers(self, handle: Handle) -> None:
        """Raises NvmlError if the GPU is lost."""
        if handle in self.lost:
            raise NvmlError("nvmlDeviceGetHandleByIndex_v2", pynvml.NVML_ERROR_GPU_IS_LOST)

    def mig_enabled(self, handle: Handle) -> bool:
        return handle in self._divided

    def most_mig_devices(self, handle: Handle) -> int:
        return len(self._divided[handle])

    def mig_handle(self, handle: Handle, number: int) -> Handle:
        return self._divided[handle][number]

    def mig_identity(self, device: Handle, parent: Identity) -> Identity:
        return Identity(f"MIG-simulated-{device}", f"{MODEL} MIG", parent.pci_bus_id)

    def utilization(self, handle: Handle) -> tuple[int, int]:
        if handle in self._divided:
            raise NvmlError("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_NOT_SUPPORTED)
        return super().utilization(handle)

    def memory_v2(self, handle: Handle) -> tuple[int, int]:
        self._answers(handle)
        parts = next((len(own) for own in self._divided.values() if handle in own), 1)
        return self.gpus[handle].memory_bytes // parts, MEMORY_BYTES // parts


@dataclass(frozen=True)
class GroupedPlace(Place):
    """The part of a node that a run uses, with its own cgroup."""

    cpu_limit: float | None = None  # cores, of its pod
    in_group: bool = False  # in its own cgroup, although it has no limit


class SimulatedGroup:
    """A cgroup below the root, with a limit of `cores` (None: no limit)."""

    def __init__(self, root: Path, path: str, cores: float | None) -> None:
        self._directory = root / path.lstrip("/")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._cores = cores
        self._throttled_seconds = 0.0
        self._periods = self._throttled = 0.0
        limit = "max" if cores is None else str(round(cores * PERIOD_MICROSECONDS))
        self._put("cgroup.events", "populated 1\nfrozen 0\n")
        self._put("cpu.max", f"{limit} {PERIOD_MICROSECONDS}\n")
        self._put("memory.max", "max\n")
        self._put("memory.current", f"{8 << 30}\n")
        self._put("memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")
        self._waited = {"cpu": 0.0, "io": 0.0, "memory": 0.0}  # seconds
        self.advance(0.0, 0.0, 0.0, 0.0)

    def advance(self, seconds: float, throttled: float, io_wait: float, memory_waits: float) -> None:
        """Advances; a limit stops it for the share `throttled` of the CPU time that it grants.

        Some process waits for I/O for the share `io_wait` of the time, and for memory for `memory_waits`.
        """
        self._waited["io"] += io_wait * seconds
        self._waited["memory"] += memory_waits * seconds
        for resource, waited in self._waited.items():
            line = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={1e6 * waited:.0f}\n"
            self._put(f"{resource}.pressure", line)
        cores = self._cores or 0.0
        periods = seconds * 1e6 / PERIOD_MICROSECONDS if cores else 0.0
        self._periods += periods
        self._throttled += min(1.0, 2 * throttled) * periods
        self._throttled_seconds += throttled * seconds * cores
        self._put(
            "cpu.stat",
            f"usage_usec 0\nnr_periods {self._periods:.0f}\nnr_throttled {self._throttled:.0f}\n"
            f"throttled_usec {1e6 * self._throttled_seconds:.0f}\n",
        )

    def _put(self, name: str, text: str) -> None:
        (self._directory / name).write_text(text)


class GroupedProcesses(RunProcesses):
    """The processes of a run in its cgroup, and of neighbours on its cores."""

    def __init__(self, directory: Path, run: SimulatedRun) -> None:
        self._procfs, place = directory / "proc", run.place
        assert isinstance(place, GroupedPlace)
        self._place, limit = place, place.cpu_limit
        in_group = place.in_group or limit is not None
        path = f"/pods/{run.name}-{run.place.first_pid}" if in_group else "/"
        super().__init__(self._procfs, run, path)
        self._group = SimulatedGroup(directory / "cgroup", path, limit) if in_group else None
        self._neighbour: SimulatedProcess | None = None
        self._neighbours_seconds = 0.0

    def advance(self, seconds: float, cores: float, scenario: Scenario) -> None:
        super().advance(seconds, cores, scenario)
        if self._group is not None:
            self._group.advance(seconds, scenario.throttled, max(scenario.io_wait), scenario.memory_waits)
        if scenario.neighbours:
            pid = self._place.first_pid + NEIGHBOUR_PID
            self._neighbour = self._neighbour or SimulatedProcess(
                self._procfs, pid, 1, OTHER_UID, self._place.cores
            )
            self._neighbours_seconds += seconds * scenario.neighbours * len(self._place.cores)
            self._neighbour.use(self._neighbours_seconds)
        elif self._neighbour is not None:
            self._neighbour.end()
            self._neighbour, self._neighbours_seconds = None, 0.0

    def end(self) -> None:
        super().end()
        if self._neighbour is not None:
            self._neighbour.end()


class FailingNode(SimulatedNode):
    """A node of a cluster."""

    def __init__(self, title: str, start: float, directory: Path, nvml: FailingNvml | None = None) -> None:
        super().__init__(title, start, directory)
        self.nvml: FailingNvml = nvml or FailingNvml()

    def processes_of(self, run: SimulatedRun) -> GroupedProcesses:
        return GroupedProcesses(self.directory, run)


def kill(node: SimulatedNode, run: SimulatedRun, rank: int) -> None:
    """Kills the process of one rank, and its loader workers; the other ranks of the run continue."""
    ledger = next(ledger for ledger in run.ledgers if ledger.rank == rank)
    run.killed.add(ledger.pid)
    node.living.discard(ledger.path)
    ranks, workers = node.processes[run].ranks, node.processes[run].workers
    for process in [each for each in (*ranks, *workers) if ledger.pid in (each.pid, each.parent)]:
        process.end()
        (ranks if process.pid == ledger.pid else workers).remove(process)
