"""The network collector on a host made of files."""

from argparse import ArgumentParser
from math import isnan
from pathlib import Path

import pytest
from stepscope.exporter.collectors.network import NetworkCollector
from stepscope.exporter.sampling.limits import ReachedLimits
from stepscope.exporter.sampling.sample import Sample


def collector_of(procfs: Path, *flags: str) -> NetworkCollector:
    parser = ArgumentParser()
    NetworkCollector.add_arguments(parser)
    return NetworkCollector(procfs, parser.parse_args(flags).network_device_exclude)


def collected(collector: NetworkCollector) -> Sample:
    sample = Sample(time=0.0)
    collector.collect(sample)
    return sample


def test_each_interface_has_its_exact_bytes(procfs: Path) -> None:
    collector = collector_of(procfs)
    collected(collector)
    received, transmitted = collector.families
    assert received.name == "stepscope_network_receive_bytes_total"
    assert received.samples == {
        ("eth0",): 312_507_920,
        ("eth1",): 9_007_199_254_740_993,
        ("ib0",): 4000,
        ("bond0",): 312_507_920,
        ("eth0.100",): 1000,
        ("docker0",): 7000,
    }
    assert transmitted.name == "stepscope_network_transmit_bytes_total"
    assert transmitted.samples == {
        ("eth0",): 309_224,
        ("eth1",): 1000,
        ("ib0",): 2000,
        ("bond0",): 309_224,
        ("eth0.100",): 309,
        ("docker0",): 8000,
    }


def test_the_nodes_sum_counts_each_byte_once_and_no_loopback(procfs: Path) -> None:
    """eth0's bytes appear again in bond0 and eth0.100, a container's in docker0 and veth12ab3c."""
    for flags in ((), ("--collector.network.device-exclude", "veth.*")):
        sample = collected(collector_of(procfs, *flags))
        assert sample.network_receive_bytes == float(312_507_920 + 9_007_199_254_740_993 + 4000)
        assert sample.network_transmit_bytes == 309_224 + 1000 + 2000


@pytest.mark.parametrize("name", ["tunl0", "cilium_vxlan", "cilium_host", "genev_sys_6081", "vlan100"])
def test_what_a_tunnel_or_a_vlan_carries_counts_once_in_the_nodes_sum(procfs: Path, name: str) -> None:
    with_interfaces(procfs, ["eth0"])
    alone = collected(collector_of(procfs)).network_receive_bytes
    with_interfaces(procfs, ["eth0", name])
    assert collected(collector_of(procfs)).network_receive_bytes == alone > 0


def test_a_flag_says_which_interfaces_to_leave_out(procfs: Path) -> None:
    collector = collector_of(procfs, "--collector.network.device-exclude", "eth.*|bond0|docker0|veth.*")
    collected(collector)
    assert set(collector.received.samples) == {("lo",), ("ib0",)}


def test_a_counter_that_starts_again_is_published_as_it_is(procfs: Path) -> None:
    collector = collector_of(procfs)
    collected(collector)
    devices = procfs / "net" / "dev"
    devices.write_text(devices.read_text().replace("312507920", "7"))
    collected(collector)
    assert collector.received.samples[("eth0",)] == 7


def test_a_host_with_loopback_only_publishes_nothing(procfs: Path) -> None:
    devices = procfs / "net" / "dev"
    devices.write_text("".join(devices.read_text().splitlines(keepends=True)[:3]))
    collector = collector_of(procfs)
    sample = collected(collector)
    assert all(not family.samples for family in collector.families)
    assert isnan(sample.network_receive_bytes)
    assert isnan(sample.network_transmit_bytes)


def test_in_a_container_the_network_of_the_node_is_read_not_the_containers(procfs: Path) -> None:
    node, container = procfs / "1" / "net", procfs / "net"
    node.parent.mkdir()
    container.rename(node)
    container.mkdir()
    line = "  eth0: 11 1 0 0 0 0 0 0 22 1 0 0 0 0 0 0"
    (container / "dev").write_text(f"Inter-|\n face |\n{line}\n")
    collector = collector_of(procfs)
    collected(collector)
    assert collector.received.samples["eth0",] == 312_507_920
    (node / "dev").unlink()
    collected(collector)
    assert collector.received.samples["eth0",] == 11


HEADINGS = "Inter-| Receive | Transmit\n face |bytes\n"


def with_interfaces(procfs: Path, names: list[str]) -> None:
    lines = [f"  {name}: 10 {'0 ' * 7} 20 {'0 ' * 7}" for name in names]
    (procfs / "net" / "dev").write_text(HEADINGS + "\n".join(lines) + "\n")


def test_of_ten_thousand_interfaces_the_same_512_are_published_and_all_are_counted(procfs: Path) -> None:
    collector = collector_of(procfs)
    collector.reached = ReachedLimits()
    received, _ = collector.families
    names = [f"pod{number}" for number in range(10_000)]
    with_interfaces(procfs, names)
    assert collected(collector).network_receive_bytes == 100_000
    shown = set(received.samples)
    assert len(shown) == 512
    assert collector.reached.families[1].samples == {("devices", "", "network"): 9488}
    with_interfaces(procfs, ["new0", *names[1:], "new1"])  # the first is gone: one other takes its place
    collected(collector)
    assert len(shown - set(received.samples)) == 1
    assert len(received.samples) == 512
    with_interfaces(procfs, names[:5])
    collected(collector)
    assert len(received.samples) == 5
    assert collector.reached.families[1].samples == {}


def test_a_name_with_odd_characters_costs_no_other_interface(procfs: Path) -> None:
    with_interfaces(procfs, ["eth0", "odd\x1cname", "eth1"])
    collector = collector_of(procfs)
    collected(collector)
    assert set(collector.families[0].samples) == {("eth0",), ("odd\x1cname",), ("eth1",)}
