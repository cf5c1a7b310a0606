"""Bytes, waits, errors and state of each InfiniBand and RoCE port, from SYSFS/class/infiniband.

A read of a counter asks the device's firmware, so the ports are read every ten seconds. Meanings:
Documentation/ABI/stable/sysfs-class-infiniband.
"""

from collections.abc import Callable, Iterator, Mapping
from math import isnan
from pathlib import Path
from time import monotonic

from stepscope.exporter.processes.cgroup import number_in, text_of
from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.families import FamilyTable, LabelValues
from stepscope.exporter.sampling.sample import Sample

SECONDS = 10.0  # between two readings
WORD = 4  # bytes: the unit of port_rcv_data and port_xmit_data
METRICS = """
gauge stepscope_infiniband_port_up{device,port}
    Whether the port is active.
counter stepscope_infiniband_receive_bytes_total{device,port}
    Bytes received by the port.
counter stepscope_infiniband_transmit_bytes_total{device,port}
    Bytes sent by the port.
counter stepscope_infiniband_transmit_wait_ticks_total{device,port}
    Ticks of the device in which the port had data to send, but no credit.
counter stepscope_infiniband_link_downed_total{device,port}
    Times that the link went down.
counter stepscope_infiniband_errors_total{device,port,kind}
    Errors of the port, by the name of the kernel's counter.
"""
# By family: the file that has the counter, and its unit.
COUNTERS = {
    "infiniband_receive_bytes_total": ("counters/port_rcv_data", WORD),
    "infiniband_transmit_bytes_total": ("counters/port_xmit_data", WORD),
    "infiniband_transmit_wait_ticks_total": ("counters/port_xmit_wait", 1),
    "infiniband_link_downed_total": ("counters/link_downed", 1),
}
ACTIVE = "4:"  # the state is "4: ACTIVE"
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
        self._families = FamilyTable(METRICS)
        self.families = tuple(self._families.values())

    def collect(self, sample: Sample) -> None:
        now = self._clock()
        if now < self._due:
            return
        folders = sorted(self.directory.glob("*/ports/*"))
        found: dict[LabelValues, Path] = {(folder.parts[-3], folder.name): folder for folder in folders}
        ports = self.within_limit(found)
        states = {port: text_of(folder / "state") or "" for port, folder in ports.items()}  # "": it is gone
        up = {port: float(state.startswith(ACTIVE)) for port, state in states.items()}
        self._families["infiniband_port_up"].publish(up)
        for name, (file, unit) in COUNTERS.items():
            counts = {port: unit * count for port, count in self._counts(ports, file)}
            self._families[name].publish(counts)
        found_errors = {file.partition("/")[2]: self._counts(ports, file) for file in ERRORS}
        errors = {(*port, kind): count for kind, of in found_errors.items() for port, count in of}
        self._families["infiniband_errors_total"].publish(errors)
        self._due = now + SECONDS

    def _counts(self, ports: Mapping[LabelValues, Path], file: str) -> Iterator[tuple[LabelValues, float]]:
        for port, folder in ports.items():
            count = number_in(text_of(folder / file) or "")
            if not isnan(count):  # it has none, or "N/A (no PMA)", or is being reset
                yield port, count
