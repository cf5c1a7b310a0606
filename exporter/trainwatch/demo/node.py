"""The simulated node: the real exporter, with collectors that read a simulation."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trainwatch.collectors import enabled
from trainwatch.collectors.gpu import GpuCollector
from trainwatch.collectors.training import TrainingCollector
from trainwatch.demo.clock import SimulatedClock
from trainwatch.demo.ranks import AliveReader
from trainwatch.demo.simulation import Simulation
from trainwatch.exporter import command
from trainwatch.exporter.command import Exporter
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
    """The exporter of the simulated node, in whose `directory` the simulation lives.

    Raises UserError where the recording cannot be written.
    """
    arguments = _arguments(directory, recording)
    host = [kind for kind in arguments.collectors if kind.name not in ("gpu", "training")]
    collectors: list[Collector] = [
        simulation,
        *enabled(arguments, host),
        SimulatedGpus(clock=clock.monotonic, nvml=simulation.nvml),
        SimulatedTraining(directory, simulation, clock),
    ]
    return Exporter(arguments, collectors, clock, sinks, simulation.scenario.name, PATIENCE)


def _arguments(directory: Path, recording: Path | None) -> Namespace:
    """What the flags of `trainwatch exporter` would say."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    words = [f"--path.procfs={directory / 'proc'}", f"--ledger-dir={directory}", f"--node={NODE}"]
    words += [f"--sample-interval={round(1000 * INTERVAL)}ms"]
    words += [f"--recording.dir={recording}"] if recording else []
    return parser.parse_args(words)
