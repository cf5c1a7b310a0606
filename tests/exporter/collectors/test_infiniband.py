"""The InfiniBand collector on a tree of /sys files."""

from pathlib import Path

import pytest
from stepscope.exporter.collectors.infiniband import InfinibandCollector
from stepscope.exporter.sampling.sample import Sample

from tests.support.descriptors import no_descriptors


class Ports:
    """A node with two ports, the second of which was never connected."""

    def __init__(self, sysfs: Path) -> None:
        self.now = 0.0
        self.root = sysfs / "class" / "infiniband"
        self.collector = InfinibandCollector(sysfs, lambda: self.now)

    def write(self, device: str, **files: object) -> None:
        for name, text in files.items():
            file = self.root / device / "ports" / "1" / name.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

    def tick(self, after: float = 10.0) -> dict[str, dict[tuple[str, ...], float]]:
        self.now += after
        self.collector.collect(Sample(time=0.0))
        return {
            family.name.removeprefix("stepscope_infiniband_"): dict(family.samples)
            for family in self.collector.families
            if family.samples
        }


@pytest.fixture
def ports(tmp_path: Path) -> Ports:
    ports = Ports(tmp_path)
    ports.write(
        "mlx5_0",
        state="4: ACTIVE",
        counters__port_rcv_data=250,
        counters__port_xmit_data=1000,
        counters__port_xmit_wait=17,
        counters__link_downed=2,
        counters__symbol_error=3,
        hw_counters__out_of_sequence=5,
    )
    ports.write("mlx5_1", state="1: DOWN", counters__port_rcv_data=0, counters__symbol_error="N/A (no PMA)")
    return ports


def test_each_port_has_its_state_bytes_waits_and_errors(ports: Ports) -> None:
    first = ("mlx5_0", "1")
    assert ports.tick() == {
        "port_up": {first: 1, ("mlx5_1", "1"): 0},
        "receive_bytes_total": {first: 1000, ("mlx5_1", "1"): 0},
        "transmit_bytes_total": {first: 4000},
        "transmit_wait_ticks_total": {first: 17},
        "link_downed_total": {first: 2},
        "errors_total": {(*first, "symbol_error"): 3, (*first, "out_of_sequence"): 5},
    }


def test_the_ports_are_read_every_ten_seconds(ports: Ports) -> None:
    ports.tick()
    ports.write("mlx5_0", state="1: DOWN", counters__link_downed=3)
    for _ in range(19):
        assert ports.tick(0.5)["link_downed_total"]["mlx5_0", "1"] == 2
    after = ports.tick(0.5)
    assert after["link_downed_total"]["mlx5_0", "1"] == 3
    assert after["port_up"]["mlx5_0", "1"] == 0


def test_a_counter_that_cannot_be_read_for_a_moment_is_read_again(ports: Ports) -> None:
    assert ("mlx5_1", "1", "symbol_error") not in ports.tick()["errors_total"]
    ports.write("mlx5_1", counters__symbol_error=8)
    assert ports.tick()["errors_total"]["mlx5_1", "1", "symbol_error"] == 8


@pytest.mark.parametrize("file", ["state", "port_rcv_data"])
def test_no_port_is_down_because_too_many_files_are_open(
    ports: Ports, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    before = ports.tick()
    with monkeypatch.context() as patched:
        no_descriptors(patched, only=file)
        with pytest.raises(OSError, match="Too many open files"):
            ports.tick()
    assert ports.tick(after=0.5) == before


def test_a_node_without_such_a_device_publishes_nothing(tmp_path: Path) -> None:
    assert Ports(tmp_path).tick() == {}
