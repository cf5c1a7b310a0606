"""Files of /proc that are missing, or that no kernel writes: the collector fails, and names the file."""

from collections.abc import Callable
from math import isnan
from pathlib import Path

import pytest
from stepscope.exporter.collectors.cpu import CpuCollector
from stepscope.exporter.collectors.disk import DiskCollector
from stepscope.exporter.collectors.memory import MemoryCollector
from stepscope.exporter.collectors.network import NetworkCollector
from stepscope.exporter.collectors.pressure import PressureCollector
from stepscope.exporter.sampling.collector import Collector
from stepscope.exporter.sampling.sample import Sample

Kind = Callable[[Path], Collector]
INTERFACES = "Inter-|\n face |\n"
GARBAGE: dict[tuple[Kind, str], tuple[str, ...]] = {
    (CpuCollector, "stat"): (
        "",
        "garbage\n",
        "cpu  1 2 3 4 5 6 7 8 9 10\nintr 1\n",
        "cpu0 1 2 3 4 5\n",
        "cpu0 1 2 3 4 5 6 7 eight 9 10\n",
        "cpu0 1 2 3 4 5 6 7 8 9 10\ncpu1 1 2 3\n",
        "cpu0 1 2 3 4 5 6 7 8 9 10\ncpu1 1 2 3 4 5 6 7 8 9 10 11\ncpu2 1 2 3 4 5 6 7 8 9\n",
        "cpu0 \xff\xfe 2 3 4 5 6 7 8 9 10\n",
    ),
    (DiskCollector, "diskstats"): (
        "garbage\n",
        "8 0 sda 1 2 3 4 5 6 7 8 9 10\n",
        "8 0 sda" + " x" * 15 + "\n",
    ),
    (MemoryCollector, "meminfo"): (
        "",
        "garbage\n",
        "MemTotal: many kB\n",
        "MemFree: 1 kB\nMemAvailable: 1 kB\n",
    ),
    (NetworkCollector, "net/dev"): (
        f"{INTERFACES}garbage\n",
        f"{INTERFACES}eth0: 1 2 3\n",
        f"{INTERFACES}eth0: {'x ' * 16}\n",
    ),
    (PressureCollector, "pressure/memory"): (
        "",
        "garbage\n",
        "full avg10=0.00 total=5\n",
        "some avg10=0.00\n",
        "some total=-5\n",
    ),
}


@pytest.mark.parametrize(
    ("kind", "file", "text"), [(*of_kind, text) for of_kind, texts in GARBAGE.items() for text in texts]
)
def test_garbage_is_a_failure_that_names_the_file(procfs: Path, kind: Kind, file: str, text: str) -> None:
    (procfs / file).write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=str(procfs / file)):
        kind(procfs).collect(Sample(time=0.0))


@pytest.mark.parametrize(("kind", "file"), [each for each in GARBAGE if each[0] is not PressureCollector])
def test_a_missing_file_is_named_and_the_machines_own_is_not_read(
    procfs: Path, kind: Kind, file: str
) -> None:
    (procfs / file).unlink()
    sample = Sample(time=0.0)
    with pytest.raises(FileNotFoundError, match=str(procfs / file)):
        kind(procfs).collect(sample)
    assert isnan(sample.memory_used_bytes)
