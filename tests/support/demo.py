"""Simulated runs for tests: served, written, or only moved on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.commands.demo import simulated_directory
from stepscope.demo.clock import SimulatedClock
from stepscope.demo.node import INTERVAL, make_exporter
from stepscope.demo.scenarios import all_scenarios
from stepscope.demo.simulation import Simulation
from stepscope.exporter.exporter import Exporter
from stepscope.exporter.sampling.profiles import Profile
from stepscope.exporter.sampling.sample import Sample

from tests.support.exporter_process import ANY_PORT, ExporterProcess

START = 1_700_000_040.0


class DemoProcess(ExporterProcess):
    """`stepscope demo FLAGS`; entering the context waits until it is ready."""

    def __init__(self, *flags: object, listen: str = ANY_PORT) -> None:
        super().__init__(*flags, listen=listen)
        self.command[self.command.index("exporter")] = "demo"


class KeepingSimulation(Simulation):
    """Keeps the samples that it begins to fill; the other collectors fill the rest."""

    def __init__(self, *of_simulation: Any) -> None:
        super().__init__(*of_simulation)
        self.samples: list[Sample] = []

    def collect(self, sample: Sample) -> None:
        self.samples.append(sample)
        super().collect(sample)


class Node:
    """A simulated node that takes a sample when it is told to."""

    def __init__(
        self,
        directory: Path,
        scenario: str,
        seed: int,
        duration: float | None,
        speed: float,
        run: str,
        profile: Profile,
    ) -> None:
        self.directory = directory
        self.clock = SimulatedClock(START, speed)
        self.simulation = KeepingSimulation(
            all_scenarios()[scenario](), seed, run, START, duration, directory
        )
        self.samples = self.simulation.samples
        self.exporter: Exporter = make_exporter(self.simulation, self.clock, directory, profile=profile)

    def go(self, seconds: float) -> Node:
        for _ in range(round(seconds / INTERVAL)):
            self.exporter.tick()
            self.clock.advance(INTERVAL)
        return self


@contextmanager
def simulated(
    scenario: str,
    seed: int = 0,
    duration: float | None = None,
    speed: float = 1.0,
    run: str = "simulated",
    profile: Profile = "default",
) -> Iterator[Node]:
    with simulated_directory() as directory:
        node = Node(directory, scenario, seed, duration, speed, run, profile)
        try:
            yield node
        finally:
            node.exporter.close()
