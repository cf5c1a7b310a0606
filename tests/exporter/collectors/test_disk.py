"""The disk collector on a host made of files."""

from argparse import ArgumentParser
from math import isnan
from pathlib import Path

import pytest
from stepscope.exporter.collectors.disk import DiskCollector
from stepscope.exporter.sampling.sample import Sample

SECTOR = 512


def collector_of(procfs: Path, *flags: str) -> DiskCollector:
    parser = ArgumentParser()
    DiskCollector.add_arguments(parser)
    return DiskCollector(procfs, parser.parse_args(flags).disk_device_exclude)


def collected(collector: DiskCollector) -> Sample:
    sample = Sample(time=0.0)
    collector.collect(sample)
    return sample


def devices(collector: DiskCollector) -> set[str]:
    return {device for (device,) in collector.read.samples}


def test_counters_are_bytes_of_512_byte_sectors_and_seconds(procfs: Path) -> None:
    collector = collector_of(procfs)
    collected(collector)
    assert collector.read.samples[("nvme0n1",)] == 4_255_154 * SECTOR
    assert collector.written.samples[("nvme0n1",)] == 5_572_136 * SECTOR
    assert collector.io_time.samples[("nvme0n1",)] == 33.668
    assert collector.io_time.samples[("sda",)] == 1.25
    assert [family.name for family in collector.families] == [
        "stepscope_disk_read_bytes_total",
        "stepscope_disk_written_bytes_total",
        "stepscope_disk_io_time_seconds_total",
        "stepscope_disk_operations_total",
    ]
    assert all(family.samples.keys() == collector.read.samples.keys() for family in collector.families[:3])
    of_disk = {how: n for (disk, how), n in collector.operations.samples.items() if disk == "nvme0n1"}
    assert of_disk == {"read": 88357, "write": 28431}


def test_partitions_and_devices_that_are_no_disks_are_left_out(procfs: Path) -> None:
    collector = collector_of(procfs)
    collected(collector)
    assert devices(collector) == {"nvme0n1", "sda", "sdaa", "xvdb1", "dm-0", "md127"}


def test_the_nodes_sum_counts_each_byte_once_where_disks_are_stacked(procfs: Path) -> None:
    sample = collected(collector_of(procfs))
    assert sample.disk_read_bytes == (4_255_154 + 2000 + 8 + 56) * SECTOR
    assert sample.disk_written_bytes == (5_572_136 + 400) * SECTOR


@pytest.mark.parametrize("of_disk", ["0 0 0 0 0 0 0 0 0 0 0", "30 0 300 1 20 0 200 1 0 1 1"])
def test_an_nvme_disk_with_several_controllers_counts_once_whatever_the_kernel_counts(
    tmp_path: Path, of_disk: str
) -> None:
    ways = "0 0 nvme0c0n1 10 0 100 1 5 0 50 1 0 1 1\n0 0 nvme0c1n1 20 0 200 1 15 0 150 1 0 1 1\n"
    (tmp_path / "diskstats").write_text(f"{ways}259 0 nvme0n1 {of_disk}\n")
    sample = collected(collector_of(tmp_path))
    assert (sample.disk_read_bytes, sample.disk_written_bytes) == (300 * SECTOR, 200 * SECTOR)
    assert sample.disk_operations == 50


def test_a_flag_says_which_devices_to_leave_out(procfs: Path) -> None:
    collector = collector_of(procfs, "--collector.disk.device-exclude", "sd.*|dm-0")
    collected(collector)
    assert devices(collector) == {"loop0", "ram0", "zram0", "sr0", "nvme0n1", "xvdb1", "md127"}


def test_a_flag_that_is_no_regular_expression_is_refused(
    procfs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        collector_of(procfs, "--collector.disk.device-exclude", "(")
    assert "'(' is not a regular expression" in capsys.readouterr().err


def test_a_disk_that_was_pulled_leaves_no_sample_behind(procfs: Path) -> None:
    collector = collector_of(procfs)
    collected(collector)
    diskstats = procfs / "diskstats"
    lines = diskstats.read_text().splitlines(keepends=True)
    diskstats.write_text("".join(line for line in lines if " sda" not in line))
    collected(collector)
    assert devices(collector) == {"nvme0n1", "xvdb1", "dm-0", "md127"}


def test_a_host_without_disks_publishes_none(procfs: Path) -> None:
    (procfs / "diskstats").write_text("")
    collector = collector_of(procfs)
    sample = collected(collector)
    assert devices(collector) == set()
    assert isnan(sample.disk_read_bytes)
    assert isnan(sample.disk_written_bytes)
