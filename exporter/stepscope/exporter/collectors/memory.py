"""The host's memory and swap, from PROCFS/meminfo.

Used memory is total - available, not total - free: the kernel gives the page cache that a data loader
fills to programs that need memory.
"""

import re
from pathlib import Path

from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.sample import NODE_QUANTITIES, Sample

LINE = re.compile(r"^(\w+): +(\d+)", re.MULTILINE)  # MemAvailable:   792723456 kB
KIB = 1024


@collector
class MemoryCollector(Collector):
    """Publishes three gauges in bytes."""

    name = "memory"
    settings = ("path_procfs",)

    def __init__(self, procfs: Path) -> None:
        self.path = procfs / "meminfo"
        self.used = NODE_QUANTITIES["memory_used_bytes"].family()
        self.total = NODE_QUANTITIES["memory_total_bytes"].family()
        self.swap_used = NODE_QUANTITIES["swap_used_bytes"].family()
        self.families = (self.used, self.total, self.swap_used)

    def collect(self, sample: Sample) -> None:
        found = {name: float(number) * KIB for name, number in LINE.findall(self.path.read_text())}
        try:
            total, used = found["MemTotal"], found["MemTotal"] - found["MemAvailable"]
            swap_used = found["SwapTotal"] - found["SwapFree"]
        except KeyError as missing:
            raise ValueError(f"{self.path}: no line {missing.args[0]}") from None
        sample.memory_total_bytes, sample.memory_used_bytes, sample.swap_used_bytes = total, used, swap_used
        self.total.publish({(): total})
        self.used.publish({(): used})
        self.swap_used.publish({(): swap_used})
