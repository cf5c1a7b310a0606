"""The pressure collector on a host made of files, and on kernels that keep no pressure."""

import errno
import shutil
from pathlib import Path

import pytest
from stepscope.exporter.collectors.pressure import PressureCollector
from stepscope.exporter.sampling.sample import Sample


@pytest.fixture
def collector(procfs: Path) -> PressureCollector:
    return PressureCollector(procfs)


def collected(collector: PressureCollector) -> dict[tuple[str, ...], float]:
    collector.collect(Sample(time=0.0))
    return dict(collector.waiting.samples)


def test_waiting_is_the_total_of_the_line_some_in_seconds(collector: PressureCollector) -> None:
    assert collected(collector) == {("cpu",): 10.315779, ("io",): 24.204428, ("memory",): 0.0}
    assert collector.waiting.kind == "counter"


def test_a_kernel_without_pressure_gives_none_and_does_not_fail(
    collector: PressureCollector, procfs: Path
) -> None:
    shutil.rmtree(procfs / "pressure")
    assert collected(collector) == {}


def test_a_kernel_with_pressure_switched_off_gives_none_and_does_not_fail(
    collector: PressureCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bytes:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert collected(collector) == {}


def test_a_resource_that_the_kernel_lacks_is_left_out(collector: PressureCollector, procfs: Path) -> None:
    (procfs / "pressure" / "io").unlink()
    assert set(collected(collector)) == {("cpu",), ("memory",)}


def test_a_file_that_cannot_be_read_is_named(collector: PressureCollector, procfs: Path) -> None:
    (procfs / "pressure" / "cpu").unlink()
    (procfs / "pressure" / "cpu").mkdir()
    with pytest.raises(OSError, match=str(procfs / "pressure" / "cpu")):
        collected(collector)
