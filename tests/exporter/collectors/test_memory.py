"""The memory collector on a host made of files."""

from math import isnan
from pathlib import Path

import pytest
from stepscope.exporter.collectors.memory import MemoryCollector
from stepscope.exporter.sampling.sample import Sample

KIB = 1024


@pytest.fixture
def collector(procfs: Path) -> MemoryCollector:
    return MemoryCollector(procfs)


def test_used_memory_is_total_less_available_and_not_less_free(collector: MemoryCollector) -> None:
    sample = Sample(time=0.0)
    collector.collect(sample)
    assert sample.memory_total_bytes == 1_056_763_904 * KIB
    assert sample.memory_used_bytes == (1_056_763_904 - 792_723_456) * KIB
    assert sample.swap_used_bytes == (8_388_604 - 8_126_460) * KIB
    assert {family.name: dict(family.samples) for family in collector.families} == {
        "stepscope_memory_used_bytes": {(): sample.memory_used_bytes},
        "stepscope_memory_total_bytes": {(): sample.memory_total_bytes},
        "stepscope_swap_used_bytes": {(): sample.swap_used_bytes},
    }


def test_a_host_without_swap_uses_none(collector: MemoryCollector, procfs: Path) -> None:
    meminfo = procfs / "meminfo"
    meminfo.write_text(
        meminfo.read_text().replace("8388604 kB", "0 kB").replace("SwapFree:        8126460", "SwapFree: 0")
    )
    sample = Sample(time=0.0)
    collector.collect(sample)
    assert sample.swap_used_bytes == 0.0


def test_a_missing_file_is_named_and_fills_nothing(collector: MemoryCollector, procfs: Path) -> None:
    (procfs / "meminfo").unlink()
    sample = Sample(time=0.0)
    with pytest.raises(FileNotFoundError, match=str(procfs / "meminfo")):
        collector.collect(sample)
    assert isnan(sample.memory_used_bytes)


@pytest.mark.parametrize(
    "text", ["", "garbage\n", "MemTotal: many kB\n", "MemFree: 1 kB\nMemAvailable: 1 kB\n"]
)
def test_garbage_is_a_failure_that_names_the_file(
    collector: MemoryCollector, procfs: Path, text: str
) -> None:
    (procfs / "meminfo").write_text(text)
    with pytest.raises(ValueError, match=str(procfs / "meminfo")):
        collector.collect(Sample(time=0.0))
