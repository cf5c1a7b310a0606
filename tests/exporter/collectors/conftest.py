"""A host made of files, and two GPUs of the fake NVML: what collectors are pointed at."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_nvml import FakeNvml
from tests.support.gpu_ticks import GpuTicks

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """A copy of the fixture host's /proc, to be changed at will."""
    return Path(shutil.copytree(FIXTURES / "host" / "proc", tmp_path / "proc"))


@pytest.fixture
def nvml(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "nvml", gpus=2)


@pytest.fixture
def ticks(nvml: FakeNvml) -> Iterator[GpuTicks]:
    ticks = GpuTicks(nvml.library)
    yield ticks
    ticks.collector.close()
