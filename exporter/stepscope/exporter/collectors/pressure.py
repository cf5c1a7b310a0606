"""The time in which some task waited for CPU, I/O or memory, from PROCFS/pressure/{cpu,io,memory}.

The kernel's pressure stall information (Documentation/accounting/psi.rst): the line "some" counts the
microseconds in which at least one task waited. The metric has node_exporter's name, with our prefix.
"""

from pathlib import Path

from stepscope.exporter.processes.pressure import RESOURCES, read_waiting_seconds
from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.families import Family
from stepscope.exporter.sampling.sample import Sample


@collector
class PressureCollector(Collector):
    """One counter per resource. A kernel without pressure stall information has none, which is no failure."""

    name = "pressure"
    settings = ("path_procfs",)

    def __init__(self, procfs: Path) -> None:
        self.directory = procfs / "pressure"
        self.waiting = Family(
            "stepscope_pressure_waiting_seconds_total",
            "counter",
            "Time in which at least one task waited for the resource, since boot.",
            ("resource",),
        )
        self.families = (self.waiting,)

    def collect(self, sample: Sample) -> None:
        waited: dict[tuple[str, ...], float] = {}
        for resource in RESOURCES:
            seconds = read_waiting_seconds(self.directory / resource)
            if seconds is not None:
                waited[(resource,)] = seconds
        self.waiting.publish(waited)
