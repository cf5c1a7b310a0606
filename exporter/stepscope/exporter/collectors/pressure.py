"""The time in which some task waited for CPU, I/O or memory, from PROCFS/pressure/{cpu,io,memory}.

The kernel's pressure stall information (Documentation/accounting/psi.rst): the line "some" counts the
microseconds in which at least one task waited. The metric has node_exporter's name, with our prefix.
"""

from pathlib import Path

from stepscope.exporter.processes.cgroup import RESOURCES, read_waiting_seconds
from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.families import FamilyTable
from stepscope.exporter.sampling.sample import Sample

METRICS = """
counter stepscope_pressure_waiting_seconds_total{resource}
    Time in which at least one task waited for the resource, since boot.
"""


@collector
class PressureCollector(Collector):
    """One counter per resource. A kernel without pressure stall information has none, which is no failure."""

    name = "pressure"
    settings = ("path_procfs",)

    def __init__(self, procfs: Path) -> None:
        self.directory = procfs / "pressure"
        (self.waiting,) = self.families = tuple(FamilyTable(METRICS).values())

    def collect(self, sample: Sample) -> None:
        waited = {resource: read_waiting_seconds(self.directory / resource) for resource in RESOURCES}
        self.waiting.publish({(name,): seconds for name, seconds in waited.items() if seconds is not None})
