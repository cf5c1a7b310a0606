"""A node with 192 cores and 8 GPUs, made of files and a stub of NVML, which an exporter samples."""

import http.client
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.exporter.collectors.gpu import GpuCollector
from stepscope.exporter.collectors.gpu_holders import GpuHoldersCollector
from stepscope.exporter.collectors.run_gpus import RunGpusCollector
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.exporter import Exporter

from tests.support.environment import unobserved
from tests.support.fake_nvml import FakeNvml
from tests.support.host_collectors import host_collectors

FIXTURES = Path(__file__).parents[1] / "tests" / "exporter" / "collectors" / "fixtures" / "host" / "proc"
CORES, GPUS = 192, 8
# user nice system idle iowait irq softirq steal guest guest_nice, of a machine without guests
UP_FOR_DAYS = (10**8, 1, 10**7, 10**9, 10**6, 1, 10**6, 1, 1, 1)
INTERRUPTS = 4000  # counters on the line "intr" of a node of this size; read, but not used


class BusyNode:
    """The files that an exporter reads, in `directory`. `advance` simulates half a second of work."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("cc") is None and shutil.which("gcc") is None:
            raise RuntimeError("needs a C compiler (cc or gcc) for the stub of NVML")
        self.procfs = Path(shutil.copytree(FIXTURES, directory / "proc"))
        self.nvml = FakeNvml(directory / "nvml", gpus=GPUS)
        self.ledgers = directory / "ledgers"
        self.ledgers.mkdir()
        self._random = random.Random(CORES)
        self._ticks = [[self._random.randrange(limit) for limit in UP_FOR_DAYS] for _ in range(CORES)]
        self._interrupts = " ".join(str(self._random.randrange(1000)) for _ in range(INTERRUPTS))
        self.advance()

    def advance(self) -> None:
        """Adds 50 ticks to each core, some busy, some waiting. Replaces the file as a whole."""
        for ticks in self._ticks:
            busy = self._random.randrange(46)
            ticks[0] += busy
            ticks[3] += 45 - busy
            ticks[4] += 5
        lines = [f"cpu{core} {' '.join(map(str, ticks))}\n" for core, ticks in enumerate(self._ticks)]
        total = " ".join(str(sum(column)) for column in zip(*self._ticks, strict=True))
        new = self.procfs / "stat.new"
        new.write_text(f"cpu  {total}\n{''.join(lines)}intr {self._interrupts}\nctxt 1\nbtime 1795180973\n")
        new.replace(self.procfs / "stat")

    def flags(self, interval: str) -> list[str]:
        """Returns the flags of `stepscope exporter` for this node, with an active run."""
        return [
            *("--path.procfs", str(self.procfs)),
            *("--path.nvml-library", str(self.nvml.library)),
            *("--ledger-dir", str(self.ledgers)),
            *("--state-dir", str(self.ledgers / "state")),
            *("--run", "benchmark"),
            *("--sample-interval", interval),
            *("--log-level", "error"),  # a fast tick may find nothing new, which is a warning
        ]


class RunningExporter:
    """A real `stepscope exporter` process."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def get(self, path: str, accept: str = "*/*") -> tuple[int, str]:
        """Returns the status and the body of one request. Keeps the connection, as Prometheus does."""
        self._connection.request("GET", path, headers={"Accept": accept})
        response = self._connection.getresponse()
        return response.status, response.read().decode()

    def hang_up(self) -> None:
        """Closes the connection: the next request makes a new connection."""
        self._connection.close()

    def value(self, name: str) -> float:
        """Returns the value of a metric without labels."""
        lines = self.get("/metrics")[1].splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds of all threads, to the nanosecond (proc(5), schedstat)."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def resident_mebibytes(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in status if line.startswith("VmRSS:")).split()[1]) / 1024


@contextmanager
def running_exporter(node: BusyNode, interval: str) -> Iterator[RunningExporter]:
    """Starts an exporter that samples the node, waits until it is ready, and ends it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "stepscope", "exporter", "--web.listen-address", f"127.0.0.1:{port}"]
    environment = unobserved()
    with subprocess.Popen([*command, *node.flags(interval)], env=environment) as process:
        exporter = RunningExporter(process, port)
        try:
            _wait_until_ready(exporter)
            yield exporter
        finally:
            exporter.hang_up()
            process.terminate()


def _wait_until_ready(exporter: RunningExporter, patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and exporter.process.poll() is None:
        try:
            if exporter.get("/-/ready")[0] == 200:
                return
        except OSError:  # not listening yet
            exporter.hang_up()
        time.sleep(0.1)
    raise RuntimeError("the exporter did not become ready")


@contextmanager
def exporter_in_this_process(node: BusyNode) -> Iterator[Exporter]:
    """Makes an exporter without its server and its thread: the benchmark ticks it itself."""
    collectors = [
        *host_collectors(node.procfs),
        GpuCollector(node.nvml.library),
        TrainingCollector(node.ledgers),
        RunGpusCollector(),
        GpuHoldersCollector(),
    ]
    exporter = Exporter(collectors, run="benchmark", state_directory=node.ledgers)
    try:
        yield exporter
    finally:
        exporter.close()
