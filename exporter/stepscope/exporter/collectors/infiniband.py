"""Bytes, waits, errors and state of each InfiniBand and RoCE port, from SYSFS/class/infiniband.

A read of a counter asks the device's firmware, so the ports are read every ten seconds. Meanings:
Documentation/ABI/stable/sysfs-class-infiniband.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic

from stepscope.common.errors import raise_if_exhausted
from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.families import Family, LabelValues
from stepscope.exporter.sampling.sample import Sample

SECONDS = 10.0  # between two readings
WORD = 4  # bytes: the unit of port_rcv_data and port_xmit_data
ACTIVE = "4:"  # the state is "4: ACTIVE"
PORT = ("device", "port")
# By the file that has them, InfiniBand's in counters/ and RoCE's in hw_counters/.
ERRORS = (
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/roce_adp_retrans",
)


@collector
class InfinibandCollector(Collector):
    """A node without such a device publishes nothing, which is no failure."""

    name = "infiniband"
    settings = ("path_sysfs",)

    def __init__(self, sysfs: Path, clock: Callable[[], float] = monotonic) -> None:
        self.directory = sysfs / "class" / "infiniband"
        self._clock = clock
        self._due = 0.0
        self.up = Family("stepscope_infiniband_port_up", "gauge", "Whether the port is active.", PORT)
        self.counters = {
            "counters/port_rcv_data": (_counter("receive_bytes", "Bytes received by the port."), WORD),
            "counters/port_xmit_data": (_counter("transmit_bytes", "Bytes sent by the port."), WORD),
            "counters/port_xmit_wait": (
                _counter(
                    "transmit_wait_ticks",
                    "Ticks of the device in which the port had data to send, but no credit.",
                ),
                1,
            ),
            "counters/link_downed": (_counter("link_downed", "Times that the link went down."), 1),
        }
        self.errors = Family(
            "stepscope_infiniband_errors_total",
            "counter",
            "Errors of the port, by the name of the kernel's counter.",
            (*PORT, "kind"),
        )
        self.families = (self.up, *(family for family, _unit in self.counters.values()), self.errors)

    def collect(self, sample: Sample) -> None:
        now = self._clock()
        if now < self._due:
            return
        folders = sorted(self.directory.glob("*/ports/*"))
        found: dict[LabelValues, Path] = {(folder.parts[-3], folder.name): folder for folder in folders}
        ports = self.within_limit(found)
        self.up.publish({port: float(_is_up(folder)) for port, folder in ports.items()})
        for file, (family, unit) in self.counters.items():
            family.publish({port: unit * count for port, count in self._counts(ports, file)})
        self.errors.publish(
            {
                (*port, file.partition("/")[2]): count
                for file in ERRORS
                for port, count in self._counts(ports, file)
            }
        )
        self._due = now + SECONDS

    def _counts(self, ports: Mapping[LabelValues, Path], file: str) -> Iterator[tuple[LabelValues, float]]:
        for port, folder in ports.items():
            try:
                yield port, float(int((folder / file).read_text()))
            except (OSError, ValueError) as error:  # it has none, or "N/A (no PMA)", or is being reset
                raise_if_exhausted(error)


def _counter(name: str, help: str) -> Family:
    return Family(f"stepscope_infiniband_{name}_total", "counter", help, PORT)


def _is_up(folder: Path) -> bool:
    try:
        return (folder / "state").read_text().startswith(ACTIVE)
    except OSError as error:  # the device is gone
        raise_if_exhausted(error)
        return False
