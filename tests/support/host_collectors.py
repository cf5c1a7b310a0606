"""The collectors of a host made of files."""

from pathlib import Path

from stepscope.exporter.collectors.cpu import CpuCollector
from stepscope.exporter.collectors.disk import DiskCollector
from stepscope.exporter.collectors.infiniband import InfinibandCollector
from stepscope.exporter.collectors.memory import MemoryCollector
from stepscope.exporter.collectors.network import NetworkCollector
from stepscope.exporter.collectors.pressure import PressureCollector
from stepscope.exporter.sampling.collector import Collector


def host_collectors(procfs: Path) -> list[Collector]:
    """Returns the collectors that read /proc, and one that finds no InfiniBand."""
    return [
        InfinibandCollector(procfs / "no-sysfs"),
        *(
            kind(procfs)
            for kind in (CpuCollector, DiskCollector, MemoryCollector, NetworkCollector, PressureCollector)
        ),
    ]
