"""The host's memory and swap, from PROCFS/meminfo through psutil.

Used memory is total - available, not total - free: the page cache that a data loader fills is given
back to whoever needs it. psutil knows what "available" is on kernels and in containers that lie.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import psutil

from trainwatch.sampling.collector import Collector, collector
from trainwatch.sampling.families import Family
from trainwatch.sampling.procfs import psutil_reading
from trainwatch.sampling.sample import Sample


@collector
class MemoryCollector(Collector):
    """Three gauges in bytes. Reads PROCFS/meminfo; PROCFS/vmstat is psutil's wish, its values are unused."""

    name = "memory"

    def __init__(self, procfs: Path) -> None:
        self.procfs = procfs
        self.used = Family(
            "trainwatch_memory_used_bytes",
            "gauge",
            "Memory that programs could not get without swapping: total less available.",
        )
        self.total = Family("trainwatch_memory_total_bytes", "gauge", "Memory of the host.")
        self.swap_used = Family("trainwatch_swap_used_bytes", "gauge", "Swap space in use.")

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> MemoryCollector:
        return cls(Path(arguments.path_procfs))

    @property
    def families(self) -> Iterable[Family]:
        return (self.used, self.total, self.swap_used)

    def collect(self, sample: Sample) -> None:
        with psutil_reading(self.procfs, "meminfo"):
            memory = psutil.virtual_memory()
            swap = psutil.swap_memory()
        sample.memory_total_bytes = float(memory.total)
        sample.memory_used_bytes = float(memory.total - memory.available)
        sample.swap_used_bytes = float(swap.used)
        self.total.publish({(): sample.memory_total_bytes})
        self.used.publish({(): sample.memory_used_bytes})
        self.swap_used.publish({(): sample.swap_used_bytes})
