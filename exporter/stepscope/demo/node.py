"""The simulated node: the real exporter, with collectors that read a simulation."""

import time
from functools import partial
from pathlib import Path
from threading import Event

from stepscope.demo.ranks import AliveReader
from stepscope.demo.simulation import SimulatedNode
from stepscope.exporter.collectors.cpu import CpuCollector
from stepscope.exporter.collectors.disk import DiskCollector
from stepscope.exporter.collectors.file_systems import FileSystemsCollector
from stepscope.exporter.collectors.gpu import GpuCollector
from stepscope.exporter.collectors.gpu_holders import GpuHoldersCollector
from stepscope.exporter.collectors.infiniband import InfinibandCollector
from stepscope.exporter.collectors.memory import MemoryCollector
from stepscope.exporter.collectors.network import NetworkCollector
from stepscope.exporter.collectors.pressure import PressureCollector
from stepscope.exporter.collectors.rank_pauses import RankPausesCollector
from stepscope.exporter.collectors.run_gpus import RunGpusCollector
from stepscope.exporter.collectors.run_processes import RunProcessesCollector
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.exporter import Exporter, Recording
from stepscope.exporter.sampling.collector import Collector
from stepscope.exporter.sampling.profiles import Profile
from stepscope.exporter.sampling.sample import Sample
from stepscope.exporter.sampling.sampler import Clock

NODE = "simulated-node"
INTERVAL = 0.5  # seconds, simulated ones
PATIENCE = 60.0  # seconds: no reading of a simulation is dropped because the machine is busy


class SimulatedGpus(GpuCollector):
    """The real collector, reading simulated GPUs."""

    def patience(self, interval: float) -> float:
        return PATIENCE


class SimulatedTraining(TrainingCollector):
    """The real collector. If the simulation is faster than real time, it moves moments to keep their age."""

    def __init__(self, directory: Path, simulation: SimulatedNode, clock: "SimulatedClock") -> None:
        open_ledger = partial(AliveReader, living=simulation.living, owners=simulation.owners)
        super().__init__(directory, open_ledger=open_ledger, procfs=directory / "proc")
        self._clock = clock

    def collect(self, sample: Sample) -> None:
        super().collect(sample)
        if self._clock.real:
            return
        for family in self.families:  # `time() - stepscope_run_..._time_seconds` is the simulated age
            if family.name.endswith("_time_seconds"):
                lag = self._clock.lag()
                family.publish({labels: moment + lag for labels, moment in family.samples.items()})


def make_exporter(
    simulation: SimulatedNode,
    clock: "SimulatedClock",
    directory: Path,
    recording: Recording | None = None,
    name: str = NODE,
    profile: Profile = "default",
) -> Exporter:
    """Returns the exporter of the simulated node; `directory` has its ledgers and its /proc.

    Raises UserError if the recording cannot be written.
    """
    procfs = directory / "proc"
    collectors: list[Collector] = [
        simulation,
        CpuCollector(procfs),
        DiskCollector(procfs),
        MemoryCollector(procfs),
        NetworkCollector(procfs),
        InfinibandCollector(directory / "sys"),
        PressureCollector(procfs),
        SimulatedGpus(clock=clock.monotonic, nvml=simulation.nvml),
        SimulatedTraining(directory, simulation, clock),
        RunGpusCollector(procfs, clock.monotonic),
        GpuHoldersCollector(procfs, clock.monotonic),
        RunProcessesCollector(procfs, directory / "cgroup", clock.monotonic),
        RankPausesCollector(procfs, directory / "cgroup"),
        FileSystemsCollector(procfs, clock.monotonic),
    ]
    return Exporter(
        collectors,
        interval=INTERVAL,
        node=name,
        state_directory=directory,
        recording=recording,
        clock=clock,
        profile=profile,
        simulated=simulation.title,
        patience=PATIENCE,
    )


class SimulatedClock(Clock):
    """Advances only in `wait`: a late tick is late in real time only, and no tick is ever missed."""

    def __init__(self, start: float, speed: float = 1.0) -> None:
        """Starts at `start`, in seconds since the epoch. `speed` is in simulated seconds per real second."""
        self._start = start
        self._speed = speed
        self._elapsed = 0.0
        self._began = time.monotonic()

    @property
    def real(self) -> bool:
        """Returns whether it is as fast as real time."""
        return self._speed == 1

    def time(self) -> float:
        return self._start + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed

    def wait(self, stopping: Event, seconds: float) -> bool:
        """Waits in real time until `seconds` have passed in simulated time."""
        due = self._began + (self._elapsed + seconds) / self._speed
        if stopping.wait(max(0.0, due - time.monotonic())):
            return True
        self.advance(seconds)
        return False

    def advance(self, seconds: float) -> None:
        """Advances without waiting."""
        self._elapsed += seconds

    def step(self, seconds: float) -> None:
        """Sets the time forward or, if negative, back, as an administrator does; no time passes."""
        self._start += seconds

    def start_waiting(self) -> None:
        """Starts real time now, after what has passed without waiting."""
        self._began = time.monotonic() - self._elapsed / self._speed

    def lag(self) -> float:
        """Returns real minus simulated time, in seconds: added to a simulated moment, it keeps its age."""
        return time.time() - self.time()
