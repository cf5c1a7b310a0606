"""The simulated host: a /proc as Linux writes it, for the real collectors."""

import os
from collections.abc import Sequence
from pathlib import Path

from stepscope.demo.scenario import CORES

TICKS = 100  # of the kernel's clock, per second
MEMORY_KIBIBYTES = 1024 * 1024 * 1024
SWAP_KIBIBYTES = 64 * 1024 * 1024
SECTOR_BYTES = 512
NETWORK_BYTES = 2e6  # per second, each way
NET_DEV = "Inter-|   Receive  |  Transmit\n face |bytes packets |bytes packets\n"


class SimulatedHost:
    """Counters since "boot", and the files that contain them."""

    def __init__(self, procfs: Path, memory: float) -> None:
        """Writes the first files; `memory` is the used share of the host's memory."""
        self._procfs = procfs
        self._busy, self._idle, self._waiting = ([0] * CORES for _ in range(3))
        self._seconds = 0.0
        self._read_bytes = 0.0
        self._waited = {"cpu": 0.0, "io": 0.0, "memory": 0.0}  # seconds
        for folder in ("net", "pressure"):
            (procfs / folder).mkdir(parents=True, exist_ok=True)
        (procfs / "self").symlink_to(str(os.getpid()))  # it shows the processes of this PID namespace
        self.write(memory)

    def advance(
        self, seconds: float, busy: Sequence[float], waiting: Sequence[float], disk_bytes: float
    ) -> None:
        """Advances: `busy` and `waiting` are ratios per core, `disk_bytes` are read per second."""
        ticks = round(TICKS * seconds)
        for core in range(CORES):
            busy_ticks = round(ticks * busy[core])
            waiting_ticks = min(round(ticks * waiting[core]), ticks - busy_ticks)
            self._busy[core] += busy_ticks
            self._waiting[core] += waiting_ticks
            self._idle[core] += ticks - busy_ticks - waiting_ticks
        self._seconds += seconds
        self._read_bytes += disk_bytes * seconds
        self._waited["cpu"] += seconds * max(0.0, sum(busy) / CORES - 0.9) * 10
        self._waited["io"] += seconds * sum(waiting) / CORES

    def write(self, memory: float, swap: float = 0.0) -> None:
        """Writes the files; `memory` and `swap` are the used shares of the host's memory and swap space."""
        self._put("stat", self._stat())
        self._put("meminfo", _meminfo(memory, swap))
        sectors, busy = round(self._read_bytes / SECTOR_BYTES), round(1000 * self._seconds)
        self._put(
            "diskstats", f"259 0 nvme0n1 {sectors // 256} 0 {sectors} 0 0 0 0 0 0 {busy} {busy} 0 0 0 0\n"
        )
        amount = round(NETWORK_BYTES * self._seconds)
        of_network = f"{amount} {amount // 1500} 0 0 0 0 0 0"
        self._put("net/dev", f"{NET_DEV}  eth0: {of_network} {of_network}\n")
        for resource, seconds in self._waited.items():
            line = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={round(seconds * 1e6)}\n"
            self._put(f"pressure/{resource}", line)

    def _put(self, name: str, text: str) -> None:
        (self._procfs / name).write_text(text)

    def _stat(self) -> str:
        cores = zip(self._busy, self._idle, self._waiting, strict=True)
        lines = [f"cpu{core} {busy} 0 0 {idle} {io} 0 0 0 0 0" for core, (busy, idle, io) in enumerate(cores)]
        total = f"cpu  {sum(self._busy)} 0 0 {sum(self._idle)} {sum(self._waiting)} 0 0 0 0 0"
        return "\n".join([total, *lines, "btime 0", ""])


def _meminfo(used: float, swap: float) -> str:
    available = round(MEMORY_KIBIBYTES * (1 - used))
    swap_total = SWAP_KIBIBYTES if swap else 0
    values = {
        "MemTotal": MEMORY_KIBIBYTES,
        "MemFree": available // 2,
        "MemAvailable": available,
        "SwapTotal": swap_total,
        "SwapFree": round(swap_total * (1 - swap)),
    }
    return "".join(f"{name}: {kibibytes} kB\n" for name, kibibytes in values.items())
