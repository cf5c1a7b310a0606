"""The collectors of a host made of files."""

from __future__ import annotations

from pathlib import Path

from trainwatch.collectors.cpu import CpuCollector
from trainwatch.collectors.disk import DiskCollector
from trainwatch.collectors.memory import MemoryCollector
from trainwatch.collectors.network import NetworkCollector
from trainwatch.collectors.pressure import PressureCollector
from trainwatch.sampling.collector import Collector


def host_collectors(procfs: Path) -> list[Collector]:
    """Returns the collectors that read /proc, in the order of their names."""
    return [
        kind(procfs)
        for kind in (CpuCollector, DiskCollector, MemoryCollector, NetworkCollector, PressureCollector)
    ]
