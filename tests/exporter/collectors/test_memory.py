"""The memory collector on a host made of files."""

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
