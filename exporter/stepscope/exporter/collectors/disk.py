"""Bytes and operations of each disk, and the time it was busy, from PROCFS/diskstats."""

import re
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from stepscope.exporter.sampling.collector import Collector, add_device_exclude, collector
from stepscope.exporter.sampling.families import Family
from stepscope.exporter.sampling.sample import NODE_QUANTITIES, Sample

SECTOR_BYTES = 512  # the unit of diskstats, whatever the disk's own sectors are
MILLISECONDS = 1e3  # in a second
FIELDS = 14  # of a line, since Linux 2.6; later kernels append more

NO_DISKS = r"(z?ram|loop|fd|sr)\d+"
# Made of other disks, which count the same bytes: in the metrics, but not in the node's sum.
STACKED = re.compile(r"(dm-|md|bcache|drbd|zd)\d+")
# A way to a disk that has several controllers: it counts, and with it, in newer kernels, the disk nvme0n1.
NVME_PATH = re.compile(r"(nvme\d+)c\d+(n\d+)")
PARTITION = re.compile(r"(?P<disk>.*\d)p\d+|(?P<letters>.*[a-z])\d+")  # nvme0n1p2, sda1


class Disk(NamedTuple):
    """Counters of one device since boot."""

    read_bytes: int
    written_bytes: int
    io_seconds: float
    reads: int = 0  # completed operations
    writes: int = 0


@collector
class DiskCollector(Collector):
    """Counters per whole device, without partitions."""

    name = "disk"
    settings = ("path_procfs", "disk_device_exclude")

    def __init__(self, procfs: Path, exclude: str | re.Pattern[str] = NO_DISKS) -> None:
        self.path = procfs / "diskstats"
        self.exclude = re.compile(exclude)
        self.read = NODE_QUANTITIES["disk_read_bytes"].family()
        self.written = NODE_QUANTITIES["disk_written_bytes"].family()
        self.io_time = Family(
            "stepscope_disk_io_time_seconds_total",
            "counter",
            "Time in which the disk had at least one request in progress.",
            ("device",),
        )
        self.operations = NODE_QUANTITIES["disk_operations"].family()
        self.families = (self.read, self.written, self.io_time, self.operations)

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        add_device_exclude(parser, cls.name, "disks", NO_DISKS)

    def collect(self, sample: Sample) -> None:
        devices = read_devices(self.path)
        disks = {
            (name,): disk
            for name, disk in devices.items()
            if not self.exclude.fullmatch(name) and not _is_partition(name, devices)
        }
        shown = self.within_limit(disks)
        self.read.publish({device: disk.read_bytes for device, disk in shown.items()})
        self.written.publish({device: disk.written_bytes for device, disk in shown.items()})
        self.io_time.publish({device: disk.io_seconds for device, disk in shown.items()})
        done: dict[tuple[str, ...], float] = {(*device, "read"): disk.reads for device, disk in shown.items()}
        done |= {(*device, "write"): disk.writes for device, disk in shown.items()}
        self.operations.publish(done)

        of_paths = {"".join(path.groups()) for (name,) in disks if (path := NVME_PATH.fullmatch(name))}
        counted = [
            disk for (name,), disk in disks.items() if name not in of_paths and not STACKED.match(name)
        ]
        if counted:
            sample.disk_read_bytes = float(sum(disk.read_bytes for disk in counted))
            sample.disk_written_bytes = float(sum(disk.written_bytes for disk in counted))
            sample.disk_operations = float(sum(disk.reads + disk.writes for disk in counted))


def read_devices(path: Path) -> dict[str, Disk]:
    """Returns every block device of diskstats, with partitions, by the kernel's name.

    Raises OSError if the file cannot be read, ValueError if a line is not understood.
    """
    devices: dict[str, Disk] = {}
    for line in path.read_bytes().decode(errors="replace").splitlines():
        # major minor NAME reads merged SECTORS ms writes merged SECTORS ms queued BUSY_MS weighted_ms ...
        fields = line.split()
        if len(fields) < FIELDS:
            raise ValueError(f"{path}: {line!r} has fewer than {FIELDS} fields")
        try:
            devices[fields[2]] = Disk(
                read_bytes=int(fields[5]) * SECTOR_BYTES,
                written_bytes=int(fields[9]) * SECTOR_BYTES,
                io_seconds=int(fields[12]) / MILLISECONDS,
                reads=int(fields[3]),
                writes=int(fields[7]),
            )
        except ValueError:
            raise ValueError(f"{path}: {line!r} is not a line of counters") from None
    return devices


def _is_partition(name: str, devices: Iterable[str]) -> bool:
    """Returns whether the disk of the partition `name` is listed; some clouds have an xvda1 without xvda."""
    match = PARTITION.fullmatch(name)
    return match is not None and (match["disk"] or match["letters"]) in devices
