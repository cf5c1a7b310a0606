"""The time in which some task waited for CPU, I/O or memory, from PROCFS/pressure/{cpu,io,memory}.

The kernel's pressure stall information (Documentation/accounting/psi.rst): the line "some" counts the
microseconds in which at least one task waited. The metric has node_exporter's name, with our prefix.
"""

from __future__ import annotations

import errno
from argparse import Namespace
from pathlib import Path

from trainwatch.sampling.collector import Collector, collector
from trainwatch.sampling.families import Family
from trainwatch.sampling.sample import Sample

RESOURCES = ("cpu", "io", "memory")
MICROSECONDS = 1e6  # in a second


@collector
class PressureCollector(Collector):
    """One counter per resource. A kernel without pressure stall information has none, which is no failure."""

    name = "pressure"

    def __init__(self, procfs: Path) -> None:
        self.directory = procfs / "pressure"
        self.waiting = Family(
            "trainwatch_pressure_waiting_seconds_total",
            "counter",
            "Time in which at least one task waited for the resource, since boot.",
            ("resource",),
        )
        self.families = (self.waiting,)

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> PressureCollector:
        return cls(Path(arguments.path_procfs))

    def collect(self, sample: Sample) -> None:
        waited: dict[tuple[str, ...], float] = {}
        for resource in RESOURCES:
            seconds = read_waiting_seconds(self.directory / resource)
            if seconds is not None:
                waited[(resource,)] = seconds
        self.waiting.publish(waited)


def read_waiting_seconds(path: Path) -> float | None:
    """Returns the seconds since boot in which some task waited; None if the kernel does not count them.

    Raises OSError if the file cannot be read, ValueError if it is not understood.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None  # built without CONFIG_PSI, or older than 4.20
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None  # switched off: psi=0, or CONFIG_PSI_DEFAULT_DISABLED
        raise
    # some avg10=0.99 avg60=1.21 avg300=0.55 total=10315779
    line = text.partition(b"\n")[0].decode("ascii", errors="replace")
    kind, _, rest = line.partition(" ")
    _, _, total = rest.partition("total=")
    if kind != "some" or not total.isdecimal():
        raise ValueError(f"{path}: {line!r} is not a line like 'some avg10=0.00 ... total=0'")
    return int(total) / MICROSECONDS
