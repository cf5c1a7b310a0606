"""The base class of collectors: each reads one source at each tick of the sampler."""

import re
from abc import ABC, abstractmethod
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from stepscope.exporter.sampling.apart import Apart
from stepscope.exporter.sampling.families import Family
from stepscope.exporter.sampling.kept_counters import KeptCounters
from stepscope.exporter.sampling.limits import Choice, ReachedLimits
from stepscope.exporter.sampling.sample import Sample

Device = TypeVar("Device", bound=Hashable)
Values = TypeVar("Values")


class SourceAbsentError(OSError):
    """The node does not have the collector's source, such as a GPU: logged as information, not as warning."""


class Collector(ABC):
    """Reads one source. `@collector` above the class adds it to the exporter.

    `name` becomes the flag `--[no-]collector.NAME` and the label of `stepscope_collector_success`.
    """

    name: ClassVar[str]
    after: ClassVar[Collection[str]] = ()  # collectors whose part of the sample it reads: they go first
    settings: ClassVar[Sequence[str]] = ()  # flags whose values `__init__` takes, in its order
    families: Sequence[Family] = ()  # that it publishes, in the order in which they are written
    reached = ReachedLimits()  # the exporter replaces it by its own
    kept: KeptCounters | None = None  # counters that continue when the exporter restarts

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        """Adds the collector's own flags."""

    def within_limit(self, devices: Mapping[Device, Values]) -> Mapping[Device, Values]:
        """Returns the devices to publish: all, or the same `--limit.devices` of them at each tick."""
        kept: list[Device]
        kept, left_out = self._devices.of(dict.fromkeys(devices, True), self.reached.limits.devices)
        self.reached.report("devices", {"": len(left_out)} if left_out else {}, self.name)
        return {device: devices[device] for device in kept} if left_out else devices

    @cached_property
    def _devices(self) -> Choice[Any]:
        return Choice()

    @cached_property
    def apart(self) -> Apart:
        """Returns what keeps an error about one run, process or device from failing `collect`."""
        return Apart(f"collector {self.name}")

    @abstractmethod
    def collect(self, sample: Sample) -> None:
        """Reads the source, publishes to `families` and fills this collector's part of `sample`.

        Raises on failure. The registry then clears every family of the collector, so that no stale value is
        published, and sets its `stepscope_collector_success` to 0. Other collectors continue. With `apart`,
        an error about one run, process or device costs only that.
        """

    def close(self) -> None:
        """Releases the collector's resources. Called once, when the exporter stops."""


C = TypeVar("C", bound="type[Collector]")

marked_collectors: list[type[Collector]] = []


def collector(marked: C) -> C:
    """Registers a class as a collector of the exporter; its name is the module's."""
    marked_collectors.append(marked)
    return marked


def add_device_exclude(parser: ArgumentParser, name: str, devices: str, default: str) -> None:
    """Adds the flag `--collector.NAME.device-exclude`."""
    parser.add_argument(
        f"--collector.{name}.device-exclude",
        dest=f"{name}_device_exclude",
        type=_device_pattern,
        default=default,
        metavar="REGEX",
        help=f"{devices} to leave out, by their whole name (default: %(default)s)",
    )


def _device_pattern(text: str) -> re.Pattern[str]:
    """Compiles a regular expression for whole device names."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
