"""The simulated node: the real exporter, with collectors that read a simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trainwatch.collectors.cpu import CpuCollector
from trainwatch.collectors.disk import DiskCollector
from trainwatch.collectors.gpu import GpuCollector
from trainwatch.collectors.memory import MemoryCollector
from trainwatch.collectors.network import NetworkCollector
from trainwatch.collectors.pressure import PressureCollector
from trainwatch.collectors.training import TrainingCollector
from trainwatch.demo.clock import SimulatedClock
from trainwatch.demo.ranks import AliveReader
from trainwatch.demo.simulation import Simulation
from trainwatch.exporter.exporter import Exporter
from trainwatch.sampling.collector import Collector
from trainwatch.sampling.sample import Sample

NODE = "simulated-node"
INTERVAL = 0.5  # seconds, simulated ones
PATIENCE = 60.0  # seconds: a busy machine must not take a reading from a simulation

Sink = Callable[[Sample], None]


class SimulatedGpus(GpuCollector):
    """The real collector, which asks a simulation."""

    def patience(self, interval: float) -> float:
        return PATIENCE


class SimulatedTraining(TrainingCollector):
    """The real collector. At another speed than the real one, moments are published by their age."""

    def __init__(self, directory: Path, simulation: Simulation, clock: SimulatedClock) -> None:
        super().__init__(directory, open_ledger=partial(AliveReader, living=simulation.living))
        self._clock = clock

    def collect(self, sample: Sample) -> None:
        super().collect(sample)
        if not self._clock.real:
            self._publish_by_age(self._clock.behind_real_time())

    def _publish_by_age(self, behind: float) -> None:
        """Lets `time() - trainwatch_run_..._time_seconds` be the simulated age of the moment."""
        for family in self.families:
            if family.name.endswith("_time_seconds"):
                family.publish({labels: moment + behind for labels, moment in family.samples.items()})


def make_exporter(
    simulation: Simulation,
    clock: SimulatedClock,
    directory: Path,
    recording: Path | None = None,
    sinks: Sequence[Sink] = (),
) -> Exporter:
    """Returns the exporter of the simulated node, in whose `directory` the simulation lives.

    Raises UserError if the recording cannot be written.
    """
    procfs = directory / "proc"
    collectors: list[Collector] = [
        simulation,
        CpuCollector(procfs),
        DiskCollector(procfs),
        MemoryCollector(procfs),
        NetworkCollector(procfs),
        PressureCollector(procfs),
        SimulatedGpus(clock=clock.monotonic, nvml=simulation.nvml),
        SimulatedTraining(directory, simulation, clock),
    ]
    return Exporter(
        collectors,
        interval=INTERVAL,
        node=NODE,
        state_directory=directory,
        recording=recording,
        clock=clock,
        sinks=sinks,
        simulated=simulation.scenario.name,
        patience=PATIENCE,
    )
