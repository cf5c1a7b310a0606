"""Simulated runs for tests: served, written, or only moved on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.commands.demo import Written, simulated_directory
from stepscope.demo.node import INTERVAL, SimulatedClock, make_exporter
from stepscope.demo.scenarios import all_scenarios
from stepscope.demo.simulation import Simulation
from stepscope.exporter.exporter import Exporter
from stepscope.exporter.sampling.profiles import Profile
from stepscope.exporter.sampling.sample import Sample
from stepscope.runs.recording.live import LiveRecording

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


class EndingRecording(LiveRecording):
    """A recording that may end before the sampling does."""

    ended = False

    def keep(self, sample: Sample) -> None:
        if not self.ended:
            super().keep(sample)

    def catch_up(self) -> None:
        if not self.ended:
            super().catch_up()

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            super().close()


class Node:
    """A simulated node that takes a sample when it is told to, and may write a recording."""

    def __init__(
        self,
        directory: Path,
        scenario: str,
        seed: int,
        duration: float | None,
        speed: float,
        run: str,
        profile: Profile,
        recording: Path | None,
    ) -> None:
        self.directory = directory
        self.clock = SimulatedClock(START, speed)
        played = all_scenarios()[scenario]()
        self._written = Written(played, seed, run, START, recording)
        self._recording = EndingRecording(recording) if recording else None
        self.simulation = KeepingSimulation(played, seed, run, START, duration, directory)
        self.samples = self.simulation.samples
        self.exporter: Exporter = make_exporter(
            self.simulation, self.clock, directory, self._recording, profile=profile
        )

    def go(self, seconds: float) -> "Node":
        for _ in range(round(seconds / INTERVAL)):
            self.exporter.tick()
            self.clock.advance(INTERVAL)
        self.exporter.catch_up()
        return self

    def end_recording(self) -> None:
        """Ends the recording with the last sample, which was that of the run's end."""
        assert self._recording
        self._recording.close()
        self._written.end(self.samples[-1].time, self.simulation.ended_well)


@contextmanager
def simulated(
    scenario: str,
    seed: int = 0,
    duration: float | None = None,
    speed: float = 1.0,
    run: str = "simulated",
    profile: Profile = "default",
    recording: Path | None = None,
) -> Iterator[Node]:
    with simulated_directory() as directory:
        node = Node(directory, scenario, seed, duration, speed, run, profile, recording)
        try:
            yield node
        finally:
            node.exporter.close()
