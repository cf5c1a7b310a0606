"""What each network interface received and sent, from PROCFS/1/net/dev (or PROCFS/net/dev) through psutil.

PROCFS/net is of the process that looks, so in a container it is the container's own network; the first
process's is the node's, wherever the node's /proc is mounted.

RDMA (InfiniBand, RoCE) passes the kernel by and is not in these counters.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path

import psutil

from trainwatch.sampling.collector import Collector, collector
from trainwatch.sampling.families import Family
from trainwatch.sampling.procfs import device_pattern, psutil_reading
from trainwatch.sampling.sample import Sample

# Loopback is no network; the others come and go with each container.
NO_NETWORKS = r"lo|veth.*|cali.*|lxc.*|ifb\d+|dummy\d+"
# Their packets pass another interface too: in the metrics, but not in the node's sum. A dot is a VLAN's.
STACKED = re.compile(r"lo|(bond|team|br|virbr|docker|tun|wg)\d+|(br-|cni|flannel|vxlan).*|.*\..*")


@collector
class NetworkCollector(Collector):
    """Two counters an interface, as the kernel has them: 0 at boot, or when the interface appears."""

    name = "network"

    def __init__(self, procfs: Path, exclude: str | re.Pattern[str] = NO_NETWORKS) -> None:
        self.procfs = procfs
        self.exclude = re.compile(exclude)
        self.received = Family(
            "trainwatch_network_receive_bytes_total",
            "counter",
            "Bytes received by the network interface.",
            ("device",),
        )
        self.transmitted = Family(
            "trainwatch_network_transmit_bytes_total",
            "counter",
            "Bytes sent by the network interface.",
            ("device",),
        )

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--collector.network.device-exclude",
            dest="network_device_exclude",
            type=device_pattern,
            default=NO_NETWORKS,
            metavar="REGEX",
            help="network interfaces to leave out, by their whole name (default: %(default)s)",
        )

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> NetworkCollector:
        return cls(Path(arguments.path_procfs), arguments.network_device_exclude)

    @property
    def families(self) -> Iterable[Family]:
        return (self.received, self.transmitted)

    def collect(self, sample: Sample) -> None:
        first = self.procfs / "1"
        seen = os.access(first / "net" / "dev", os.R_OK)  # not where /proc hides processes of others
        with psutil_reading(first if seen else self.procfs, "net/dev"):
            # A counter that starts again is Prometheus's to see, so psutil does not hide it (nowrap=False).
            devices = psutil.net_io_counters(pernic=True, nowrap=False)
        shown = {(name,): io for name, io in devices.items() if not self.exclude.fullmatch(name)}
        self.received.publish({device: io.bytes_recv for device, io in shown.items()})
        self.transmitted.publish({device: io.bytes_sent for device, io in shown.items()})

        counted = [io for (name,), io in shown.items() if not STACKED.fullmatch(name)]
        if counted:
            sample.network_received_bytes = float(sum(io.bytes_recv for io in counted))
            sample.network_transmitted_bytes = float(sum(io.bytes_sent for io in counted))
