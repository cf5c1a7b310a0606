"""Bytes received and sent by each network interface, from PROCFS/1/net/dev (or PROCFS/net/dev).

PROCFS/net is the network of the process that reads it: in a container, the container's own. The network of
process 1 is the node's, wherever the node's /proc is mounted.

RDMA (InfiniBand, RoCE) bypasses the kernel and is not in these counters.
"""

import os
import re
from argparse import ArgumentParser
from pathlib import Path
from typing import NamedTuple

from stepscope.exporter.sampling.collector import Collector, add_device_exclude, collector
from stepscope.exporter.sampling.sample import NODE_QUANTITIES, Sample

# Loopback is no network; the others exist only as long as a container.
NO_NETWORKS = r"lo|veth.*|cali.*|lxc.*|ifb\d+|dummy\d+"
# Their packets also pass another interface: in the metrics, but not in the node's sum. VLANs have a dot.
STACKED = re.compile(
    r"lo|(bond|team|br|virbr|vlan|docker|tunl?|wg)\d+|(br-|cilium_|cni|flannel|genev_sys|vxlan).*|.*\..*"
)
# NAME: BYTES packets errs drop fifo frame compressed multicast BYTES packets ...
LINE = re.compile(r" *(?P<name>.+): *(?P<received>\d+)(?: +\d+){7} +(?P<transmitted>\d+)(?: +\d+){7,} *")


class Interface(NamedTuple):
    """Counters of one interface, since it appeared."""

    received_bytes: int
    transmitted_bytes: int


@collector
class NetworkCollector(Collector):
    """Two counters per interface, from the kernel: 0 at boot, or when the interface appears."""

    name = "network"
    settings = ("path_procfs", "network_device_exclude")

    def __init__(self, procfs: Path, exclude: str | re.Pattern[str] = NO_NETWORKS) -> None:
        self.paths = (procfs / "1" / "net" / "dev", procfs / "net" / "dev")
        self.exclude = re.compile(exclude)
        self.received = NODE_QUANTITIES["network_receive_bytes"].family()
        self.transmitted = NODE_QUANTITIES["network_transmit_bytes"].family()
        self.families = (self.received, self.transmitted)

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        add_device_exclude(parser, cls.name, "network interfaces", NO_NETWORKS)

    def collect(self, sample: Sample) -> None:
        node, own = self.paths
        devices = read_devices(node if os.access(node, os.R_OK) else own)  # /proc may hide others' processes
        networks = {(name,): seen for name, seen in devices.items() if not self.exclude.fullmatch(name)}
        shown = self.within_limit(networks)
        self.received.publish({device: seen.received_bytes for device, seen in shown.items()})
        self.transmitted.publish({device: seen.transmitted_bytes for device, seen in shown.items()})

        counted = [seen for (name,), seen in networks.items() if not STACKED.fullmatch(name)]
        if counted:
            sample.network_receive_bytes = float(sum(seen.received_bytes for seen in counted))
            sample.network_transmit_bytes = float(sum(seen.transmitted_bytes for seen in counted))


def read_devices(path: Path) -> dict[str, Interface]:
    """Returns every network interface by its name.

    Raises OSError if the file cannot be read, ValueError if a line is not understood.
    """
    devices: dict[str, Interface] = {}
    text = path.read_text(errors="surrogateescape").rstrip("\n")
    for line in text.split("\n")[2:]:  # after two headings; a name may have other ends of lines
        match = LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{path}: {line!r} is not a line of counters")
        devices[match["name"]] = Interface(int(match["received"]), int(match["transmitted"]))
    return devices
